"""Plots of metrics."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.text import Text

from sic.evaluate.compare import Row, Values
from sic.evaluate.metrics import FUNNYBIRDS, KINDS, Metric, funnybirds_values

BLUE, RED, GREY = "#2c6fbb", "#c23b22", "#6b6b6b"
PALETTE = (BLUE, RED, "#3a8f4d", "#d08a1d", "#7b52ab", "#4b4b4b", "#1f9ea8", "#b0508f")
NAMED = 30
"""The most classes that a confusion matrix names."""


def draw(result: Mapping[str, Any], classes: Sequence[str], folder: Path) -> list[Path]:
    """Write a PNG for each part of the `result` of a `Suite` that has a plot; returns the files."""
    figures: dict[str, Figure] = {}
    accuracy = result.get("accuracy", {})
    if "reliability" in accuracy:
        figures["reliability"] = reliability(accuracy["reliability"], accuracy["ece"])
    if "confusion" in accuracy:
        figures["confusion"] = confusion(np.array(accuracy["confusion"]), classes)
    if "faithfulness" in result:
        figures["deletion"] = removal(result["faithfulness"])
    if birds := result.get("funnybirds"):
        figures["radar"] = funnybirds_radar(birds)
    return [save(figure, folder / f"{name}.png") for name, figure in figures.items()]


def save(figure: Figure, path: Path) -> Path:
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # show dollar signs in class names as they are
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _axes(title: str, width: float = 5.4, height: float = 5.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=12, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def reliability(curve: Sequence[Mapping[str, Any]], error: float | None) -> Figure:
    """Accuracy against confidence, with the number of answers below."""
    figure = Figure(figsize=(5.4, 5.6), dpi=130, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    used = [b for b in curve if b["answers"]]
    top.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="perfect calibration")
    x, y = [b["confidence"] for b in used], [b["accuracy"] for b in used]
    top.plot(x, y, color=BLUE, marker="o", ms=4, lw=1.6, label="this model")
    for b in used:
        top.plot([b["confidence"]] * 2, [b["confidence"], b["accuracy"]], color=RED, lw=1, alpha=0.6)
    title = "Reliability" if error is None else f"Reliability: expected calibration error {error:.3f}"
    top.set_title(title, fontsize=12, weight="bold")
    top.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
    top.legend(frameon=False, fontsize=9, loc="upper left")
    width = curve[0]["high"] - curve[0]["low"]
    bottom.bar([b["low"] for b in curve], [b["answers"] for b in curve], 0.92 * width, align="edge", color=BLUE)
    bottom.set(xlabel="confidence", ylabel="answers")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def confusion(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """The confusion matrix: true classes in rows, predictions in columns; colours are shares of a row."""
    number = len(classes)
    side = min(3.6 + 0.3 * number, 12)
    figure, axes = _axes("Confusion matrix", side + 1.2, side)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="prediction", ylabel="true class")
    if number <= NAMED:
        axes.set_xticks(range(number), classes, rotation=90, fontsize=8)
        axes.set_yticks(range(number), classes, fontsize=8)
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "#222222"
            axes.text(column, row, counts[row, column], ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(picture, ax=axes, shrink=0.7, label="share of the images of the true class")
    return figure


def removal(found: Mapping[str, Any]) -> Figure:
    """Deletion and insertion, in the order of the explanation and in random order."""
    figure = Figure(figsize=(9, 4), dpi=130, layout="constrained")
    for axes, (name, what) in zip(
        figure.subplots(1, 2, sharey=True),
        {"deletion": "pixels removed", "insertion": "pixels restored"}.items(),
        strict=True,
    ):
        curves = found[name]
        shares = np.linspace(0, 1, len(curves["curve"]))
        for key, label, colour in (("", "by contribution", BLUE), ("random_", "in random order", GREY)):
            area = curves[f"{key}area"]
            axes.plot(shares, curves[f"{key}curve"], color=colour, lw=1.8, label=f"{label} (area {area:.2f})")
        axes.set_title(name.capitalize(), fontsize=12, weight="bold")
        axes.set(xlabel=f"share of {what}", xlim=(0, 1), ylim=(0, 1.02))
        axes.legend(frameon=False, fontsize=9, loc="best")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(f"share of {found['images']} images with the same prediction")
    return figure


def bars(rows: Sequence[Row], values: Mapping[str, Values]) -> Figure:
    """A panel for each metric with a better direction: a bar per method with its standard deviation, a dot per seed.

    The FunnyBirds metrics of alpha are in the table only.
    """
    drawn = [row for row in rows if row.metric.higher_is_better is not None and not row.metric.key.endswith("_alpha")]
    methods = list(values)
    across = min(4, max(len(drawn), 1))
    down = max(1, -(-len(drawn) // across))
    size = (2.6 * across + 1.4, (0.3 * len(methods) + 0.75) * down + 0.3)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes in grid.ravel()[len(drawn) :]:
        axes.set_visible(False)
    for axes, row in zip(grid.ravel(), drawn, strict=False):
        for place, method in enumerate(methods):
            cell = row.cells[method]
            if cell.mean is not None:
                colour = PALETTE[place % len(PALETTE)]
                axes.barh(place, cell.mean, 0.7, color=colour, alpha=0.75, xerr=cell.spread, capsize=2.5)
            seeds = [value for value in values[method][row.metric.key] if value is not None]
            if len(seeds) > 1:
                axes.plot(seeds, [place] * len(seeds), "o", ms=3, color="#222222", alpha=0.7)
        axes.set_title(f"{row.metric.label} {'↑' if row.metric.higher_is_better else '↓'}", fontsize=9)
        axes.set_yticks(range(len(methods)), methods, fontsize=8)
        axes.tick_params(axis="x", labelsize=7.5)
        axes.set_xlim(min(0, axes.get_xlim()[0]), max(1, axes.get_xlim()[1]) if row.metric.key != "ece" else None)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].invert_yaxis()
    return figure


def funnybirds_radar(found: Mapping[str, Any]) -> Figure:
    """The radar chart of the FunnyBirds part of an evaluation: one polygon for each kind of map."""
    rings = {words: funnybirds_values(found, kind) for kind, words in KINDS.items() if kind in found}
    return radar(rings, FUNNYBIRDS, "FunnyBirds", f"{found['images']} test images")


def radar(
    rings: Mapping[str, Mapping[str, float | None]], axes: Sequence[Metric], title: str, note: str = ""
) -> Figure:
    """A radar chart: one polygon for each name in `rings`, `axes` clockwise from the top, from 0 to 1.

    A missing value (None) leaves a gap in its polygon.
    """
    columns = _columns(list(rings))
    rows = -(-len(rings) // columns)
    width, height, legend = 7.0, 6.3 + 0.24 * rows, 0.35 + 0.24 * rows  # inches
    figure = Figure(figsize=(width, height), dpi=130)
    plot = PolarAxes(figure, (1.4 / width, (legend + 0.55) / height, 4.2 / width, 4.2 / height))
    figure.add_axes(plot)
    plot.set_theta_offset(math.pi / 2)
    plot.set_theta_direction(-1)
    angles = [2 * math.pi * number / len(axes) for number in range(len(axes))]
    for number, (name, values) in enumerate(rings.items()):
        colour = PALETTE[number % len(PALETTE)]
        radii = [_radius(values.get(metric.key)) for metric in axes]
        dashes = "-" if number < len(PALETTE) else "--"
        plot.plot(
            [*angles, angles[0]], [*radii, radii[0]], dashes, color=colour, lw=1.8, marker="o", ms=3.5, label=name
        )
        if len(rings) <= 3 and not any(map(math.isnan, radii)):
            plot.fill(angles, radii, color=colour, alpha=0.1)
    plot.set_ylim(0, 1)
    plot.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color="#888888", fontsize=8)
    plot.set_rlabel_position(180 / len(axes))
    plot.set_xticks(angles, [""] * len(axes))
    plot.grid(color="#d5d5d5", lw=0.7)
    plot.spines["polar"].set_color("#bbbbbb")
    for angle, metric in zip(angles, axes, strict=True):
        name = textwrap.fill(metric.title.capitalize(), 14, break_long_words=False)
        plot.text(angle, 1.1, name, ha=_side(angle), va="center", fontsize=9.5)
    figure.suptitle(title, y=1 - 0.3 / height, fontsize=13, weight="bold")
    place = (0.5, 0.25 / height)
    figure.legend(loc="lower center", bbox_to_anchor=place, frameon=False, fontsize=9, ncols=columns)
    figure.text(0.5, 0.1 / height, note, ha="center", fontsize=7.5, color="#6b6b6b")
    return figure


def _radius(value: float | None) -> float:
    return math.nan if value is None else min(max(value, 0.0), 1.0)


def _side(angle: float) -> str:
    """The alignment of a label outside the rim."""
    side = math.sin(angle)
    return "center" if abs(side) < 0.2 else "left" if side > 0 else "right"


def _columns(names: Sequence[str]) -> int:
    """The columns of a legend that fit side by side."""
    widest = max(map(len, names), default=1)
    return max(1, min(len(names), 64 // (widest + 6)))
