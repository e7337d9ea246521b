"""`sic search`: the best learning rate and temperature of a grid."""

import csv
import inspect
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sic.cli.console import OUT, Talker, print_json
from sic.cli.jobs import leave_when_told
from sic.cli.train import train
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.training.grid import Point
    from sic.training.search import Search

SETTINGS = {
    "antialias": "antialiased",
    "compile": "compiled",
    "supports": "supports_per_class",
    "support_images": "keep_support_images",
}
"""Flags of `sic train` that are not called like their setting."""


def with_flags_of_train(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What `sic train` takes, the command takes for all that it trains, but for what it says itself, and `without`."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {*without, *(p.name for p in own)}
        parameters = [*own, *(p for p in inspect.signature(train).parameters.values() if p.name not in taken)]
        setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return extend


@with_flags_of_train("resume")
def search(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="A folder of images, a table of them, or `birds` (built in).")],
    out: Annotated[Path, typer.Option(help="Where the trials and the result go.")] = Path("runs/search"),
    lr: Annotated[str | None, typer.Option(help="Learning rates, such as 0.001,0.0003.")] = None,
    temperature: Annotated[str | None, typer.Option("--temperature", "-T", help="Temperatures: 10,30.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time; each gets a GPU while there are enough.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(help="URL of an Optuna storage; machines with the same and an --out of the same name share work."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **flags: Any,
) -> None:
    """Train at every point of a grid of learning rates and temperatures; the paper's where you name none.

    The same command continues a search that was interrupted; new values add to it.
    """
    rates, temperatures = _numbers("--lr", lr), _numbers("--temperature", temperature)
    said = {name: value for name, value in flags.items() if value != inspect.signature(train).parameters[name].default}
    leave_when_told()  # also where SLURM has started several searches
    with Talker() as talker:
        talker.say("Loading …")
        from sic.training.settings import loader_workers

        found, said = _begin(data, out, storage, said, rates, temperatures, talker)
        passed_on = [*tokens(context, said), "--workers", str(loader_workers(workers))]

        def command(point: "Point", folder: Path, goes_on: bool) -> list[str]:
            target = ["--out", str(folder), *_at(point, found), *(["--resume"] if goes_on else [])]
            return [sys.executable, "-m", "sic", "train", data, *target, *passed_on]

        found.run(command, workers, talker)
    result = _result(found, data, tokens(context, said))
    if json:
        print_json(result)
    else:
        _print(result)
    if result["best"] is None:
        raise SicError(f"None of the {len(result['trials'])} trials came through; {out}/trials has their logs.")


def _numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers above 0, six digits each: they name folders."""
    if text is None:
        return None
    try:
        numbers = tuple(float(f"{float(part):g}") for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(math.isfinite(n) and 1e-12 <= n <= 1e12 for n in numbers):
        raise SicError(f"{flag} must be numbers above 0 with commas between them, not {text!r}.")
    return numbers


def _begin(
    data: str,
    out: Path,
    storage: str | None,
    said: dict[str, Any],
    rates: tuple[float, ...] | None,
    temperatures: tuple[float, ...] | None,
    talker: Talker,
) -> "tuple[Search, dict[str, Any]]":
    """A search with its queue filled, and the flags of its trials. Nothing is written before all is checked."""
    from sic.data import open as open_data
    from sic.data.dataset import require_outside
    from sic.methods import method
    from sic.training import choose
    from sic.training.grid import default_axes
    from sic.training.search import BOOKS, Search, require_optuna
    from sic.training.settings import Settings

    require_optuna()
    found = Search(out, storage) if storage is not None or (out / BOOKS).is_file() else None
    before = {} if found is None else found.record
    if before:
        said = _agreed(said, before["flags"], out)
    opening: dict[str, Any] = {"layout": said.get("layout"), "group": said.get("group"), "roi": bool(said.get("roi"))}
    opened = open_data(data, talker.progress("preparing images"), **opening)
    require_outside(out, opened)
    wanted = {SETTINGS.get(name, name): value for name, value in said.items()}
    known = {*Settings.__dataclass_fields__, "size", "fit"}
    settings, notes = choose(opened, {name: value for name, value in wanted.items() if name in known})
    if temperatures and "temperature" not in method(settings.method).options:
        raise SicError(f"--temperature means nothing to --method {settings.method}; leave it out.")
    talker.say("Chosen: " + "; ".join(notes) + ".")
    found = found or Search(out, storage)
    images = {split: len(samples) for split, samples in opened.splits.items()}
    found.begin(said, settings, {"classes": list(opened.classes), "task": opened.task, "images": images})
    tried = [trial.point for trial in found.trials()]
    grid = tuple(sorted({lr for lr, _ in tried}, reverse=True)), tuple(sorted({t for _, t in tried}))
    default = grid if tried else default_axes(settings)
    if rates or temperatures or not tried:
        tried += [(lr, t) for lr in rates or default[0] for t in temperatures or default[1]]
    found.add(dict.fromkeys(tried))
    count = len(found.trials())
    talker.say(f"{count} trials in {out}, {sum(t.state == 'finished' for t in found.trials())} of them finished.")
    return found, said


def _agreed(said: dict[str, Any], before: dict[str, Any], out: Path) -> dict[str, Any]:
    """The flags that a search was begun with; whoever says others now would not get what they ask for."""
    for name, value in said.items():
        if before.get(name) != value:
            raise SicError(
                f"--{name.replace('_', '-')} differs from what the search in {out} was begun with; "
                "leave it out to continue, or choose another --out."
            )
    return before


def tokens(context: typer.Context, said: dict[str, Any]) -> list[str]:
    """Flags as on a command line."""
    tokens = []
    for option in context.command.params:
        value = said.get(str(option.name))
        if value is None:
            continue
        if isinstance(value, bool):
            tokens.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            tokens += [option.opts[0], str(value)]
    return tokens


def _at(point: "Point", found: "Search") -> list[str]:
    from sic.methods import method

    temperature = ["--temperature", f"{point[1]:g}"] if "temperature" in method(found.settings.method).options else []
    return ["--lr", f"{point[0]:g}", *temperature]


def _result(found: "Search", data: str, flags: list[str]) -> dict[str, Any]:
    """Write the table and the picture; what `--json` prints."""
    from sic.data.labels import MAIN_SCORE, SCORE_NAMES
    from sic.training.grid import Trial, best, draw

    trials = found.trials()
    table, picture = found.out / "search.csv", found.out / "search.png"
    with table.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, list(Trial.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(trial) for trial in trials)
    score = MAIN_SCORE[found.record["data"]["task"]]
    draw(trials, SCORE_NAMES[score], picture)
    winner = best(trials)
    again = (
        ["sic", "train", data, "--out", str(found.out / "best"), *flags, *_at(winner.point, found)] if winner else None
    )
    return {
        "search": str(found.out),
        "score": score,
        "trials": [asdict(trial) for trial in trials],
        "best": asdict(winner) if winner else None,
        "command": shlex.join(again) if again else None,
        "table": str(table),
        "plot": str(picture),
    }


def _print(result: dict[str, Any]) -> None:
    """The same for people."""
    from sic.data.labels import SCORE_NAMES

    table = Table("trial", "lr", "T", "validation", "state")
    for trial in result["trials"]:
        winner = result["best"] is not None and trial["trial"] == result["best"]["trial"]
        score = "" if trial["score"] is None else f"{trial['score']:.1%}"
        state = trial["state"] if trial["reason"] is None else f"{trial['state']}: {trial['reason']}"
        cells = f"{trial['trial']}", f"{trial['lr']:g}", f"{trial['temperature']:g}", score, state
        table.add_row(*cells, style="bold" if winner else None)
    OUT.print(table)
    OUT.print(f"Picture: {result['plot']}\nTable: {result['table']}")
    winner = result["best"]
    if winner is not None:
        OUT.print(
            f"Best: {SCORE_NAMES[result['score']].lower()} {winner['score']:.1%} with lr {winner['lr']:g}, "
            f"T = {winner['temperature']:g} on the validation images, which chose it and its epoch; "
            "what it is worth, test images say.",
            f"Model: {winner['model']}",
            f"To train it anew: {result['command']}",
            sep="\n",
        )
