"""Norms without a bias. Their statistics are part of the dynamic weight: constants while explaining.

Batch norm is uncentred, as in B-cos v2: a running mean is an input-independent term, so it is not subtracted. The
norms of single images keep their centring, because the mean of an image is linear in the image.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sic.bcos.explanation import frozen
from sic.bcos.layers import Fading, sum_of_squares, wide_type, widened


def processes() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mean_of_all(means: Tensor, images: int) -> Tensor:
    """Means over the `images` of this process, a vector → over those of all processes that train together."""
    sums = _SumOfAll.apply(torch.cat([means, means.new_ones(1)]) * images)
    return sums[:-1] / sums[-1]


class _SumOfAll(torch.autograd.Function):
    """The input of one process changes the outputs of all, so the gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # type: ignore[override]
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class BatchNormUncentred2d(Fading, nn.Module):
    """N×C×…; batch variance in training, running variance (a mean of biased batch variances) in evaluation.

    With `bias` it can fade: at `progress` 0 it is a conventional batch norm.
    """

    running_var: Tensor
    running_mean: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, bias: bool = False) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.register_buffer("running_var", torch.ones(channels))
        if bias:
            self.register_buffer("running_mean", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self._statistics(x)
        scale = frozen(self.weight * (variance + self.eps).rsqrt())
        spread = (-1, *[1] * (x.dim() - 2))
        out = x * scale.to(x.dtype).view(spread)
        if self.bias is None or mean is None:
            return out
        return self.with_bias(out, (self.bias - mean * scale).view(spread))

    def _statistics(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Mean (where it matters) and variance of every channel."""
        if not self.training:
            return self.running_mean if self.bias is not None else None, self.running_var
        dims = (0, *range(2, x.dim()))
        # Faster than `var` on a CPU too, and exact enough while means stay below about 100 standard deviations.
        mean = x.mean(dim=dims, dtype=wide_type(x))
        squares = sum_of_squares(x, dims) / (x.numel() // x.shape[1])
        if processes() > 1:
            mean, squares = mean_of_all(torch.cat([mean, squares]), len(x)).chunk(2)
        variance = squares - mean.square()
        # Rounding may leave a little less than nothing. Gradients pass the clamp by: for them the kernel would have to
        # keep what it clamps, which Triton fails to compile (torch 2.11).
        variance = variance + (variance.detach().clamp_min(0) - variance.detach())
        with torch.no_grad():
            self.running_var.lerp_(variance.detach().to(self.running_var.dtype), self.momentum)
            if self.bias is not None:
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
        return mean, variance


@torch.no_grad()
def renew_statistics(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of batch norms by the means of those of some batches, with the present weights.

    Running statistics are means over past steps. At a high learning rate, weights change faster than these follow: on
    rendered birds, a network of 47 % accuracy seemed to have 23 % (results/norms.json).
    """
    norms = [layer for layer in network.modules() if isinstance(layer, BatchNormUncentred2d)]
    if not norms:
        return
    momenta, was = [norm.momentum for norm in norms], network.training
    network.train()
    for number, batch in enumerate(batches, 1):
        for norm in norms:
            norm.momentum = 1 / number
        network(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.train(was)


class LayerNorm(Fading, nn.Module):
    """…×C, statistics over the last dimensions, as many as `shape` has; the centring stays linear in the input."""

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-5, *, affine: bool = True, bias: bool = False
    ) -> None:
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.dims = eps, tuple(range(-len(shape), 0))
        self.weight = nn.Parameter(torch.ones(shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        normed = standardised(x, self.dims, self.eps)
        if self.weight is not None:
            normed = normed * self.weight
        return self.with_bias(normed.to(x.dtype), self.bias)


class LayerNorm2d(LayerNorm):
    """N×C×H×W, statistics over the channels of each position."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class GroupNorm(Fading, nn.Module):
    """N×C×…, statistics per image and group of channels. One group: the layer norm of convolutional networks."""

    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, *, affine: bool = True, bias: bool = False
    ) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"{channels} channels do not divide into {groups} groups")
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(1, (self.groups, -1))
        normed = standardised(grouped, tuple(range(2, grouped.dim())), self.eps).flatten(1, 2)
        spread = (-1, *[1] * (x.dim() - 2))
        if self.weight is not None:
            normed = normed * self.weight.view(spread)
        return self.with_bias(normed.to(x.dtype), None if self.bias is None else self.bias.view(spread))


def standardised(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Mean 0 and variance 1 over `dims`; the scale is constant while explaining, the centring is linear anyway."""
    wide = widened(x)
    centred = wide - wide.mean(dim=dims, keepdim=True)
    return centred * frozen((centred.square().mean(dim=dims, keepdim=True) + eps).rsqrt())
