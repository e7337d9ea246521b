"""The figures of the report as files: supports, heat maps, silhouettes, projection, explanations."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from sic.data.dataset import Watch
from sic.explain import Overview
from sic.explain.overview import SupportView
from sic.explain.prose import percent
from sic.report.classes import IN_A_TABLE, PALETTE, blue, support_colours, support_map
from sic.report.page import Page

PANEL = 1.25
"""Size of a picture in inches."""
CLASSES_PER_SHEET = 12
GREY = "#6b6b6b"


def draw(page: Page, folder: Path, formats: Sequence[str], watch: Watch | None = None) -> list[Path]:
    """Write every figure in every format; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    overview = page.overview
    figures: dict[str, Figure] = {"projection": projection(overview)}
    for number, start in enumerate(range(0, len(overview.classes), CLASSES_PER_SHEET), 1):
        labels = range(start, min(start + CLASSES_PER_SHEET, len(overview.classes)))
        figures[f"supports-{number:02d}"] = support_sheet(overview, labels)
    for rows, matrix in (("cases", overview.support_similarity), ("images", overview.image_similarity)):
        if matrix is not None:
            figures[f"similarity-{rows}"] = heat_map(matrix / overview.temperature, rows, overview.classes)
    if overview.image_silhouette is not None or overview.support_silhouette is not None:
        figures["silhouette"] = silhouette(overview)
    files = []
    for name, figure in figures.items():
        for text in figure.findobj(Text):
            text.set_parse_math(False)  # a dollar in a name is a dollar
        for suffix in formats:
            files.append(folder / f"{name}.{suffix}")
            figure.savefig(files[-1], dpi=200)
    shown = [(group.anchor, number, one) for group in page.groups for number, one in enumerate(group.examples, 1)]
    for done, (kind, number, example) in enumerate(shown, 1):
        for suffix in formats:
            files.append(folder / f"explanation-{kind}-{number:02d}.{suffix}")
            example.explanation.save(files[-1])
        if watch is not None:
            watch("drawing", done, len(shown))
    return files


def support_sheet(overview: Overview, labels: Sequence[int]) -> Figure:
    """A row per class; for each support its image, its raw signed map and its colour picture."""
    groups = [overview.of_class(label) for label in labels]
    most = max(1, *(len(group) for group in groups))
    width, height = most * (3 * PANEL + 0.25) + 1.3, len(groups) * (PANEL + 0.34) + 0.15
    figure = Figure(figsize=(width, height))
    for row, (label, group) in enumerate(zip(labels, groups, strict=True)):
        top = height - 0.3 - row * (PANEL + 0.34)
        figure.text(
            0.08 / width, (top - PANEL / 2) / height, _wrapped(overview.classes[label]), fontsize=9, va="center"
        )
        for slot, view in enumerate(group):
            left = 1.25 + slot * (3 * PANEL + 0.25)
            share = "" if view.negative_mass is None else f", {percent(view.negative_mass)} negative"
            title = f"{view.name}: {_end(view.source)}, ‖v‖ {view.norm:.2f}{share}"
            figure.text(left / width, (top + 0.05) / height, title, fontsize=6.5, color=GREY)
            for column, pixels in enumerate(_three(view)):
                box = ((left + column * PANEL) / width, (top - PANEL) / height, 0.96 * PANEL / width, PANEL / height)
                _panel(figure.add_axes(box), pixels)
    return figure


def _three(view: SupportView) -> list[object]:
    if view.image is None or view.map is None or view.rgba is None:
        return [None]
    return [view.image, support_map(view)[0], support_colours(view)]


def _panel(axes: Axes, pixels: object) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")
    if pixels is None:
        axes.text(0.5, 0.5, "image not kept\nwith this model", ha="center", va="center", fontsize=7, color=GREY)
    else:
        axes.imshow(pixels, interpolation="nearest")  # type: ignore[arg-type]


def heat_map(evidence: NDArray[np.float64], rows: str, classes: Sequence[str]) -> Figure:
    """Mean evidence per case, C×C; `rows` names what the rows are. Shows numbers if there is room."""
    number = len(evidence)
    side = min(max(3.0, 0.45 * number), 16.0)
    figure = Figure(figsize=(side + 2.2, side + 1.2), layout="constrained")
    axes = figure.add_subplot()
    top = float(np.nanmax(evidence, initial=1e-12))
    colours = np.ones((number, number, 3))
    for (row, column), value in np.ndenumerate(evidence):
        if np.isnan(value):
            continue
        colours[row, column], dark = blue(max(0.0, value / top))
        if number <= 25:
            ink = "white" if dark else "#111111"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    axes.imshow(colours, interpolation="nearest")
    size = 8 if number <= 40 else 4
    axes.set_xticks(range(number), classes, rotation=90, fontsize=size)
    axes.set_yticks(range(number), classes, fontsize=size)
    axes.set_xlabel("compared with the cases of", fontsize=9)
    axes.set_ylabel(f"{rows} of", fontsize=9)
    axes.set_title(f"Evidence per case (white 0, dark {top:.2f})", fontsize=9)
    return figure


def silhouette(overview: Overview) -> Figure:
    """The silhouette score of each class as a bar."""
    scores = overview.image_silhouette or overview.support_silhouette
    assert scores is not None
    values = [np.nan if value is None else value for value in scores.per_class]
    figure = Figure(figsize=(5.5, 0.8 + 0.22 * len(values)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(range(len(values)), values, color=[PALETTE[0] if value >= 0 else PALETTE[5] for value in values])
    axes.axvline(0, color="#222222", linewidth=0.8)
    axes.axvline(scores.overall, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(values)), overview.classes, fontsize=8)
    axes.set_xlim(min(0.0, *np.nan_to_num(values)) - 0.05, 1)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    of = "images" if overview.image_silhouette else "cases"
    axes.set_title(f"Silhouette over {of}: {scores.overall:.3f}", fontsize=9)
    return figure


def projection(overview: Overview) -> Figure:
    """Latents in the plane: dots are images, numbered diamonds supports."""
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    axes = figure.add_subplot()
    points = overview.projection.points
    for support in (False, True):
        chosen = [point for point in points if (point.support is not None) == support]
        colours = [PALETTE[(point.labels[0] if point.labels else 0) % len(PALETTE)] for point in chosen]
        style = {"marker": "D", "s": 55, "edgecolors": "black", "zorder": 3} if support else {"s": 12, "alpha": 0.7}
        axes.scatter([point.x for point in chosen], [point.y for point in chosen], c=colours, **style)
    for point in points:
        if point.support is not None:
            number = overview.supports[point.support].name.split()[-1]
            axes.annotate(number, (point.x, point.y), (5, 5), textcoords="offset points", fontsize=7)
    if len(overview.classes) <= IN_A_TABLE:
        for label, name in enumerate(overview.classes):
            own = np.array([(point.x, point.y) for point in points if point.labels == (label,)]).reshape(-1, 2)
            if len(own):
                place = np.median(own[:, 0]), own[:, 1].min()
                axes.annotate(name, place, (0, -13), textcoords="offset points", fontsize=8, ha="center")
    axes.set_xticks([])
    axes.set_yticks([])
    method = {"tsne": "t-SNE", "pca": "PCA"}[overview.projection.method]
    axes.set_title(f"{method} of the latents; diamonds are the cases, with their numbers", fontsize=9)
    return figure


def _wrapped(name: str) -> str:
    return textwrap.fill(name.replace("_", " "), 14)


def _end(name: str, length: int = 26) -> str:
    return name if len(name) <= length else "…" + name[-length + 1 :]
