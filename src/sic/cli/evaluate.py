"""`sic evaluate`: measure a model and its explanations with all protocols that apply."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sic.cli.console import OUT, Talker, print_json, styled
from sic.cli.options import (
    Attribution,
    Device,
    Json,
    Labelled,
    Limit,
    ModelFolder,
    Seed,
    explain_with,
    held_out_predictions,
    image_files,
    labelled_images,
    pick_device,
)
from sic.errors import SicError
from sic.evaluate.headline import Headline, without_copies
from sic.evaluate.metrics import (
    ACCURACY,
    EVALUATION,
    FAITHFULNESS,
    FRAME,
    FUNNYBIRDS,
    FUNNYBIRDS_SUMMARY,
    Metric,
    funnybirds_maps,
    funnybirds_values,
    localisation_shares,
)

if TYPE_CHECKING:
    from sic.evaluate.suite import Suite
    from sic.model import Model

CLASSES = 12
"""Rows of the table of classes; those with the lowest recall are shown."""
Only = Annotated[
    str | None,
    typer.Option(help="Only these protocols: accuracy,funnybirds,localisation,faithfulness,frame,matches,unfamiliar."),
]


def evaluate(
    model: ModelFolder,
    data: Labelled = None,
    only: Only = None,
    limit: Limit = None,
    strangers: Annotated[
        Path | None, typer.Option(help="A folder of unfamiliar images, which show none of the classes.")
    ] = None,
    attribution: Attribution = None,
    out: Annotated[Path | None, typer.Option(help=f"Write {EVALUATION} and the plots to this folder.")] = None,
    device: Device = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure accuracy and calibration, and how faithful the explanations are to the model."""
    from sic.evaluate.suite import chosen
    from sic.model import load

    protocols = chosen(only)
    if strangers is not None and "unfamiliar" not in protocols:
        raise SicError("--strangers is for the protocol unfamiliar, which --only leaves out.")
    with Talker() as talker:
        loaded = load(model, pick_device(device))
        explain_with(loaded, attribution)
        suite = open_suite(loaded, model, data, limit, strangers, seed, talker, "evaluate")
        result = {"model": str(model), "method": loaded.config.method, "attribution": attribution, "seed": seed}
        result |= suite.run(protocols)
        drawn = [] if out is None else _write(result, loaded.classes, out)
    if json:
        print_json(result)
        return
    show(result)
    if out is not None:
        OUT.print(f"Written: {out / EVALUATION}, {', '.join(path.name for path in drawn)}.")


def open_suite(
    model: "Model",
    folder: Path,
    data: str | None,
    limit: int | None,
    strangers: Path | None,
    seed: int,
    talker: Talker,
    command: str,
) -> "Suite":
    """The suite of protocols for a model and the given images, or those of its own dataset."""
    from sic.data.loading import readable, view_batches
    from sic.evaluate.suite import Suite
    from sic.run import Run

    run = Run(folder, model.config, f"sic {command} {folder} DATA")
    opened = labelled_images(run, data, talker)
    predictions = held_out_predictions(model, run, opened, limit, talker)
    others = {}
    if strangers is not None:
        files, _ = readable(image_files([strangers])[: limit or None])
        if not files:
            raise SicError(f"No image in {strangers} can be read.")
        others[_kind(strangers)] = view_batches(files, model.config.preprocessing)
    return Suite(model, opened, predictions, limit, others, seed, talker.advance)


def _kind(strangers: Path) -> str:
    """The name of a folder of unfamiliar images in results, which have names of their own for others."""
    from sic.evaluate.unfamiliar import KINDS

    name = strangers.resolve().name
    return f"folder {name}" if name in KINDS else name


def _write(result: dict[str, Any], classes: list[str], folder: Path) -> list[Path]:
    """Write the JSON and the plots; returns the files of the plots."""
    from sic.evaluate.plots import draw
    from sic.files import write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / EVALUATION, result)
    return draw(result, classes, folder)


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def show(result: Mapping[str, Any]) -> None:
    """Print one table for each protocol, then the protocols that do not apply."""
    OUT.print(f"{result['images']} {result['data']}")
    if headline := Headline.of(result.get("accuracy", {})):
        OUT.print(headline.sentence)
    for sentence in without_copies(result.get("accuracy", {}).get("without_copies")):
        OUT.print(sentence)
    for name, table in TABLES.items():
        if name in result:
            OUT.print(table(result[name]))
    if "accuracy" in result:
        OUT.print(_classes(result["accuracy"]["per_class"]))
    for name, reason in result["left_out"].items():
        OUT.print(f"{name}: not measured, {reason}.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for position, column in enumerate(columns):
        left = position == 0 or column == "meaning"
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def _values(title: str, metrics: Sequence[Metric], values: Mapping[str, Any]) -> Table:
    """A table of the metrics that have a value."""
    table = _table(title, "metric", "value", "meaning")
    for metric in metrics:
        if metric.key in values:
            table.add_row(metric.title, metric.text(values[metric.key]), metric.meaning)
    return table


def _accuracy(found: Mapping[str, Any]) -> Table:
    return _values("Accuracy and calibration, if every image had to be answered", ACCURACY, found)


def _classes(rows: list[dict[str, Any]]) -> Table:
    shown = sorted((row for row in rows if row["images"]), key=lambda row: row["recall"])[:CLASSES]
    title = "Classes" if len(shown) == len(rows) else f"Classes: the {len(shown)} with the lowest recall of {len(rows)}"
    table = _table(title, "class", "images", "recall", "precision", "average precision", "AUROC")
    for row in shown:
        shares = [percent(row[key]) for key in ("recall", "precision", "average_precision", "auroc")]
        table.add_row(row["class"], str(row["images"]), *shares)
    return table


def _funnybirds(found: Mapping[str, Any]) -> Table:
    title = f"FunnyBirds ({found['images']} images, {found['objects']} background objects)"
    keys = [metric.key for metric in (*FUNNYBIRDS, *FUNNYBIRDS_SUMMARY)]
    table = _table(title, "map", *keys)
    for kind, words in funnybirds_maps(found).items():
        values = funnybirds_values(found, kind)
        table.add_row(words, *(number(values[key], 2) for key in keys))
    return table


def _localisation(found: Mapping[str, Any]) -> Table:
    table = _table("Localisation", "metric", "share", "by chance", "measured on", "meaning")
    for share in localisation_shares(found):
        title = share.metric.title + ("" if share.group == "all" else ", predicted classes")
        table.add_row(title, percent(share.value), percent(share.chance), share.measured_on, share.metric.meaning)
    return table


def _faithfulness(found: Mapping[str, Any]) -> Table:
    table = _table(f"Faithfulness ({found['images']} images)", "check", "result", "compare with")
    for metric in FAITHFULNESS[:2]:
        curves = found[metric.key]
        better = "higher" if metric.higher_is_better else "lower"
        table.add_row(
            f"{metric.title}: {metric.meaning} ({better} is better)",
            percent(curves["area"]),
            f"{percent(curves['random_area'])} in random order, which it beats on {percent(curves['beats_random'])}",
        )
    shaken, stages = found["stability"], found["randomisation"]["stages"]
    table.add_row(
        "stability: rank correlation of maps with and without invisible noise",
        number(shaken["rank_correlation"]),
        f"worst {number(shaken['worst'])}",
    )
    passed, limit = found["randomisation"]["passed"], f" (below {found['randomisation']['limit']})"
    verdict = styled("pass", "green") if passed else styled("FAIL: maps do not depend on the weights", "red")
    table.add_row(
        "randomisation: rank correlation and SSIM with maps of random weights",
        f"{number(stages[-1]['rank_correlation'])}, {number(stages[-1]['ssim'])}",
        verdict.append(limit, "default"),
    )
    return table


def _matches(found: Mapping[str, Any]) -> Table:
    table = _table(f"Matched regions ({found['images']} images)", "measure", "result", "compare with")
    titles = {
        "matches": "both sides lie on the same part, weighted by evidence",
        "whole_maps": "the same, of whole maps",
        "same_place": "the same, of the same place in both pictures",
    }
    if "matched_share" in found:
        table.add_row("evidence that has a match", percent(found["matched_share"]), "")
    for kind, each in found.get("part_agreement", {}).items():
        low, high = map(percent, each["interval"])
        table.add_row(
            titles[kind], f"{percent(each['agreement'])} ({low} to {high})", f"{percent(each['chance'])} by chance"
        )
    if cause := found.get("causality"):
        drop, random = number(cause["measured"]), number(cause["random"])
        table.add_row(
            "evidence lost by blanking a region", drop, f"{number(cause['claimed'])} claimed, {random} at random"
        )
        low, high = map(number, cause["interval"])
        table.add_row("rank correlation of claimed and measured", number(cause["spearman"]), f"{low} to {high}")
        low, high = map(number, cause["above_other_class"])
        other = number(cause["spearman_other_class"])
        table.add_row("the same, by the map of the second best class", other, f"lower by {low} to {high}")
        table.add_row("the same, by a uniform map", number(cause["spearman_uniform"]), "")
    if "images_per_s" in found:
        table.add_row("images per second, with matches", number(found["images_per_s"]), "")
    return table


def _frame(found: Mapping[str, Any]) -> Table:
    title = f"The outer tenth of the picture ({found['images']} images, {percent(found['area'])} of the area)"
    return _values(title, FRAME, {f"frame_{key}": value for key, value in found.items()})


def _unfamiliar(found: Mapping[str, Any]) -> Table:
    title = "Unfamiliar images, rejected at a threshold that accepts 95 % of the familiar ones"
    table = _table(title, "images", "number", "rejected", "AUROC", "no class at 50 %")
    familiar = found["familiar"]
    table.add_row("familiar", str(familiar["images"]), "", "", percent(familiar["no_similar_case"]))
    for name, kind in found.items():
        if name != "familiar":
            by = kind["probability"]
            own = percent(kind["no_similar_case"])
            table.add_row(name, str(kind["images"]), percent(by["flagged"]), number(by["auroc"]), own)
    return table


TABLES = {
    "accuracy": _accuracy,
    "funnybirds": _funnybirds,
    "localisation": _localisation,
    "faithfulness": _faithfulness,
    "matches": _matches,
    "frame": _frame,
    "unfamiliar": _unfamiliar,
}
