"""Bias-free norms. Their statistics are part of the dynamic weight: constants while explaining.

"Uncentred" as in B-cos v2: divide by the standard deviation, but do not subtract the mean, because a subtracted mean is
an input-independent term once the statistics are fixed. `LayerNorm` subtracts it, which is linear in its own input.
"""

import torch
from torch import Tensor, nn

from sic.bcos.explanation import frozen
from sic.bcos.layers import widened


class BatchNormUncentred2d(nn.Module):
    """N×C×H×W; batch variance in training, running variance (a mean of biased batch variances) in evaluation."""

    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            wide = widened(x)
            # Faster than `var` on a CPU, and exact enough while means stay below about 100 standard deviations.
            variance = (wide.square().mean(dim=(0, 2, 3)) - wide.mean(dim=(0, 2, 3)).square()).clamp_min(0)
            with torch.no_grad():
                self.running_var.lerp_(variance.detach().to(self.running_var.dtype), self.momentum)
        else:
            variance = self.running_var
        scale = self.weight * frozen(variance + self.eps).rsqrt()
        return x * scale.to(x.dtype)[:, None, None]


class GroupNormUncentred2d(nn.Module):
    """N×C×H×W, statistics per image and group of channels. One group: the layer norm of convolutional networks."""

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"{channels} channels do not divide into {groups} groups")
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(1, (self.groups, -1))
        variance = widened(grouped).var(dim=(2, 3, 4), unbiased=False, keepdim=True)
        scale = frozen((variance + self.eps).rsqrt()).to(x.dtype)
        return (grouped * scale).flatten(1, 2) * self.weight.to(x.dtype)[:, None, None]


class PositionNormUncentred2d(nn.Module):
    """N×C×H×W, statistics over the channels of each position."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        variance = wide.var(dim=1, unbiased=False, keepdim=True)
        scale = frozen((variance + self.eps).rsqrt()).to(x.dtype)
        return x * scale * self.weight.to(x.dtype)[:, None, None]


class LayerNorm(nn.Module):
    """…×C, centred, statistics over the last dimension; the centring stays linear in the input."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        centred = wide - wide.mean(dim=-1, keepdim=True)
        scale = frozen((centred.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt())
        return (centred * scale * self.weight).to(x.dtype)
