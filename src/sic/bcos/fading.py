"""From a conventional network to a B-cos network without a jump: biases fade while B rises.

A bias does not depend on the input, so it explains nothing. Taking all of them out of a pretrained network at once
destroys what it has learnt; taking them out over many training steps lets it adapt.
"""

from torch import Tensor, nn

from sic.bcos.explanation import constant


class Fading:
    """A layer between conventional (`progress` 0: B = 1, biases in full) and B-cos (1: B as given, no biases).

    On the way it can be a tensor, whose value may change without the layer being compiled anew.
    """

    progress: float | Tensor = 1.0


def fade(module: nn.Module, progress: float | Tensor) -> None:
    """Set how far every layer of `module` has come, from 0 (conventional) to 1 (B-cos)."""
    for layer in module.modules():
        if isinstance(layer, Fading):
            layer.progress = progress


def add_bias(x: Tensor, bias: Tensor | None, progress: float | Tensor) -> Tensor:
    """`x` plus what is left of a bias, which broadcasts against one element of the batch."""
    if bias is None or (not isinstance(progress, Tensor) and progress == 1):
        return x
    term = ((1 - progress) * bias).to(x.dtype)
    return x + constant(term.reshape(1, *[1] * (x.dim() - 1 - term.dim()), *term.shape), x.shape[0])


def without_biases(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The entries of `state` that `module`, built without biases, still has."""
    return {name: state[name] for name in module.state_dict()}
