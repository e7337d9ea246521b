"""Pictures of contributions. Only here is anything scaled, smoothed or clipped."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SMOOTHING = 9
FULL_STRENGTH = 0.5
"""Sum of contributions from which on a picture is drawn in full colour."""


def alpha(weights: Tensor, maps: Tensor, smooth: bool = True) -> Tensor:
    """Opacity N×H×W: `‖w‖` where the contribution is not negative; smoothed, by its 99.9th percentile, at most 1."""
    norms = weights.norm(dim=1) * (maps >= 0)
    if smooth:
        norms = F.avg_pool2d(norms[:, None], SMOOTHING, 1, SMOOTHING // 2)[:, 0]
    top = norms.flatten(1).quantile(0.999, dim=1)[:, None, None]
    return (norms / top.clamp_min(1e-12)).clamp(0, 1)


def rgba(weights: Tensor, maps: Tensor, smooth: bool = True) -> Tensor:
    """Dynamic weights N×6×H×W as colour pictures N×4×H×W in [0, 1].

    Each colour and its inverse are scaled to sum to 1, which keeps their angle and makes them one colour value.
    """
    positive = weights.clamp(min=0)
    colour, inverse = positive.chunk(2, dim=1)
    rgb = colour / (colour + inverse).clamp_min(1e-12)
    return torch.cat([rgb, alpha(weights, maps, smooth)[:, None]], dim=1)


def over_white(picture: Tensor) -> NDArray[np.float32]:
    """RGBA 4×H×W on white, as H×W×3."""
    opacity = picture[3:]
    array: NDArray[np.float32] = (picture[:3] * opacity + 1 - opacity).permute(1, 2, 0).float().cpu().numpy()
    return array


def strength(maps: Tensor) -> float:
    """Pictures are scaled to their own content; where there is hardly any, they fade: 0 to 1."""
    return min(1.0, maps.sum().abs().item() / FULL_STRENGTH)


def symmetric_limit(maps: Tensor) -> float:
    """The value at which a signed colour scale ends: the 99.5th percentile of `|φ|`."""
    return max(maps.abs().flatten().float().quantile(0.995).item(), 1e-12)


def smoothed(maps: Tensor, kernel: int = 5) -> Tensor:
    """Box-smoothed maps N×H×W for drawing; the sum is kept up to the border."""
    return F.avg_pool2d(maps[:, None], kernel, 1, kernel // 2, count_include_pad=False)[:, 0]
