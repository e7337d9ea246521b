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
        bool, typer.Option("--promise", help="Answer only where the model's promise about its mistakes holds.")
    ] = False,
    json: Json = False,
) -> None:
    """Classify images: labels, probabilities and the most similar training images."""
    from rich.table import Table

    from sic.data.images import UnreadableImage, read_image
    from sic.explain.prose import percent
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
        for result in results:
            if "error" in result:
                table.add_row(result["image"], result["error"], "", "", "")
                continue
            best = max(result["probabilities"].items(), key=lambda item: item[1])
            nothing = "no similar case" if loaded.classifier.by_similarity else "no class reaches 50 %"
            answer = ", ".join(result["labels"]) if result["similar_case"] else f"{nothing} (nearest: {best[0]})"
            if promise and not result["promised"]:
                answer = f"refused (nearest: {best[0]})"
            elif promise and not result["similar_case"]:
                answer = f"{', '.join(result['labels'])} ({nothing})"
            shown = [result["probabilities"][name] for name in result["labels"]] or [best[1]]
            named = (result["labels"] or [best[0]])[0]
            top = next((e for e in result["evidence"] if e["label"] == named), None)
            case = ("", "") if top is None else (f"{top['source']} ({top['name']})", f"{top['value']:.2f}")
            table.add_row(result["image"], answer, ", ".join(map(percent, shown)), *case)
        OUT.print(table)
        if promise:
            OUT.print(promised)
    if failed:
        raise typer.Exit(1)
