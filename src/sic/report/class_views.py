"""How the classes lie to each other, as the page shows it: heat map, pairs, silhouettes, the plane."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sic.data.dataset import Sample
from sic.data.images import Preprocessing, read_image
from sic.explain import Overview
from sic.report.pictures import CELL, COLUMNS, mosaic, sheet

IN_A_TABLE = 20
"""Classes up to which a heat map is a table with numbers; beyond, a picture, and the numbers apart."""
PAIRS = 20
BLUES = np.array([[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]]) / 255
PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a2c", "#7f7f7f"]
"""Okabe and Ito's colours but black and yellow, which vanish on one of the two backgrounds."""
WIDTH, HEIGHT, MARGIN = 720, 520, 26


@dataclass(frozen=True)
class Cell:
    """One number of the heat map: evidence per case."""

    value: float | None
    colour: str
    dark: bool


@dataclass(frozen=True)
class Pair:
    """Images of class `row` are like the cases of `column`: `value` points a case; like their own: `own`."""

    row: str
    column: str
    value: float
    own: float | None


@dataclass(frozen=True)
class HeatMap:
    """Mean evidence per case; row: the class shown, column: the class compared with."""

    title: str
    note: str
    cells: list[list[Cell]]
    picture: str | None
    """Data URI, where there are too many classes for colours in a table."""
    pairs: list[Pair]
    """The most alike pairs of different classes."""
    top: float


@dataclass(frozen=True)
class Mark:
    """A point of the plane; `cell` is its thumbnail on the sheet."""

    x: float
    y: float
    labels: tuple[int, ...]
    names: str
    id: str
    support: int | None
    cell: int


@dataclass(frozen=True)
class Plane:
    """The projection in pixels of its drawing, supports last so that they lie on top."""

    method: str
    marks: list[Mark]
    names: list[tuple[float, float, int, str]]
    """Where to write the classes' names: x, y, class, name."""
    sheet: str
    columns: int = COLUMNS
    cell: int = CELL
    width: int = WIDTH
    height: int = HEIGHT


def blue(share: float) -> tuple[NDArray[np.float64], bool]:
    """A colour for 0 to 1, and whether light letters are needed on it."""
    stops = np.linspace(0, 1, len(BLUES))
    return np.array([np.interp(share, stops, channel) for channel in BLUES.T]), share > 0.55


def heat_map(matrix: NDArray[np.float64], overview: Overview, title: str, note: str) -> HeatMap:
    """Of a C×C matrix of similarities."""
    evidence = matrix / overview.temperature
    top = float(np.nanmax(evidence, initial=1e-12))
    cells, colours = [], np.ones((*evidence.shape, 3))
    for row, values in enumerate(evidence):
        line = []
        for column, value in enumerate(values):
            if np.isnan(value):
                line.append(Cell(None, "transparent", False))
                continue
            colours[row, column], dark = blue(max(0.0, value / top))
            line.append(Cell(float(value), _hex(colours[row, column]), dark))
        cells.append(line)
    picture = mosaic(colours, 6) if len(evidence) > IN_A_TABLE else None
    return HeatMap(title, note, cells, picture, _pairs(evidence, overview.classes), top)


def _pairs(evidence: NDArray[np.float64], classes: list[str]) -> list[Pair]:
    ranked = sorted(
        (-float(value), row, column)
        for (row, column), value in np.ndenumerate(evidence)
        if row != column and not np.isnan(value)
    )
    own = [None if np.isnan(value) else float(value) for value in evidence.diagonal()]
    return [Pair(classes[row], classes[column], -value, own[row]) for value, row, column in ranked[:PAIRS]]


def plane(overview: Overview, samples: Sequence[Sample], preprocessing: Preprocessing) -> Plane:
    """The projection with a thumbnail for every point; `samples`: all that were embedded."""
    points = overview.projection.points
    places = np.array([[point.x, point.y] for point in points])
    low, high = places.min(axis=0), places.max(axis=0)
    span = np.where(high > low, high - low, 1)
    scaled = (places - low) / span * [WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN] + MARGIN
    paths = {sample.id: sample.path for sample in samples}
    thumbnails, marks = [], []
    for number, (point, (x, y)) in enumerate(zip(points, scaled.tolist(), strict=True)):
        if point.support is not None:
            thumbnails.append(overview.supports[point.support].image)
        else:
            thumbnails.append(preprocessing(read_image(paths[point.id])))
        names = ", ".join(overview.classes[label] for label in point.labels)
        marks.append(Mark(round(x, 1), round(y, 1), point.labels, names, point.id, point.support, number))
    names_at = []
    if len(overview.classes) <= IN_A_TABLE:
        for label, name in enumerate(overview.classes):
            own = np.array([[mark.x, mark.y] for mark in marks if mark.labels == (label,)])
            if len(own):
                middle = own[np.linalg.norm(own - np.median(own, axis=0), axis=1).argmin()]
                names_at.append((float(middle[0]), max(14.0, float(middle[1]) - 15), label, name))
    marks.sort(key=lambda mark: mark.support is not None)
    return Plane(overview.projection.method, marks, names_at, sheet(thumbnails))


def _hex(colour: NDArray[np.float64]) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in colour.tolist())
