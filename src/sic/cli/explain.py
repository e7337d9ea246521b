"""`sic explain`: explain predictions."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sic.cli.console import Results, Talker
from sic.cli.options import (
    Attribution,
    Device,
    Images,
    Json,
    ModelFolder,
    as_trained,
    explain_with,
    image_files,
    pick_device,
)
from sic.errors import SicError

if TYPE_CHECKING:
    from torch import Tensor


def explain(
    model: ModelFolder,
    images: Images,
    out: Annotated[Path, typer.Option(help="The figure (.png, .pdf, .svg), or a folder for several images.")] = Path(
        "why.png"
    ),
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="Explain this class instead of the predicted one; can be repeated."),
    ] = None,
    versus: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Explain why the model prefers the predicted class to this one.")
    ] = None,
    matches: Annotated[
        bool,
        typer.Option(
            "--matches/--no-matches",
            help="Show which regions of the image match regions of the cases; --versus always does.",
        ),
    ] = True,
    specific: Annotated[
        bool,
        typer.Option(
            "--specific", help="Draw how much more each pixel adds to the class than to all classes on average."
        ),
    ] = False,
    attribution: Attribution = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Explain predictions: draw a figure and print the explanation in words."""
    from sic.data.loading import views_or_reasons
    from sic.explain.render import as_json
    from sic.model import load
    from sic.run import Run

    loaded = load(model, pick_device(device))
    explain_with(loaded, attribution)
    files = image_files(images)
    folder = _prepare(out, files)
    results = Results({"model": str(model)}, "images", json)
    failed = 0
    with Talker() as talker:
        views = as_trained(files, Run(model, loaded.config), talker)
        waiting: deque[tuple[int, Path]] = deque()

        def readable() -> Iterator["Tensor"]:
            nonlocal failed
            for number, view in enumerate(views_or_reasons(views, loaded.config.preprocessing), 1):
                file = files[number - 1]
                if isinstance(view, str):
                    sentence = f"{file} cannot be used: {view}."
                    if not folder:
                        raise SicError(sentence)
                    failed += 1
                    talker.warn(sentence)
                    results.add({"image": str(file), "error": sentence}, None)
                else:
                    waiting.append((number, file))
                    yield view

        for done, explanation in enumerate(loaded.explain_many(readable(), classes, matches, versus, specific), 1):
            number, file = waiting.popleft()
            # Numbered, because images in different folders can have the same name.
            figure = out / f"{number:04d}-{file.stem}.png" if folder else out
            explanation = replace(explanation, title=file.name)
            explanation.save(figure)
            found = {"image": str(file), "figure": str(figure), **as_json(explanation)}
            results.add(found, f"{found['text']}\nFigure: {figure}")
            if folder:
                talker.advance("explaining", done + failed, len(files))
    results.close()
    if failed:
        raise typer.Exit(1)


def _prepare(out: Path, files: list[Path]) -> bool:
    """Create the folder of the figures; returns whether `out` is a folder for several of them."""
    folder = len(files) > 1
    if not folder and out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise SicError(f"--out {out} must end in .png, .pdf or .svg.")
    if folder and out.suffix and not out.is_dir():
        raise SicError(f"--out {out} must be a folder for {len(files)} images.")
    if out.resolve() in {file.resolve() for file in files}:
        raise SicError(f"--out {out} would overwrite the image; choose another name.")
    (out if folder else out.parent).mkdir(parents=True, exist_ok=True)
    return folder
