"""Where a map is: the pixels at its core, their centre and their outline."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

CORE = 0.5
"""Share of the positive contributions that the core of a map holds."""
SMOOTHING = 16
"""The side of the smoothing window is the side of the picture divided by this."""
SPECK = 0.002
"""Share of the picture's area below which a polygon is left out of an outline."""

REGION_COLOURS = ("#cccccc", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7")
"""The colours of matches by number (Okabe and Ito's); 0 is all that has no match. The viewer has them, too."""

Polygon = list[tuple[float, float]]
"""Points (x, y) in pixels; 0, 0 is the top left corner of the picture."""


def core(maps: Tensor) -> Tensor:
    """The smallest set of pixels of a smoothed map that holds half of its positive contributions.

    Args:
        maps: H×W.

    Returns:
        H×W bool; empty if the map has no positive contributions.
    """
    smooth = smoothed(maps).flatten()
    order = smooth.argsort(descending=True)
    ranked = smooth[order]
    before = ranked.cumsum(0) - ranked
    chosen = torch.zeros_like(smooth, dtype=torch.bool)
    chosen[order] = (ranked > 0) & (before < CORE * ranked.sum())
    return chosen.view_as(maps)


def smoothed(maps: Tensor) -> Tensor:
    """The positive contributions, box-filtered twice: H×W → H×W."""
    reach = max(1, max(maps.shape) // SMOOTHING // 2)
    positive = maps.detach().clamp(min=0)[None, None]
    for _ in range(2):
        positive = F.avg_pool2d(positive, 2 * reach + 1, 1, reach, count_include_pad=False)
    return positive[0, 0]


def centre(mask: Tensor) -> tuple[float, float] | None:
    """The place (x, y) in a mask that is nearest to the mean of its pixels; None if it is empty."""
    if not mask.any():
        return None
    pixels = mask.nonzero().double()
    row, column = pixels[(pixels - pixels.mean(dim=0)).norm(dim=1).argmin()].tolist()
    return column + 0.5, row + 0.5


def outlines(mask: Tensor) -> list[Polygon]:
    """The borders of a mask H×W as closed polygons, the largest first, without specks and the holes inside."""
    from contourpy import contour_generator  # comes with matplotlib

    padded = F.pad(mask.float(), (1, 1, 1, 1)).cpu().numpy()
    lines: Any = contour_generator(z=padded).lines(0.5)
    smallest = SPECK * mask.numel()
    sizes = {place: abs(_area(line)) for place, line in enumerate(lines)}
    ranked = sorted((place for place, size in sizes.items() if size >= smallest), key=lambda place: -sizes[place])
    return [[(float(x) - 0.5, float(y) - 0.5) for x, y in _corners(lines[place])] for place in ranked]


def _corners(line: NDArray[np.floating]) -> NDArray[np.floating]:
    """A closed polygon, N×2, without the points on its straight lines."""
    points = line[:-1]
    before, after = points - np.roll(points, 1, axis=0), np.roll(points, -1, axis=0) - points
    corners = points[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]]
    return np.concatenate([corners, corners[:1]])


def _area(line: NDArray[np.floating]) -> float:
    """The signed area of a closed polygon, N×2."""
    (x, y), (after_x, after_y) = line[:-1].T, line[1:].T
    return float((x * after_y - after_x * y).sum()) / 2
