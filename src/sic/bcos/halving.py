"""Halving the resolution without a grid in the maps: every pixel counts once, and alike."""

import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos.fading import Fading


class Halving(Fading, nn.Module):
    """N×C×H×W → N×C×⌈H/2⌉×⌈W/2⌉, means of 2×2 pixels.

    While a network fades from conventional to B-cos, it begins as the stride, or with `maximum` as the 3×3 max pooling,
    that the mean takes the place of.
    """

    def __init__(self, *, maximum: bool = False) -> None:
        super().__init__()
        self.maximum = maximum

    def forward(self, x: Tensor) -> Tensor:
        mean = F.avg_pool2d(x, 2, ceil_mode=True)
        if not isinstance(self.progress, Tensor) and self.progress == 1:
            return mean
        former = F.max_pool2d(x, 3, 2, 1) if self.maximum else x[:, :, ::2, ::2]
        return former + self.progress * (mean - former)

    def extra_repr(self) -> str:
        return f"maximum={self.maximum}"
