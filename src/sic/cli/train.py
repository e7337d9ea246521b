"""`sic train`: from a folder of images to a model directory."""

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.jobs import launch, machines_of, one_voice, started
from sic.cli.options import Devices, Group, Json, LayoutName, Nodes, Roi, Workers, with_settings
from sic.errors import SicError
from sic.machines import Machines

TUNED = "tuned"
"""The recipe of `--fine-tune`."""


@with_settings()
def train(
    data: Annotated[str, typer.Argument(help="A folder of images, a table of them, or `birds` (built in).")],
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    out: Annotated[Path, typer.Option(help="Where the model directory goes.")] = Path("runs/model"),
    devices: Devices = None,
    nodes: Nodes = None,
    workers: Workers = None,
    fine_tune: Annotated[
        bool,
        typer.Option("--fine-tune", help="Train the whole network after its projection; short for --recipe tuned."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    json: Json = False,
    **said: Any,
) -> None:
    """Train a model on a folder of images. Settings that you do not give are chosen and reported."""
    if fine_tune and said.get("recipe") not in (None, TUNED):
        raise SicError(f"--fine-tune is short for --recipe {TUNED}; leave out --recipe {said['recipe']}.")
    said |= {"recipe": TUNED} if fine_tune else {}
    machines = machines_of(devices, nodes)
    if machines.processes > 1 and not started():
        raise typer.Exit(launch(machines, sys.argv[1:]))
    with Talker() as talker, one_voice(machines):
        result = run(data, out, said, resume, talker, workers, layout, group, roi, machines)
    if json:
        print_json(result)
    else:
        summarise(result)


def run(
    data: str,
    out: Path,
    said: dict[str, Any],
    resume: bool,
    talker: Talker,
    workers: int | None = None,
    layout: str | None = None,
    group: str | None = None,
    roi: bool | None = None,
    machines: Machines | None = None,
) -> dict[str, Any]:
    """Train a model and return the result as JSON content."""
    machines = machines or Machines()
    if machines.first:
        talker.say("Loading …")
    from sic.data.labels import MAIN_SCORE
    from sic.directory import read_run
    from sic.fitting import fit

    started = time.monotonic()
    where: dict[str, Any] = {"workers": workers, "devices": machines.devices, "nodes": machines.nodes}
    model = fit(data, out, layout=layout, group=group, roi=roi, resume=resume, reporter=talker, **where, **said)
    record, figures = read_run(out), model.config.figures
    measured = "test" if "test" in figures else "validation"
    score = MAIN_SCORE[model.config.task]
    return {
        "model": str(out),
        score: figures[measured][score],
        "measured_on": measured,
        "figures": figures,
        "seconds": round(time.monotonic() - started, 1),
        "leaks": model.config.data["leaks"],
        "skipped": record["skipped"],
        "settings": record["settings"],
    }


def summarise(result: dict[str, Any]) -> None:
    """Print the result for people."""
    from sic.card import caution
    from sic.data.labels import SCORE_NAMES
    from sic.evaluate.headline import Headline, without_copies
    from sic.methods import METHODS

    score = next(name for name in SCORE_NAMES if name in result)
    measured = result["measured_on"]
    figures = result["figures"][measured]
    more = f"; every label is correct in {figures['exact_match']:.1%} of them" if score == "map" else ""
    expected = caution(figures.get("note"))
    headline = Headline.of(figures)
    assert headline is not None  # this version has just measured it
    OUT.print(
        headline.sentence,
        *([expected] if expected else []),
        f"If every image had to be answered: {SCORE_NAMES[score].lower()} {result[score]:.1%} on {figures['images']} "
        f"{measured} images{more}.",
        *without_copies(result["figures"].get(f"{measured}_without_copies")),
        f"{result['seconds']:.0f} s, {len(result['skipped'])} files skipped. Model: {result['model']}",
        sep="\n",
    )
    if METHODS[result["settings"]["method"]].by_similarity and figures["similar_case"] < 0.5:
        OUT.print("! Most images have no similar case yet: train longer, or with more images.")
    OUT.print(f"Next: sic explain {shlex.quote(str(result['model']))} IMAGE --out why.png")
