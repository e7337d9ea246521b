"""The model's supports as the page shows them: image, raw signed map, colour picture, and the numbers."""

from dataclasses import dataclass

import numpy as np
import torch

from sic.explain import Overview
from sic.explain.html import CasePictures
from sic.explain.overview import SupportView
from sic.explain.picture import drawing_uri, photo_uri, signed
from sic.report.pictures import on_white


@dataclass(frozen=True)
class SupportCard(CasePictures):
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
        pixels = torch.from_numpy(view.image.astype(np.float32) / 255).permute(2, 0, 1)
        drawn, limit = signed(torch.from_numpy(view.map), pixels, smooth=False)
        map_, colours = drawing_uri(drawn), drawing_uri(on_white(view.rgba))
    return SupportCard(
        view.index,
        view.name,
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
