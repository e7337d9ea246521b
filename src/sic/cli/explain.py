"""`sic explain`: why the model says so."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.explain import Explanation


def explain(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The figure (.png, .pdf, .svg); for several images, a folder.")] = Path(
        "why.png"
    ),
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Explain this class instead of the answer; may be repeated.")
    ] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Another way to explain than the model's own, where its method has several.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw and read out the explanation of the answers: contributions, evidence, supports."""
    from sic.cli.files import as_trained, image_files
    from sic.model import load

    loaded = load(model)
    if attribution is not None:
        loaded.classifier.explain_with(attribution)
    files = image_files(images)
    folder = len(files) > 1
    if not folder and out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise SicError(f"--out {out} must end in .png, .pdf or .svg.")
    if folder and out.suffix:
        raise SicError(f"--out must name a folder when there are {len(files)} images, not {out}.")
    if out.resolve() in {file.resolve() for file in files}:
        raise SicError(f"--out {out} is the image itself; choose another name for the figure.")
    (out if folder else out.parent).mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failed = False
    with Talker() as talker:
        views = as_trained(files, model, loaded.config.data, talker)
        for done, (file, view) in enumerate(zip(files, views, strict=True), 1):
            try:
                explanation = loaded.explain(view, classes)
            except SicError as error:
                if not folder:
                    raise
                failed = True
                talker.warn(str(error))
                results.append({"image": str(file), "error": str(error)})
                continue
            # Images of the same name in different folders must not overwrite each other.
            figure = out / f"{done:04d}-{file.stem}.png" if folder else out
            explanation.save(figure)
            results.append({"image": str(file), "figure": str(figure), **_as_json(explanation)})
            if folder:
                talker.advance("explaining", done, len(files))
    if json:
        print_json({"model": str(model), "images": results})
    else:
        for result in results:
            if "text" in result:
                OUT.print(f"{result['text']}\nFigure: {result['figure']}", markup=False)
    if failed:
        raise typer.Exit(1)


def _as_json(explanation: "Explanation") -> dict[str, Any]:
    return {
        "text": explanation.text,
        "labels": explanation.labels,
        "similar_case": explanation.similar_case,
        "residual": explanation.residual,
        "bias": explanation.bias,
        "classes": [
            {
                "name": c.name,
                "logit": c.logit,
                "probability": c.probability,
                "pixels": c.contributions.maps.sum().item(),
                "input_independent": c.contributions.constant.item(),
                "evidence": [{"source": s.support.source, "value": s.evidence} for s in c.cases],
            }
            for c in explanation.classes
        ],
    }
