"""The model's cases as the page shows them: picture, raw signed map, colour picture, and two numbers."""

from dataclasses import dataclass

import numpy as np
import torch

from sic.explain import Overview
from sic.explain.overview import SupportView
from sic.explain.picture import signed
from sic.report.pictures import drawing, on_white, photo


@dataclass(frozen=True)
class SupportPictures:
    """One support; pictures are data URIs, None where the model was saved without images."""

    index: int
    label: int
    letter: str
    """A, B, … within its class."""
    name: str
    """Of its class."""
    source: str
    norm: float
    negative_mass: float | None
    constant: float | None
    image: str | None
    map: str | None
    limit: float | None
    """Contribution per pixel at which the map's colour scale ends."""
    colours: str | None


def support_pictures(overview: Overview) -> list[SupportPictures]:
    """All supports in the overview's order."""
    letters: dict[int, int] = {}
    result = []
    for view in overview.supports:
        letters[view.label] = letters.get(view.label, -1) + 1
        result.append(_pictures(view, letter(letters[view.label])))
    return result


def letter(number: int) -> str:
    """A, B, …, Z, AA, …

    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'AA')
    """
    return ("" if number < 26 else letter(number // 26 - 1)) + chr(65 + number % 26)


def _pictures(view: SupportView, letter: str) -> SupportPictures:
    image = map_ = limit = colours = None
    if view.image is not None and view.map is not None and view.rgba is not None:
        image = photo(view.image)
        pixels = torch.from_numpy(view.image.astype(np.float32) / 255).permute(2, 0, 1)
        drawn, limit = signed(torch.from_numpy(view.map), pixels, smooth=False)
        map_, colours = drawing(drawn), drawing(on_white(view.rgba))
    return SupportPictures(
        view.index,
        view.label,
        letter,
        view.name,
        view.source,
        view.norm,
        view.negative_mass,
        view.constant,
        image,
        map_,
        limit,
        colours,
    )
