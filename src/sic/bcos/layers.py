"""The B-cos unit `‖x‖ · |cos(x, ŵ)|^B · sgn cos(x, ŵ)` as a linear layer, a 2-D convolution and a plain function."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos.explanation import frozen
from sic.bcos.fading import Fading, add_bias

EPS = 1e-6
"""Added to squared patch norms, as in B-cos v2, so that an all-zero patch gives zero and a finite gradient."""


def cosine_scale(linear: Tensor, norm: Tensor, b: float) -> Tensor:
    """`|cos|^(B-1)` for `linear = ŵᵀx` and `norm = ‖x‖ > 0`; constant while explaining."""
    linear, norm = frozen(linear), frozen(norm)
    cosine = linear.abs() / norm
    # A non-integer power has no finite slope at zero; the small offset gives it one.
    return cosine if b == 2 else (cosine + EPS).pow(b - 1)


def bcos_similarity(x: Tensor, vectors: Tensor, b: float = 2) -> Tensor:
    """B-cos units with the weights `vectors / ‖vectors‖`: N×d and S×d give N×S. A zero vector is similar to nothing."""
    directions = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    linear = x @ directions.T
    if b == 1:
        return linear
    return linear * cosine_scale(linear, x.norm(dim=1, keepdim=True) + 1e-12, b)


def widened(x: Tensor) -> Tensor:
    """Half precision is too coarse for norms and variances."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unit_norms(weight: Tensor) -> Tensor:
    """`‖w‖` of every output unit."""
    return weight.flatten(1).norm(dim=1).clamp_min(1e-12)


def unit_norm(weight: Tensor) -> Tensor:
    """`ŵ`: every output unit's weights scaled to norm 1."""
    return weight / unit_norms(weight).view(-1, *[1] * (weight.dim() - 1))


class BcosUnit(Fading):
    """What B-cos layers share. `unit`: the weights count by their direction only, as in B-cos v2; otherwise their norm
    scales the output, as in the conventional layer that they come from."""

    b: float
    unit: bool

    def set_up(self, b: float, unit: bool) -> None:
        if b < 1:
            raise ValueError(f"B must be at least 1, got {b}")
        self.b, self.unit = b, unit

    @property
    def current_b(self) -> float:
        """B, while fading somewhere between 1 and its final value."""
        return 1 + self.progress * (self.b - 1)


class BcosLinear(BcosUnit, nn.Linear):
    """B-cos linear layer: …×in → …×out. A bias is there only to fade."""

    def __init__(
        self, in_features: int, out_features: int, b: float = 2, *, unit: bool = True, bias: bool = False
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.set_up(b, unit)

    def forward(self, x: Tensor) -> Tensor:
        out = linear = F.linear(x, unit_norm(self.weight) if self.unit else self.weight)
        if self.current_b != 1:
            norm = widened(x).norm(dim=-1, keepdim=True) + 1e-12
            if not self.unit:
                linear = linear / unit_norms(self.weight)
            out = out * cosine_scale(linear, norm, self.current_b).to(out.dtype)
        return add_bias(out, self.bias, self.progress)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, B={self.b}"


class BcosConv2d(BcosUnit, nn.Conv2d):
    """B-cos 2-D convolution: N×in×H×W → N×out×H'×W', zero padding. A bias is there only to fade."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        b: float = 2,
        *,
        unit: bool = True,
        bias: bool = False,
    ) -> None:
        def pair(value: int | Sequence[int]) -> tuple[int, int]:
            return (value, value) if isinstance(value, int) else (value[0], value[1])

        super().__init__(
            in_channels,
            out_channels,
            pair(kernel_size),
            pair(stride),
            pair(padding),
            pair(dilation),
            groups,
            bias=bias,
        )
        self.set_up(b, unit)

    def patch_norms(self, x: Tensor) -> Tensor:
        """`‖patch‖`, N×G×H'×W': the root of a box-filtered sum of squares over each group's channels."""
        squares = widened(x).square().unflatten(1, (self.groups, -1)).sum(2)
        box = squares.new_ones(self.groups, 1, *self.kernel_size)
        with torch.autocast(x.device.type, enabled=False):
            sums = F.conv2d(squares, box, None, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[arg-type]
        return (sums + EPS).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        weight = unit_norm(self.weight) if self.unit else self.weight
        out = linear = F.conv2d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[arg-type]
        if self.current_b != 1:
            norms = self.patch_norms(x)
            if 1 < self.groups < self.out_channels:
                norms = norms.repeat_interleave(self.out_channels // self.groups, dim=1)
            if not self.unit:
                linear = linear / unit_norms(self.weight)[:, None, None]
            out = out * cosine_scale(linear, norms, self.current_b).to(out.dtype)
        return add_bias(out, None if self.bias is None else self.bias[:, None, None], self.progress)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, B={self.b}"
