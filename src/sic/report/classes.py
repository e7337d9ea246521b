"""The classes on the page: the cards of their supports, heat maps of their similarity, the projected latent space."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sic.data.dataset import Sample
from sic.data.images import Preprocessing, read_image
from sic.explain import Overview
from sic.explain.html import SupportPictures
from sic.explain.overview import SupportView
from sic.explain.picture import drawing_uri, over_white, photo_uri, signed, webp_uri

IN_A_TABLE = 20
"""The most classes whose heat map is a coloured table; with more, it is a picture beside a table of numbers."""
PAIRS = 20
BLUES = np.array([[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]]) / 255
PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a2c", "#7f7f7f"]
"""Okabe and Ito's colours without black and yellow, which are invisible on one of the two backgrounds."""
WIDTH, HEIGHT, MARGIN = 720, 520, 26
CELL, COLUMNS = 44, 40
"""Size and number per row of the thumbnails on a sheet."""


@dataclass(frozen=True)
class SupportCard(SupportPictures):
    """One support; pictures are data URIs, None if the model was saved without images."""

    label_index: int
    norm: float
    negative_mass: float | None
    constant: float | None
    map: str | None
    limit: float | None
    """Contribution per pixel at which the colour scale of the map ends."""


def support_cards(overview: Overview) -> list[SupportCard]:
    """All supports in the order of the overview."""
    return [_card(view) for view in overview.supports]


def _card(view: SupportView) -> SupportCard:
    image = map_ = limit = colours = None
    if view.image is not None and view.map is not None and view.rgba is not None:
        image = photo_uri(view.image)
        drawn, limit = support_map(view)
        map_, colours = drawing_uri(drawn), drawing_uri(support_colours(view))
    return SupportCard(
        view.index,
        view.name,
        view.class_name,
        view.source,
        image,
        colours,
        view.label,
        view.norm,
        view.negative_mass,
        view.constant,
        map_,
        limit,
    )


def support_colours(view: SupportView) -> NDArray[np.float32]:
    """The colour picture of a support on white, H×W×3."""
    return over_white(torch.from_numpy(view.rgba).permute(2, 0, 1) / 255)


def support_map(view: SupportView) -> tuple[NDArray[np.float32], float]:
    """The raw contributions to a support, H×W×3, and where the colour scale ends."""
    assert view.image is not None
    pixels = torch.from_numpy(view.image.astype(np.float32) / 255).permute(2, 0, 1)
    return signed(torch.from_numpy(view.map), pixels, smooth=False)


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map: evidence per case."""

    value: float | None
    colour: str
    dark: bool


@dataclass(frozen=True)
class Pair:
    """Images of class `row` get `value` points per case of class `column`, and `own` points per case of their own."""

    row: str
    column: str
    value: float
    own: float | None


@dataclass(frozen=True)
class HeatMap:
    """Mean evidence per case. Rows: the class of the images. Columns: the class of the cases."""

    title: str
    note: str
    cells: list[list[Cell]]
    picture: str | None
    """Data URI, if there are too many classes for a coloured table."""
    pairs: list[Pair]
    """The most similar pairs of different classes."""
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
    """The projection in pixels of its drawing; supports come last, so they are drawn on top."""

    method: str
    marks: list[Mark]
    names: list[tuple[float, float, int, str]]
    """Labels: x, y, class, name."""
    sheet: str
    columns: int = COLUMNS
    cell: int = CELL
    width: int = WIDTH
    height: int = HEIGHT


def blue(share: float) -> tuple[NDArray[np.float64], bool]:
    """A colour for a share in [0, 1], and whether it needs white text."""
    stops = np.linspace(0, 1, len(BLUES))
    return np.array([np.interp(share, stops, channel) for channel in BLUES.T]), share > 0.55


def heat_map(matrix: NDArray[np.float64], overview: Overview, title: str, note: str) -> HeatMap:
    """The heat map of a C×C matrix of similarities."""
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
    picture = _mosaic(colours, 6) if len(evidence) > IN_A_TABLE else None
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
    """The projection with a thumbnail for every point; `samples`: all embedded images."""
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
    return Plane(overview.projection.method, marks, names_at, _sheet(thumbnails))


def _hex(colour: NDArray[np.float64]) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in colour.tolist())


def _mosaic(colours: NDArray[np.floating], cell: int) -> str:
    """A matrix of colours R×C×3 in [0, 1] as squares of `cell` pixels, lossless."""
    pixels = (colours.clip(0, 1) * 255).round().astype(np.uint8)
    return webp_uri(Image.fromarray(pixels.repeat(cell, axis=0).repeat(cell, axis=1)), lossless=True)


def _sheet(thumbnails: Sequence[NDArray[np.uint8] | None]) -> str:
    """All thumbnails in one picture, row by row, which is smaller than a thousand files."""
    rows = max(1, -(-len(thumbnails) // COLUMNS))
    result = Image.new("RGB", (COLUMNS * CELL, rows * CELL), "#888888")
    for number, pixels in enumerate(thumbnails):
        if pixels is not None:
            thumbnail = Image.fromarray(pixels).resize((CELL, CELL), Image.Resampling.BILINEAR)
            result.paste(thumbnail, (number % COLUMNS * CELL, number // COLUMNS * CELL))
    return webp_uri(result, quality=70)
