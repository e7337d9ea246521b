"""Lower resolution without a grid in contribution maps: means of 2×2 pixels, or a blur before a stride."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos.layers import Fading


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


class Blur(nn.Module):
    """N×C×H×W → the same size, each channel smoothed by a triangle of width 2·stride - 1.

    Of the patterns that a stride can draw, those that repeat with the stride, the triangle lets none pass.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, stride: tuple[int, int]) -> None:
        super().__init__()
        self.stride = stride
        for name, step in zip(("rows", "columns"), stride, strict=True):
            self.register_buffer(name, self.triangle(step), persistent=False)

    @staticmethod
    def triangle(stride: int) -> Tensor:
        """
        >>> Blur.triangle(2)
        tensor([0.2500, 0.5000, 0.2500])
        """
        rise = torch.arange(1, stride + 1)
        return torch.cat([rise, rise[:-1].flip(0)]) / stride**2

    def forward(self, x: Tensor) -> Tensor:
        # At the border, the mean of what is there: zeros would darken it.
        return self.smoothed(x) / self.smoothed(x.new_ones(1, 1, *x.shape[2:]))

    def smoothed(self, x: Tensor) -> Tensor:
        channels, (vertical, horizontal) = x.shape[1], (step - 1 for step in self.stride)
        rows = self.rows.to(x.dtype).view(1, 1, -1, 1).expand(channels, -1, -1, -1)
        columns = self.columns.to(x.dtype).view(1, 1, 1, -1).expand(channels, -1, -1, -1)
        x = F.conv2d(x, rows, padding=(vertical, 0), groups=channels)
        return F.conv2d(x, columns, padding=(0, horizontal), groups=channels)

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


WIDEST = 4
"""The widest stride that is worth a blur: before the patches of a transformer it would leave nothing to see."""


def antialias(module: nn.Module) -> None:
    """In place: put a blur before every layer below `module` that strides, but for patches wider than `WIDEST`."""
    wrapped: dict[int, nn.Module] = {}
    for name, child in module._modules.items():
        if isinstance(child, nn.Conv2d | nn.AvgPool2d | nn.MaxPool2d):
            stride = _pair(child.stride)
            # An average over its own stride sees every pixel once, with equal weight: there is nothing to mend.
            fair = isinstance(child, nn.AvgPool2d) and _pair(child.kernel_size) == stride
            if 1 < max(stride) <= WIDEST and not fair:
                module._modules[name] = wrapped.setdefault(id(child), nn.Sequential(Blur(stride), child))
        elif child is not None:
            antialias(child)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
