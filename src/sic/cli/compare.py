"""`sic compare`: compare methods over several seeds in one table."""

import shlex
import sys
from collections import defaultdict
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json, styled
from sic.cli.entries import (
    Entry,
    finished,
    methods_of,
    seeds_of,
    settings_of_methods,
    teachers_first,
    trained,
    training_jobs,
)
from sic.cli.evaluate import Only, open_suite
from sic.cli.jobs import run_all
from sic.cli.options import (
    Device,
    Devices,
    Group,
    Json,
    LayoutName,
    Limit,
    Nodes,
    Roi,
    Workers,
    explain_with,
    given,
    pick_device,
    tokens,
    with_settings,
)
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.evaluate.compare import Row, Values

COMPARISON, RESULTS = "comparison", "results"


@with_settings("seed", "method", "attribution")
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Finished runs (model directories). NAME=RUN gives one a name, RUN:ATTRIBUTION selects an attribution "
            "method, RUN:all selects all of them."
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            help="Methods to train, such as sic,bcos. METHOD:ATTRIBUTION selects an attribution, METHOD:all all.",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Dataset to train and evaluate on; runs have their own.")] = None,
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    seeds: Annotated[str, typer.Option(help="Seeds to train each method with.")] = "0,1,2",
    special: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of one method, such as sic:lr=0.001; bagnet:backbone= resets one."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, results, tables and plots.")] = Path("runs/compare"),
    jobs: Annotated[int, typer.Option(min=1, help="Trainings to run in parallel, one per GPU if possible.")] = 1,
    only: Only = None,
    limit: Limit = None,
    device: Device = None,
    devices: Devices = None,
    nodes: Nodes = None,
    workers: Workers = None,
    json: Json = False,
    part: Annotated[bool, typer.Option("--part", hidden=True)] = False,
    **said: Any,
) -> None:
    """Train methods (or take finished runs), evaluate them, and compare them in one table.

    Run the same command again after an interruption: finished runs are neither trained nor evaluated again.
    """
    run = given({"layout": layout, "group": group, "roi": roi, "devices": devices, "nodes": nodes, "workers": workers})
    said = given(said)
    _refuse(runs, train, data, [*said, *run, *(special or [])])
    from sic.evaluate.suite import chosen

    protocols = chosen(only)
    with Talker() as talker:
        if train is None:
            entries = finished(runs or [])
        else:
            own = settings_of_methods(special or [], methods_of(train))
            methods = {name: said | own[name] for name in own}
            if jobs > 1:  # below, their results are found finished
                from sic.training.choose import loader_workers

                common = {"workers": loader_workers(jobs), **run, **said, "data": data, "out": out, "only": only}
                flags_of_all = tokens(common | {"limit": limit, "device": device})
                for names in teachers_first(methods):
                    run_all(training_jobs(names, seeds_of(seeds), special or [], out, flags_of_all), jobs, talker)
            entries = trained(methods, str(data), run, seeds_of(seeds), out, talker)
        # Models trained here are evaluated on their own data, opened as for the training.
        results = _results(entries, None if train else data, protocols, limit, pick_device(device), out, talker)
        if part:
            return
        settings = {"train": train, "data": data, "only": protocols, "limit": limit, **run, **said}
        report = _report(entries, results, settings | {"set": special or []})
        files = _write(report, out)
    if json:
        print_json(report)
    else:
        _show(report)
        OUT.print(f"In {out}: {', '.join(path.name for path in files)}.")


def _refuse(runs: list[str] | None, train: str | None, data: str | None, settings: list[str]) -> None:
    """Refuse a call with neither runs nor methods to train, or with both."""
    if (train is None) == (not runs):
        raise SicError(
            "Name finished runs, or methods to train: sic compare RUN RUN …, or --train sic,bcos --data DATA."
        )
    if runs and settings:
        raise SicError(f"{', '.join(sorted(settings))}: settings of the training do not apply to finished runs.")
    if train is not None and data is None:
        raise SicError("--train needs --data: a folder of images, a table of them, or birds.")


def _results(
    entries: list[Entry],
    data: str | None,
    protocols: list[str],
    limit: int | None,
    device: str,
    out: Path,
    talker: Talker,
) -> dict[str, list[dict[str, Any]]]:
    """The evaluation of every entry, by name; results in `out/results` are not measured again."""
    from sic.directory import read_config
    from sic.files import write_json
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
            write_json(file, before)
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
