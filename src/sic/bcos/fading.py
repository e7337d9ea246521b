"""From a conventional network to a B-cos network without a jump: biases fade while B rises (Arya et al. 2024).

A bias does not depend on the input, so it explains nothing. Removing all biases of a pretrained network at once
destroys what it has learnt; fading lets it learn to do without them, step by step.
"""

from torch import Tensor, nn

from sic.bcos.explanation import constant


class Fading:
    """A layer between conventional (`progress` 0: B = 1, full biases) and B-cos (1: B as given, no biases).

    On the way, `progress` can be a tensor: its value may change without recompiling the layer.
    """

    progress: float | Tensor = 1.0

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """`x` plus the part of a bias that is left; the bias broadcasts against one element of the batch."""
        if bias is None or (not isinstance(self.progress, Tensor) and self.progress == 1):
            return x
        term = ((1 - self.progress) * bias).to(x.dtype)
        return x + constant(term.reshape(1, *[1] * (x.dim() - 1 - term.dim()), *term.shape), x.shape[0])


def fade(module: nn.Module, progress: float | Tensor) -> None:
    """Set how far every layer of `module` has come, from 0 (conventional) to 1 (B-cos)."""
    for layer in module.modules():
        if isinstance(layer, Fading):
            layer.progress = progress


def remove_biases(module: nn.Module) -> None:
    """Remove the biases of every layer of `module`, which have faded: it becomes the network built without any."""
    fade(module, 1.0)
    for layer in module.modules():
        if isinstance(layer, Fading) and isinstance(layer, nn.Module) and getattr(layer, "bias", None) is not None:
            layer.register_parameter("bias", None)
            layer._buffers.pop("running_mean", None)  # of batch norms: it only shifts
