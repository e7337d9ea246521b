"""From a conventional network to a B-cos network without a jump: biases go while B rises.

A bias does not depend on the input, so it explains nothing. Taking all of them out of a pretrained network at once
destroys what it has learnt. Two ways to do it step by step:

- They fade (Arya et al. 2024). The network must learn to do without them, which takes much data.
- The image carries them: a bias is multiplied by the size of what it is added to, relative to the typical image's. For
  an image of typical size nothing changes. `size(x) = x̂ᵀx`, with a direction `x̂` that is constant while explaining: a
  linear term like any other, which traces back to the pixels.
"""

import math

import torch
from torch import Tensor, nn

from sic.bcos.explanation import constant, is_explaining
from sic.bcos.processes import mean_of_all, processes
from sic.bcos.wide import sum_of_squares

MOMENTUM = 0.1
"""Of the running mean of sizes."""


class Fading:
    """A layer between conventional (`progress` 0: B = 1, biases in full) and B-cos (1: B as given, no constant biases).

    On the way it can be a tensor, whose value may change without the layer being compiled anew.
    """

    progress: float | Tensor = 1.0
    training: bool

    def with_bias(self, out: Tensor, bias: Tensor | None) -> Tensor:
        """`out` plus what there is of a bias, which broadcasts against one element of the batch."""
        typical = getattr(self, "typical", None)
        if bias is None or typical is None:
            return add_bias(out, bias, self.progress)
        size = _size(out)
        if self.training:
            mean = size.detach().mean()
            if processes() > 1:
                mean = mean_of_all(mean[None], len(size))[0]
            with torch.no_grad():
                typical.lerp_(mean.to(typical.dtype), MOMENTUM)
        else:
            mean = typical
        carried = self.progress * bias * (size / mean)
        return add_bias(out, bias, self.progress) + carried.to(out.dtype)


def _size(x: Tensor) -> Tensor:
    """Root mean square of each element of the batch, N×1×…; while explaining, linear in it."""
    dims, number = tuple(range(1, x.dim())), math.prod(x.shape[1:])
    root = (sum_of_squares(x, dims, keepdim=True) / number + 1e-12).sqrt()
    return (x * (x / root).detach()).sum(dims, keepdim=True) / number if is_explaining() else root


def fade(module: nn.Module, progress: float | Tensor) -> None:
    """Set how far every layer of `module` has come, from 0 (conventional) to 1 (B-cos)."""
    for layer in module.modules():
        if isinstance(layer, Fading):
            layer.progress = progress


def carry_biases(module: nn.Module) -> None:
    """Let the image carry the biases of `module` instead of letting them fade."""
    for layer in module.modules():
        if isinstance(layer, Fading) and isinstance(bias := getattr(layer, "bias", None), Tensor):
            layer.register_buffer("typical", bias.new_ones(()))  # type: ignore[attr-defined]


def add_bias(x: Tensor, bias: Tensor | None, progress: float | Tensor) -> Tensor:
    """`x` plus what is left of a constant bias, which broadcasts against one element of the batch."""
    if bias is None or (not isinstance(progress, Tensor) and progress == 1):
        return x
    term = ((1 - progress) * bias).to(x.dtype)
    return x + constant(term.reshape(1, *[1] * (x.dim() - 1 - term.dim()), *term.shape), x.shape[0])


def without_biases(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The entries of `state` that `module`, built without biases, still has."""
    return {name: state[name] for name in module.state_dict()}
