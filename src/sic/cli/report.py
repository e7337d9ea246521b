"""`sic report`: the whole model on one page."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.model import Model
    from sic.report import Trial


def report(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    data: Annotated[str | None, typer.Argument(help="Labelled images to try it on; default: its own data.")] = None,
    out: Annotated[Path, typer.Option(help="The page (.html).")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also draw every figure into this folder.")] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Of these figures: pdf, png, svg, or several by commas.")
    ] = "pdf",
    cases: Annotated[int, typer.Option(min=1, help="Right, wrong and unsure test images to explain, each.")] = 6,
    limit: Annotated[int | None, typer.Option(min=1, help="Try no more images than this, spread evenly.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one HTML file that explains the model: how good it is, what it compares with, why it answers what."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise SicError(f"--out {out} must end in .html.")
    wanted = _formats(formats)
    begun = time.monotonic()

    from sic.directory import write_atomically
    from sic.model import load
    from sic.report import gather, render

    with Talker() as talker:
        loaded = load(model)
        trial = _trial(loaded, model, data, limit, talker)
        page = gather(loaded, model, trial, cases=cases, seed=seed, watch=talker.advance)
        text = render(page)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
        drawn: list[Path] = []
        if figures is not None:
            from sic.report.figures import draw

            drawn = draw(page, figures, wanted, talker.advance)
    result = {
        "model": str(model),
        "report": str(out),
        "bytes": out.stat().st_size,
        "seconds": time.monotonic() - begun,
        "tried_on": None if trial is None else {"name": trial.name, "images": len(trial.samples), **trial.figures},
        "cases": {group.anchor: [case.id for case in group.cases] for group in page.groups},
        "figures": [str(path) for path in drawn],
        "overview": page.overview.as_json(),
    }
    if json:
        print_json(result)
        return
    size = out.stat().st_size / 1e6
    OUT.print(f"{out} ({size:.1f} MB): open it in a browser; it needs nothing else.", markup=False)
    if figures is not None:
        OUT.print(f"{len(drawn)} figures in {figures}.", markup=False)


def _formats(given: str) -> list[str]:
    wanted = [name.strip().lower() for name in given.split(",")]
    for name in wanted:
        if name not in ("pdf", "png", "svg"):
            raise SicError(f"--format knows pdf, png and svg, not {name!r}.")
    return wanted


def _trial(model: "Model", folder: Path, data: str | None, limit: int | None, talker: Talker) -> "Trial | None":
    """The model's answers to the images named, or to its own; None where its own are not at hand."""
    from dataclasses import replace

    from sic.cli.own_data import open_data
    from sic.directory import RUN, read_run
    from sic.evaluate.held_out import held_out, spread
    from sic.evaluate.outputs import readable
    from sic.report import attempt

    try:
        opened = open_data(folder, data, model.config.data, talker, "report")
    except SicError as error:
        if data is not None:
            raise
        talker.warn(f"{error} The page is made without test images.")
        return None
    run: dict[str, Any] = read_run(folder) if (folder / RUN).is_file() else {}
    own = run.get("data", {}).get("opened_with", {}).get("where") == opened.opened_with["where"]
    images = held_out(opened, model.classes, run.get("validation", []) if own else [])
    samples = [images.samples[row] for row in spread(len(images.samples), limit)]
    good, bad = readable([sample.path for sample in samples])
    for file, reason in bad:
        talker.warn(f"Skipped {file}: {reason}.")
    usable = set(good)
    images = replace(images, samples=[sample for sample in samples if sample.path in usable])
    if not images.samples:
        raise SicError(f"None of the {images.name} can be read.")
    talker.say(f"Trying the model on {len(images.samples)} {images.name}.")
    return attempt(model, images)
