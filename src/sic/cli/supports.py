"""`sic supports`: inspect and edit the supports of a model."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sic.cli.console import OUT, Talker, print_json, styled
from sic.cli.options import Json
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.clinic import Clinic, Outcome
    from sic.supports import Action

app = typer.Typer(
    help="Inspect and change the training images that a model reasons with, without training again.",
    no_args_is_help=True,
)

STARTED = "sic.started"
"""The key of the start time in the context. Numbers of supports refer to the list at that time."""
SHOWN = 12
"""The most images that are printed; --json lists all of them."""

Data = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="Where the training images are, if they were moved.")
]
Which = Annotated[
    str, typer.Argument(metavar="SUPPORT", help="Name of the support (see list), id of its image, or number.")
]
Preview = Annotated[bool, typer.Option("--preview", help="Show the effect without saving it.")]
ImageId = Annotated[str, typer.Argument(metavar="IMAGE", help="A training image: its id or its path.")]
Force = Annotated[bool, typer.Option("--force", help="Use the image even if it shows another class.")]


@app.callback()
def supports(
    context: typer.Context, model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model directory.")]
) -> None:
    """Inspect and change the training images that a model reasons with, without training again."""
    context.obj = model
    context.meta[STARTED] = time.time_ns()


def _open(context: typer.Context, data: str | None) -> "Clinic":
    with Talker() as talker:
        from sic.clinic import Clinic

        clinic = Clinic(context.obj, data, talker.progress("embedding"))
        for problem in clinic.problems:
            talker.warn(problem)
    return clinic


@app.command("list")
def list_supports(context: typer.Context, data: Data = None, json: Json = False) -> None:
    """List all supports with their mean evidence for validation images of their class."""
    found = _open(context, data).list()
    if json:
        print_json({"model": str(context.obj), "supports": [asdict(info) for info in found]})
        return
    table = Table("", "name", "training image", "evidence", "strongest in", "")
    for info in found:
        other = info.truth is not None and info.label not in info.truth
        shows = [f"shows {', '.join(info.truth or [])}"] if other else []
        marks = ", ".join([*(["pinned"] if info.pinned else []), *shows])
        table.add_row(
            str(info.index),
            info.name,
            info.source,
            f"{info.evidence:.2f}",
            f"{info.strongest} answers",
            styled(marks, "red" if other else ""),
        )
    OUT.print(table)


@app.command("show")
def show(context: typer.Context, support: Which, data: Data = None, json: Json = False) -> None:
    """Show one support: the images that rely on it, and training images that could replace it."""
    from sic.supports import find_support

    clinic = _open(context, data)
    index = find_support(clinic.examined.supports, support, clinic.classes)
    info = clinic.list()[index]
    relying = clinic.relying_on(index)
    typical = [candidate for candidate in clinic.candidates(info.label) if not candidate.support]
    if json:
        print_json(
            {
                "model": str(context.obj),
                "support": asdict(info),
                "relying": [_plain(asdict(one)) for one in relying],
                "candidates": [_plain(asdict(one)) for one in typical],
            }
        )
        return
    truth = "is not among the training images" if info.truth is None else f"shows {', '.join(info.truth)}"
    OUT.print(
        f"{info.name}{' (pinned)' if info.pinned else ''} is support {index}; its image, {info.source}, {truth}.\n"
        f"It adds {info.evidence:.2f} to validation images of its class on average and is the strongest support of "
        f"{info.strongest} answers.",
    )
    table = Table("answers that rely on it", "", "shows", "evidence", "share", "")
    for one in relying[:SHOWN]:
        words = (one.id, one.split, ", ".join(one.truth), f"{one.evidence:.2f}", f"{one.share:.0%}")
        table.add_row(*words, "decisive" if one.decisive else "")
    OUT.print(table)
    OUT.print(f"Most typical for {info.label} and no support: {', '.join(one.id for one in typical[:4])}.")


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in entry.items()}


@app.command("drop")
def drop(
    context: typer.Context, support: Which, preview: Preview = False, data: Data = None, json: Json = False
) -> None:
    """Remove a support."""
    _edit(context, preview, data, json, "drop", support=support)


@app.command("add")
def add(
    context: typer.Context,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The class to add it to.")],
    image: ImageId,
    force: Force = False,
    preview: Preview = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Add a training image to the supports of a class."""
    _edit(context, preview, data, json, "add", label=label, image=image, force=force)


@app.command("replace")
def replace(
    context: typer.Context,
    support: Which,
    image: ImageId,
    force: Force = False,
    preview: Preview = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Replace a support by another training image."""
    _edit(context, preview, data, json, "replace", support=support, image=image, force=force)


@app.command("pin")
def pin(
    context: typer.Context,
    support: Which,
    off: Annotated[bool, typer.Option("--off", help="Undo the pin.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Keep a support when its class is selected again."""
    _edit(context, False, data, json, "unpin" if off else "pin", support=support)


@app.command("reselect")
def reselect(
    context: typer.Context,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")],
    supports: Annotated[
        int | None, typer.Option("--supports", min=1, help="Number of supports; default: as before.")
    ] = None,
    varied: Annotated[
        bool | None,
        typer.Option(
            "--varied/--nearest",
            help="Select supports that differ more from each other, or those nearest to the centroids of k-means; "
            "default: as training did.",
        ),
    ] = None,
    preview: Preview = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Select the supports of a class again, as training does; keep pinned ones, leave out those that you removed."""
    _edit(context, preview, data, json, "reselect", label=label, number=supports, varied=varied)


@app.command("undo")
def undo(
    context: typer.Context,
    steps: Annotated[int, typer.Argument(min=1, help="Number of edits to undo.")] = 1,
    data: Data = None,
    json: Json = False,
) -> None:
    """Undo the last edits."""
    clinic = _open(context, data)
    _tell(clinic, clinic.undo(steps), "undo", False, json)


@app.command("history")
def history(context: typer.Context, json: Json = False) -> None:
    """List all edits of this model and their effects."""
    from sic.clinic.edits import recorded
    from sic.directory import read_config

    config, _ = read_config(context.obj)
    records = recorded(config.edits, context.obj)
    if json:
        print_json({"model": str(context.obj), "edits": config.edits})
        return
    score = "map" if config.task == "multi" else "accuracy"
    table = Table("when", "edit", "class", "removed", "added", score, "to right", "to wrong", "")
    for edit in records:
        table.add_row(
            edit.when,
            edit.action + (" (forced)" if edit.forced else ""),
            edit.label,
            "\n".join(edit.removed),
            "\n".join(edit.added),
            f"{edit.before.get(score, math.nan):.1%} → {edit.after.get(score, math.nan):.1%}",
            str(len(edit.to_right)),
            str(len(edit.to_wrong)),
            f"undone {edit.undone}" if edit.undone else "",
        )
    OUT.print(table if records else f"The supports of {context.obj} were never edited.")


@app.command("check")
def check(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that look at pixels.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """List problems of the supports, with commands that solve them or show them, as far as there are any."""
    clinic = _open(context, data)
    with Talker() as talker:
        findings = clinic.diagnose(pixels=not quick, progress=talker.progress("explaining"))
    if json:
        print_json({"model": str(context.obj), "findings": [asdict(finding) for finding in findings]})
        return
    for finding in findings:
        OUT.print(styled(finding.title, "red" if finding.severity == "serious" else "yellow"))
        OUT.print(f"  {finding.sentence}")
        if finding.command is not None:
            OUT.print(f"  → {finding.command}")
        elif finding.tried:
            OUT.print("  No edit that was tried solves it.")
    number = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}" if findings else "Nothing found"
    OUT.print(f"{number} in {len(clinic.examined.supports)} supports of {context.obj}.")


def _edit(
    context: typer.Context, preview: bool, data: str | None, json: bool, action: "Action", **arguments: Any
) -> None:
    """Make an edit and print its effect; `arguments`: those of `sic.supports.Edit`."""
    from sic.directory import stamp
    from sic.supports import Edit, by_position

    edit = Edit(action, **arguments)
    clinic = _open(context, data)
    saved = stamp(context.obj)
    if by_position(edit.support) and saved is not None and saved[1] > context.meta[STARTED]:
        raise SicError(
            f"The supports of {context.obj} were edited while this command started, so numbers may have changed; name "
            "the support by its image, or look at the list again."
        )
    outcome = clinic.preview(edit) if preview else clinic.apply(edit)
    _tell(clinic, outcome, action, preview, json)


def _tell(clinic: "Clinic", outcome: "Outcome", action: str, preview: bool, json: bool) -> None:
    multi = clinic.examined.model.config.task == "multi"
    if json:
        sides = {"to_right": outcome.ids("to_right"), "to_wrong": outcome.ids("to_wrong")}
        print_json({"model": str(clinic.folder), "action": action, "saved": not preview, **asdict(outcome), **sides})
        return
    changes = [f"{sign} {source}" for sign, of in (("-", outcome.removed), ("+", outcome.added)) for source in of]
    for change in changes or ["The supports are the same images as before."]:
        OUT.print(change)
    score, name = ("map", "Mean average precision") if multi else ("accuracy", "Accuracy")
    before, after, number = outcome.before, outcome.after, len(outcome.flips)
    figures = f"{name} {before[score]:.1%} → {after[score]:.1%}"
    if not multi:
        figures += f" (balanced {before['balanced_accuracy']:.1%} → {after['balanced_accuracy']:.1%})"
    changed = f"{number} of them {'gets' if number == 1 else 'get'} another answer"
    OUT.print(f"{figures} on {before['images']} validation images; {changed}.")
    worse, better = ("more labels wrong", "more labels right") if multi else ("now wrong", "now right")
    for direction, words in (("to_wrong", worse), ("to_right", better)):
        flips = [flip for flip in outcome.flips if flip.direction == direction]
        for flip in flips[:SHOWN]:
            answers = f"{_names(flip.before)} → {_names(flip.after)}"
            OUT.print(f"  {words}: {flip.id} ({_names(flip.truth)}): {answers}")
        if len(flips) > SHOWN:
            OUT.print(f"  {words}: {len(flips) - SHOWN} more")
    if same := len(outcome.ids("neither")):
        OUT.print(f"  as right or wrong as before: {same}")
    if preview:
        OUT.print("Nothing was saved.")
    elif outcome.labels and action != "undo":
        OUT.print(f"Saved; to undo it: sic supports {clinic.folder} undo")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) or "nothing") + more
