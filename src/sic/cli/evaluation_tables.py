"""What `sic evaluate` found, as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from sic.cli.console import OUT, styled

CLASSES = 12
"""Rows of the table of classes; the worst are shown."""


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def show(result: Mapping[str, Any]) -> None:
    """One table for each protocol, then what was left out."""
    OUT.print(f"{result['images']} {result['data']}")
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
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    return table


def _accuracy(found: Mapping[str, Any]) -> Table:
    table = _table("Accuracy and calibration", "figure", "value")
    rows = {
        "accuracy": "accuracy",
        "balanced_accuracy": "balanced accuracy",
        "map": "mean average precision",
        "per_label_accuracy": "accuracy of all labels",
        "exact_match": "all labels of an image right",
        "auroc": "AUROC, mean over classes",
        "similar_case": "images with a similar case",
    }
    for key, words in rows.items():
        if key in found:
            table.add_row(words, percent(found[key]))
    table.add_row("expected calibration error", number(found["ece"]))
    return table


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
    metrics = ("A", "BI", "CSDC", "PC", "DC", "D", "SD", "TS")
    table = _table(title, "what is summed", *metrics, "Com", "mean of 4", "Cor", "Con", "threshold")
    for kind, words in {"contributions": "contributions", "alpha": "alpha (opacity)"}.items():
        if kind in found:
            values = {**found, **found[kind]}
            table.add_row(words, *(number(values[key], 2) for key in (*metrics, "Com", "Com_mean", "Cor", "Con")),
                          number(values["threshold"]))  # fmt: skip
    return table


def _localisation(found: Mapping[str, Any]) -> Table:
    table = _table("Localisation", "contributions that lie …", "share", "by chance", "measured on")
    for side in (2, 3):
        if game := found.get(f"grid_{side}x{side}"):
            where = f"in the right cell of {side}×{side} images"
            table.add_row(where, percent(game["share"]), percent(game["chance"]), f"{game['grids']} grids")
    for group, suffix in {"all": "", "found": ", classes that were found"}.items():
        if "boxes" in found and found["boxes"][group]["maps"]:
            boxes = found["boxes"][group]
            for key, words in {
                "energy": "inside the boxes",
                "hit": "inside: the highest one",
                "overlap": "inside: the highest ones, as many as fit",
            }.items():
                table.add_row(words + suffix, percent(boxes[key]), percent(boxes["area"]), f"{boxes['maps']} maps")
    return table


def _faithfulness(found: Mapping[str, Any]) -> Table:
    table = _table(f"Faithfulness ({found['images']} images)", "check", "result", "compare with")
    for key, words, better in (("deletion", "taken away", "lower"), ("insertion", "made sharp", "higher")):
        curves = found[key]
        table.add_row(
            f"answers that stay while pixels are {words}, most contributing first ({better} is better)",
            percent(curves["area"]),
            f"{percent(curves['random_area'])} in random order, beaten in {percent(curves['beats_random'])}",
        )
    shaken, stages = found["stability"], found["randomisation"]["stages"]
    table.add_row(
        "map under invisible noise: rank correlation",
        number(shaken["rank_correlation"]),
        f"{number(shaken['worst'])} at worst",
    )
    passed, limit = found["randomisation"]["passed"], f" (below {found['randomisation']['limit']})"
    verdict = styled("pass", "green") if passed else styled("FAIL: it does not depend on them", "red")
    table.add_row(
        "map after all weights are randomised: rank correlation, SSIM",
        f"{number(stages[-1]['rank_correlation'])}, {number(stages[-1]['ssim'])}",
        verdict.append(limit, "default"),
    )
    return table


def _unfamiliar(found: Mapping[str, Any]) -> Table:
    title = "Unfamiliar images, refused by a threshold that 95 % of the familiar ones pass"
    table = _table(title, "images", "number", "refused", "AUROC", "no class at 50 %")
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
    "unfamiliar": _unfamiliar,
}
