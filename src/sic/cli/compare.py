"""`sic compare`: several methods, several seeds, one table."""

import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json, styled
from sic.cli.data import Group, LayoutName, Roi
from sic.cli.evaluate import Device, Limit, Only, explain_with, open_suite, pick_device
from sic.cli.jobs import Job, run_all
from sic.cli.options import Devices, Nodes, Workers, given, tokens, with_settings
from sic.errors import SicError
from sic.settings import named

if TYPE_CHECKING:
    from sic.evaluate.compare import Row, Values

COMPARISON, RUNS, RESULTS = "comparison", "runs", "results"


@dataclass(frozen=True)
class Entry:
    """A trained model in the comparison, and how it is asked to explain."""

    name: str
    folder: Path
    seed: int
    attribution: str | None = None


@with_settings("seed", "method", "attribution")
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Finished runs: model directories, NAME=RUN to name one, RUN:ATTRIBUTION to choose a way."),
    ] = None,
    train: Annotated[
        str | None, typer.Option("--train", help="Train these methods: sic,bcos,blackbox, or METHOD:ATTRIBUTION.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Images to train and measure on; finished runs: their own.")] = None,
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    seeds: Annotated[str, typer.Option(help="Seeds to train each method with.")] = "0,1,2",
    special: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of one method, such as sic:lr=0.001; bagnet:backbone= takes one back."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs, results, tables and plots go.")] = Path("runs/compare"),
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time; each gets a GPU while there are enough.")] = 1,
    only: Only = None,
    limit: Limit = None,
    device: Device = None,
    devices: Devices = None,
    nodes: Nodes = None,
    workers: Workers = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    part: Annotated[bool, typer.Option("--part", hidden=True)] = False,
    **said: Any,
) -> None:
    """Train methods (or take finished runs), evaluate each, and put them side by side.

    The same command continues where it was interrupted: finished runs are not trained again, nor measured again.
    """
    if (train is None) == (not runs):
        raise SicError(
            "Name finished runs, or methods to train: sic compare RUN RUN …, or --train sic,bcos --data DATA."
        )
    run = given({"layout": layout, "group": group, "roi": roi, "devices": devices, "nodes": nodes, "workers": workers})
    said = given(said)
    if runs and (said or run or special):
        meant = ", ".join(sorted([*said, *run, *(special or [])]))
        raise SicError(f"{meant}: settings of the training mean nothing for runs that are finished.")
    if train is not None and data is None:
        raise SicError("--train needs --data: a folder of images, a table of them, or birds.")
    from sic.evaluate.suite import chosen

    protocols = chosen(only)
    with Talker() as talker:
        if train is None:
            entries = _finished(runs or [])
        else:
            own = _settings_of_methods(special or [], [name.strip() for name in train.split(",")])
            if jobs > 1:  # what each of them trains and measures is found finished below
                from sic.training.choose import loader_workers

                common = {"workers": loader_workers(jobs), **run, **said, "data": data, "out": out, "only": only}
                flags_of_all = tokens(common | {"limit": limit, "device": device})
                run_all(_jobs(list(own), _seeds(seeds), special or [], out, flags_of_all), jobs, talker)
            entries = _trained({name: said | own[name] for name in own}, str(data), run, _seeds(seeds), out, talker)
        # What was trained here is measured on its own data, opened as it was for the training.
        results = _results(entries, None if train else data, protocols, limit, pick_device(device), out, talker)
        if part:
            return
        settings = {
            "train": train,
            "data": data,
            "only": protocols,
            "limit": limit,
            **run,
            **said,
            "set": special or [],
        }
        report = _report(entries, results, settings)
        files = _write(report, out)
    if json:
        print_json(report)
    else:
        _show(report)
        OUT.print(f"In {out}: {', '.join(path.name for path in files)}.")


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise SicError(f"--seeds must be whole numbers with commas between them, not {text!r}.") from None
    if len(set(found)) < len(found):
        raise SicError(f"--seeds {text} names a seed twice.")
    return found


def _settings_of_methods(special: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """Of each method (METHOD or METHOD:ATTRIBUTION): the settings that `--set` gives to it alone."""
    result: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for text in special:
        method, colon, rest = text.partition(":")
        setting, equals, value = rest.partition("=")
        chosen = [name for name in methods if name.partition(":")[0] == method]
        if not (colon and equals and setting and chosen):
            raise SicError(f"--set {text} must be METHOD:SETTING=VALUE, with a method that --train names.")
        for each in chosen:
            result[each][named(setting)] = _value(value.strip())
    return result


def _jobs(names: list[str], seeds: list[int], special: list[str], out: Path, flags: list[str]) -> list[Job]:
    """A process for every method and seed that is not trained yet."""
    result = []
    methods = dict.fromkeys(name.partition(":")[0] for name in names)
    for seed in seeds:
        for method in methods:
            folder = out / RUNS / f"{method}-seed{seed}"
            if _is_trained(folder):
                continue
            ways = ",".join(name for name in names if name.partition(":")[0] == method)
            own = [part for text in special if text.partition(":")[0] == method for part in ("--set", text)]
            arguments = ["compare", "--train", ways, "--seeds", str(seed), *own, *flags, "--part"]
            result.append(Job(f"{method}, seed {seed}", partial(list, arguments), folder.with_suffix(".log")))
    return result


def _value(text: str) -> Any:
    """A number, true or false, else the text itself; None for nothing."""
    try:
        return loads(text) if text else None
    except ValueError:
        return text


def _trained(
    methods: dict[str, dict[str, Any]], data: str, run: dict[str, Any], seeds: list[int], out: Path, talker: Talker
) -> list[Entry]:
    """Train what is not finished, with the settings of each method, in `out/runs/METHOD-seedN`. `run`: how to open the
    data and where to train, for all of them."""
    entries = []
    for seed in seeds:  # seed by seed: after each of them there is something to compare
        for name, said in methods.items():
            method, _, attribution = name.partition(":")
            folder = out / RUNS / f"{method}-seed{seed}"
            _train(method, seed, folder, data, said, run, talker)
            if attribution:
                from sic.model import load

                explain_with(load(folder), attribution)  # refused now, not after all others are trained
            entries.append(Entry(name, folder, seed, attribution or None))
    order = list(methods)
    return sorted(entries, key=lambda entry: (order.index(entry.name), seeds.index(entry.seed)))


def _is_trained(folder: Path) -> bool:
    """Whether there is a model in it that has been measured, which is the last thing that a fit does."""
    from sic.directory import CONFIG, read_config

    return (folder / CONFIG).is_file() and bool(read_config(folder)[0].figures)


def _train(
    method: str, seed: int, folder: Path, data: str, said: dict[str, Any], run: dict[str, Any], talker: Talker
) -> None:
    from sic.directory import RUN, read_run
    from sic.fitting import fit

    resume = (folder / RUN).is_file()
    if resume:
        before, now = Path(read_run(folder)["data"]["opened_with"]["where"]), Path(data).resolve()
        if str(before) != data and now not in (before, *before.parents) and before not in now.parents:
            raise SicError(f"{folder} was trained on {before}, not on {data}; choose another --out.")
    if resume and _is_trained(folder):
        from sic.training import recorded_settings

        recorded_settings(folder, said | {"seed": seed})  # or the sentence that says what differs
        talker.say(f"{folder} is finished.")
        return
    talker.say(f"{'Continuing' if resume else 'Training'} {method}, seed {seed} → {folder}")
    fit(data, folder, resume=resume, reporter=talker, method=method, seed=seed, **run, **said)


def _finished(runs: list[str]) -> list[Entry]:
    """Entries of finished runs, named by their method, and by their backbone too where there are several."""
    from sic.directory import read_config

    found = []
    for text in runs:
        name, equals, rest = text.rpartition("=")
        path, colon, attribution = rest.rpartition(":")
        folder, way = (Path(path), attribution) if colon and not Path(rest).exists() else (Path(rest), None)
        config, _ = read_config(folder)
        method = config.method + (f":{way}" if way else "")
        entry = Entry(method, folder, int(config.training.get("seed", 0)), way)
        found.append((name if equals else None, config.backbone, entry))
    several = len({backbone for _, backbone, _ in found}) > 1
    return [
        replace(entry, name=said or (f"{entry.name} {backbone}" if several else entry.name))
        for said, backbone, entry in found
    ]


def _results(
    entries: list[Entry],
    data: str | None,
    protocols: list[str],
    limit: int | None,
    device: str,
    out: Path,
    talker: Talker,
) -> dict[str, list[dict[str, Any]]]:
    """The evaluation of every entry, by name; read from `out/results` where the same was measured before."""
    from sic.directory import read_config
    from sic.files import write_atomically
    from sic.model import load

    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        _, checksum = read_config(entry.folder)
        asked = {"model": checksum, "data": data, "only": protocols, "limit": limit, "attribution": entry.attribution}
        file = out / RESULTS / f"{_file_name(entry)}-{checksum[:8]}.json"
        before = loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if before.get("asked") != asked:
            talker.say(f"Measuring {entry.name}, seed {entry.seed} …")
            model = load(entry.folder, device)
            explain_with(model, entry.attribution)
            suite = open_suite(model, entry.folder, data, limit, None, 0, talker, "compare")
            before = {"asked": asked, "result": suite.run(protocols)}
            file.parent.mkdir(parents=True, exist_ok=True)
            text = dumps(before, indent=1, ensure_ascii=False)
            write_atomically(file, lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        results[entry.name].append(before["result"])
    measured_on = {result["data"] for rows in results.values() for result in rows}
    if len(measured_on) > 1:
        talker.warn(f"These were not measured on the same images: {'; '.join(sorted(measured_on))}.")
    return dict(results)


def _file_name(entry: Entry) -> str:
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in entry.name)
    return f"{safe}-seed{entry.seed}"


def _report(entries: list[Entry], results: dict[str, list[dict[str, Any]]], settings: dict[str, Any]) -> dict[str, Any]:
    from sic.evaluate.compare import collect, summary

    methods = collect(results)
    return {
        "command": shlex.join(["sic", *sys.argv[1:]]),
        "settings": settings,
        "data": sorted({result["data"] for rows in results.values() for result in rows}),
        "images": {name: [result["images"] for result in rows] for name, rows in results.items()},
        "runs": {name: [str(e.folder) for e in entries if e.name == name] for name in methods},
        "seeds": {name: [e.seed for e in entries if e.name == name] for name in methods},
        "methods": methods,
        "summary": summary(methods),
    }


def _write(report: dict[str, Any], out: Path) -> list[Path]:
    """The comparison as JSON, Markdown, CSV and LaTeX, and the plots."""
    from sic.evaluate.compare import latex, markdown, table, tidy_csv
    from sic.evaluate.metrics import FUNNYBIRDS
    from sic.evaluate.plots import bars, radar, save

    methods: dict[str, Values] = report["methods"]
    rows = table(methods)
    texts = {
        "json": dumps(report, indent=1, ensure_ascii=False),
        "md": markdown(rows),
        "csv": tidy_csv(methods, report["seeds"]),
        "tex": latex(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix, text in texts.items():
        files.append(out / f"{COMPARISON}.{suffix}")
        files[-1].write_text(text, encoding="utf-8")
    files.append(save(bars(rows, methods), out / "bars.png"))
    if any(row.metric.key == "SD" for row in rows):
        rings = {name: {key: cell["mean"] for key, cell in found.items()} for name, found in report["summary"].items()}
        note = "means over seeds; importance of a part: the sum of its contributions"
        files.append(save(radar(rings, FUNNYBIRDS, "FunnyBirds", note), out / "radar.png"))
    return files


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    from sic.evaluate.compare import table

    rows: list[Row] = table(report["methods"])
    shown = Table("", title=", ".join(report["data"]), title_justify="left", title_style="bold")
    for name, seeds in report["seeds"].items():
        shown.add_column(f"{name}\n{len(seeds)} seed{'s' if len(seeds) > 1 else ''}", justify="right")
    for row in rows:
        texts = {method: found.text(row.metric) for method, found in row.cells.items()}
        bold = [styled(text, "bold") if method in row.best else text for method, text in texts.items()]
        shown.add_row(row.metric.heading, *bold)
    OUT.print(shown)
