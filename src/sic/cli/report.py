"""`sic report`: write a report about a model as one HTML file."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Json, Labelled, Seed, held_out_predictions, labelled_images
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.clinic import Finding
    from sic.model import Model
    from sic.predictions import Predictions


def report(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    data: Labelled = None,
    out: Annotated[Path, typer.Option(help="The report (.html).")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also write all figures to this folder.")] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Formats of the figures: pdf, png, svg, comma-separated.")
    ] = "pdf",
    examples: Annotated[
        int,
        typer.Option(
            "--examples", "--cases", min=1, help="Number of correct, of wrong and of uncertain answers to explain."
        ),
    ] = 6,
    limit: Annotated[int | None, typer.Option(min=1, help="The most test images to use, spread evenly.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write a report as one HTML file: performance, explained test images, cases, similarity of classes."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise SicError(f"--out {out} must end in .html.")
    wanted = _formats(formats)
    begun = time.monotonic()

    from sic.backbones.distilled import distilled_file
    from sic.files import write_atomically
    from sic.model import load
    from sic.report import gather, render

    with Talker() as talker:
        if distilled_file(model) is not None:
            raise SicError(
                f"A report shows the cases and the test images of a model directory; {model} has neither. Use "
                f"sic serve {model} or sic explain {model} IMAGE instead."
            )
        loaded = load(model)
        predictions = _predictions(loaded, model, data, limit, talker)
        findings = _findings(loaded, talker)
        page = gather(loaded, model, predictions, examples=examples, seed=seed, watch=talker.advance, findings=findings)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, render(page))
        drawn: list[Path] = []
        if figures is not None:
            from sic.report.figures import draw

            drawn = draw(page, figures, wanted, talker.advance)
    result = {
        "model": str(model),
        "report": str(out),
        "bytes": out.stat().st_size,
        "seconds": time.monotonic() - begun,
        "tried_on": None
        if predictions is None
        else {"name": predictions.name, "images": len(predictions), **predictions.quality},
        "cases": {group.anchor: [case.id for case in group.examples] for group in page.groups},
        "figures": [str(path) for path in drawn],
        "overview": page.overview.as_json(),
    }
    if json:
        print_json(result)
        return
    size = out.stat().st_size / 1e6
    OUT.print(f"{out} ({size:.1f} MB): open it in a browser.")
    if figures is not None:
        OUT.print(f"{len(drawn)} figures in {figures}.")


def _findings(model: "Model", talker: Talker) -> "Sequence[Finding] | None":
    """The findings of the clinic; None if the training images are not available."""
    from sic.clinic import Clinic

    assert model.folder is not None
    try:
        clinic = Clinic(model.folder, progress=talker.progress("embedding"), model=model)
        return clinic.diagnose(progress=talker.progress("diagnosis"))
    except (SicError, OSError) as error:
        talker.warn(f"The supports were not diagnosed: {error}")
        return None


def _formats(given: str) -> list[str]:
    wanted = [name.strip().lower() for name in given.split(",")]
    for name in wanted:
        if name not in ("pdf", "png", "svg"):
            raise SicError(f"--format {name} is not supported; choose from pdf, png and svg.")
    return wanted


def _predictions(
    model: "Model", folder: Path, data: str | None, limit: int | None, talker: Talker
) -> "Predictions | None":
    """The predictions for the given images, or for the dataset of the model; None if that is not available."""
    from sic.run import Run

    run = Run(folder, model.config, f"sic report {folder} DATA")
    try:
        opened = labelled_images(run, data, talker)
    except SicError as error:
        if data is not None:
            raise
        talker.warn(f"{error} The report is written without test images.")
        return None
    return held_out_predictions(model, run, opened, limit, talker, own=run.is_own(opened))
