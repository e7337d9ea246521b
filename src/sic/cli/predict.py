"""`sic predict`: classify images."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Images, Json, ModelFolder, as_trained, image_files


def predict(
    model: ModelFolder,
    images: Images,
    promise: Annotated[
        bool, typer.Option("--promise", help="Give only the answers that the model's promise covers.")
    ] = False,
    json: Json = False,
) -> None:
    """Classify images: labels, probabilities and the most similar training images."""
    from rich.table import Table

    from sic.data.images import UnreadableImage, read_image
    from sic.model import load
    from sic.run import Run

    loaded = load(model)
    if promise:
        promised = str(loaded.promise)
    results: list[dict[str, Any]] = []
    failed = False
    with Talker() as talker:
        files = image_files(images)
        views = as_trained(files, Run(model, loaded.config), talker)
        for done, (file, view) in enumerate(zip(files, views, strict=True), 1):
            try:
                prediction = loaded.predict(read_image(view), promise=promise)
                results.append({"image": str(file), **asdict(prediction)})
            except UnreadableImage as error:
                failed = True
                results.append({"image": str(file), "error": str(error)})
                talker.warn(f"Skipped {file}: {error}.")
            if len(files) > 8:
                talker.advance("predicting", done, len(files))
    if json:
        print_json({"model": str(model), "images": results})
    else:
        table = Table()
        for column in ("image", "prediction", "probability", "most similar training image", "evidence"):
            table.add_column(column, overflow="fold")
        nothing = "no similar case" if loaded.classifier.by_similarity else "no class reaches 50 %"
        for result in results:
            table.add_row(result["image"], *_cells(result, nothing, promise))
        OUT.print(table)
        if promise:
            OUT.print(promised)
    if failed:
        raise typer.Exit(1)


def _cells(result: dict[str, Any], nothing: str, promise: bool) -> list[str]:
    """The prediction, its probability, the most similar training image and its evidence; or the error."""
    from sic.explain.prose import percent

    if "error" in result:
        return [result["error"], "", "", ""]
    labels, probabilities = result["labels"], result["probabilities"]
    best = max(probabilities, key=probabilities.get)
    answer = ", ".join(labels)
    if promise and not result["promised"]:
        answer = f"refused (nearest: {best})"
    elif not result["similar_case"]:
        answer = f"{answer} ({nothing})" if promise else f"{nothing} (nearest: {best})"
    shown = labels or [best]
    top = next((e for e in result["evidence"] if e["label"] == shown[0]), None)
    case = ["", ""] if top is None else [f"{top['source']} ({top['name']})", f"{top['value']:.2f}"]
    return [answer, ", ".join(percent(probabilities[name]) for name in shown), *case]
