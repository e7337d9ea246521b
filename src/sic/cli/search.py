"""`sic search`: train at every point of a grid of settings."""

import csv
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sic.cli.console import OUT, Talker, print_json
from sic.cli.jobs import Ended, Job, locked, run_jobs
from sic.cli.options import Group, Json, LayoutName, Roi, given, tokens, with_settings
from sic.errors import SicError
from sic.settings import flag, table

if TYPE_CHECKING:
    from sic.model import Model
    from sic.training.search import Axes, Point, Search


@with_settings(several=True)
def search(
    data: Annotated[str, typer.Argument(help="A folder of images, a table of them, or `birds` (built in).")],
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    out: Annotated[Path, typer.Option(help="Folder for the trials and the results.")] = Path("runs/search"),
    workers: Annotated[int, typer.Option(min=1, help="Trials to run in parallel, one per GPU if possible.")] = 1,
    json: Json = False,
    **said: Any,
) -> None:
    """Train at every point of a grid of settings; by default the paper's grid of learning rates and temperatures.

    Run the same command again to continue an interrupted search; new values extend the grid.
    """
    wanted = {name: _values(name, text) for name, text in given(said).items() if table()[name].search}
    common = given({"layout": layout, "group": group, "roi": roi}) | {
        name: value for name, value in given(said).items() if name not in wanted
    }
    with Talker() as talker:
        talker.say("Loading …")
        found, common = _begin(data, out, common, wanted, talker)
        _run(found, data, common, workers, talker)
        result = _result(found, data, common)
        _record_rivals(found, talker)
    if json:
        print_json(result)
    else:
        _print(result)
    if result["best"] is None:
        raise SicError(f"None of the {len(result['trials'])} trials finished; {out}/trials has their logs.")


def _values(name: str, text: str) -> tuple[Any, ...]:
    """The values of a setting, rounded to six digits, because they name folders."""
    option = table()[name]
    try:
        values = tuple(option.type(f"{option.type(part):g}") for part in text.split(","))
    except ValueError:
        raise SicError(f"{option.flag} must be numbers separated by commas, not {text!r}.") from None
    for value in values:
        option.check(value)
    return tuple(dict.fromkeys(values))


def _begin(
    data: str, out: Path, common: dict[str, Any], wanted: "Axes", talker: Talker
) -> "tuple[Search, dict[str, Any]]":
    """A search with its points, and the options of all its trials. Checks everything before it writes anything."""
    from sic.data import open as open_data
    from sic.data.dataset import require_outside
    from sic.methods import method
    from sic.training import choose
    from sic.training.search import Search, default_axes, points_of

    found = Search(out, _is_running)
    if found.record:
        common = _agreed(common, found.record["said"], out)
    settings_of_all = {name: value for name, value in common.items() if name in table()}
    opening = {name: value for name, value in common.items() if name not in table()}
    opened = open_data(data, talker.progress("preparing images"), **opening)
    require_outside(out, opened)
    settings, notes = choose(opened, settings_of_all)
    kind = method(settings.method)
    for name in wanted:
        if not kind.uses(name):
            raise SicError(f"{flag(name)} does not apply to --method {settings.method}; leave it out.")
    talker.say("Chosen: " + "; ".join(notes) + ".")
    images = {split: len(samples) for split, samples in opened.splits.items()}
    found.begin(common, settings, {"classes": list(opened.classes), "task": opened.task, "images": images})
    if wanted or not found.points:
        axes = default_axes(settings, kind) | _tried(found) | wanted
        found.add(points_of(axes))
    trials = found.trials()
    talker.say(f"{len(trials)} trials in {out}, {sum(t.state == 'finished' for t in trials)} of them finished.")
    return found, common


def _tried(found: "Search") -> "Axes":
    """The values that a search already has."""
    names = dict.fromkeys(name for point in found.points for name in point)
    return {name: tuple(dict.fromkeys(p[name] for p in found.points if name in p)) for name in names}


def _is_running(log: Path) -> bool:
    """Whether a process has locked the log."""
    if not log.is_file():
        return False
    file = locked(log)
    if file is not None:
        file.close()
    return file is None


def _agreed(common: dict[str, Any], before: dict[str, Any], out: Path) -> dict[str, Any]:
    """The options that a search was started with; refuse others."""
    for name, value in common.items():
        if before.get(name) != value:
            said = flag(name) if name in table() else f"--{name}"
            raise SicError(
                f"{said} differs from what the search in {out} was started with; leave it out to continue, or choose "
                "another --out."
            )
    return before


def _run(found: "Search", data: str, common: dict[str, Any], workers: int, talker: Talker) -> None:
    """Train at the points that are not finished."""
    from sic.training.choose import loader_workers
    from sic.training.search import LOST, name_of, score_of

    passed_on = [*tokens(common), "--workers", str(loader_workers(workers))]
    points = {
        name_of(trial.point): trial.point for trial in found.trials() if trial.state != "finished" and not trial.lost
    }

    def job(name: str, point: "Point") -> Job:
        folder = found.folder(point)

        def command() -> list[str]:
            target = ["--out", str(folder), *tokens(point), *(["--resume"] if found.resumes(point) else [])]
            return ["train", data, *target, *passed_on]

        return Job(name, command, found.log(point), finished=lambda: score_of(folder) is not None)

    def watch(one: Job, said: str) -> str | None:
        _advance(one.name, found, points[one.name], talker)
        lost = LOST.search(said)
        return lost.group() if lost else None

    for ended in run_jobs([job(*each) for each in points.items()], workers, talker, watch):
        _note(ended, found, points[ended.job.name], talker)


def _advance(name: str, found: "Search", point: "Point", talker: Talker) -> None:
    """Report the progress of a trial."""
    from sic.training.history import HISTORY, read_history

    rows = read_history(found.folder(point) / HISTORY)
    if rows:
        note = f"validation {float(rows[-1]['val_score']):.1%}"
        talker.advance(name, int(rows[-1]["epoch"]), found.settings.epochs, note)


def _note(ended: Ended, found: "Search", point: "Point", talker: Talker) -> None:
    """Record and report the end of a trial."""
    from sic.directory import RUN
    from sic.training.search import score_of

    if ended.reason is None:
        talker.say(f"{ended.job.name}: validation {score_of(found.folder(point)):.1%}")
    elif not (found.folder(point) / RUN).is_file():  # not because of its settings: all others would fail, too
        raise SicError(f"No trial can start: {ended.reason}")
    else:
        talker.warn(f"{ended.job.name} failed: {ended.reason}")
    found.note(point, ended.reason, ended.seconds)


def _record_rivals(found: "Search", talker: Talker) -> None:
    """Record in the winner how many models were compared with it, if these have become more: its figures say so, and
    its promise, which must allow for all of them, is fitted again."""
    from sic.card import validation_note
    from sic.clinic.edits import recorded, same_supports
    from sic.directory import read_config
    from sic.machines import best_device
    from sic.model import load
    from sic.training.search import best

    winner = best(found.trials())
    if winner is None:
        return
    folder, compared = found.folder(winner.point), found.compared_with(winner.point)
    if read_config(folder)[0].training.get("compared", 0) >= compared:
        return
    model = load(folder, best_device())
    config = model.config
    config.training["compared"] = compared
    edited = not same_supports(recorded(config.edits, folder))
    config.figures["validation"]["note"] = validation_note(config.training, config.calibration.images, edited)
    for edit in config.edits:  # undo must not bring back a promise that allows for fewer models
        edit["promise"] = None
    if config.calibration.promise is not None:
        _renew_promise(model, folder, talker)
    model.save(folder)


def _renew_promise(model: "Model", folder: Path, talker: Talker) -> None:
    """Fit the promise again; without the images of the model it ends."""
    from dataclasses import replace

    from sic.card import models_compared
    from sic.run import Run

    models = models_compared(model.config.training)
    nothing = f"The winner promises nothing about new images: {models} models were compared on the validation images"
    try:
        images = Run(folder, model.config, "sic train DATA, as in the command that trains it again").images()
        predictions = model.predictions(images.splits["validation"], progress=talker.progress("promise"))
    except (SicError, OSError) as error:
        model.config.calibration = replace(model.config.calibration, promise=None)
        talker.warn(f"{nothing}, and it cannot be tested again whether its promise allows for all of them. {error}")
        return
    model.promise_again(replace(predictions, copies=images.copies), models)
    promise = model.config.calibration.promise
    talker.say(f"{nothing}." if promise is None else str(promise))


def _result(found: "Search", data: str, common: dict[str, Any]) -> dict[str, Any]:
    """Write the table and the plot; returns the output of `--json`."""
    from sic.data.labels import MAIN_SCORE, SCORE_NAMES
    from sic.training.search import best, draw

    trials = found.trials()
    rows = [trial.flat() for trial in trials]
    file, picture = found.out / "search.csv", found.out / "search.png"
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    score = MAIN_SCORE[found.record["data"]["task"]]
    draw(trials, SCORE_NAMES[score], picture)
    winner = best(trials)
    again = None
    if winner is not None:
        settings = {**common, "compared": found.compared_with(winner.point), **winner.point}
        again = ["sic", "train", data, "--out", str(found.out / "best"), *tokens(settings)]
    return {
        "search": str(found.out),
        "score": score,
        "trials": rows,
        "best": winner.flat() if winner else None,
        "command": shlex.join(again) if again else None,
        "table": str(file),
        "plot": str(picture),
    }


def _print(result: dict[str, Any]) -> None:
    """Print the result for people."""
    from sic.data.labels import SCORE_NAMES

    varied = [name for name in dict.fromkeys(key for row in result["trials"] for key in row) if name in table()]
    shown = Table("trial", *(flag(name)[2:] for name in varied), "validation", "state")
    winner = result["best"]
    for trial in result["trials"]:
        score = "" if trial["score"] is None else f"{trial['score']:.1%}"
        state = trial["state"] if trial["reason"] is None else f"{trial['state']}: {trial['reason']}"
        values = [f"{trial[name]:g}" if name in trial else "" for name in varied]
        bold = "bold" if winner is not None and trial["trial"] == winner["trial"] else None
        shown.add_row(f"{trial['trial']}", *values, score, state, style=bold)
    OUT.print(shown)
    OUT.print(f"Picture: {result['plot']}\nTable: {result['table']}")
    if winner is not None:
        at = ", ".join(f"{flag(name)} {winner[name]:g}" for name in varied if name in winner)
        OUT.print(
            f"Best: {SCORE_NAMES[result['score']].lower()} {winner['score']:.1%} with {at} on the validation images, "
            "on which it and its epoch were chosen; judge it on the test set.",
            f"Model: {winner['model']}",
            f"To train it again: {result['command']}",
            sep="\n",
        )
