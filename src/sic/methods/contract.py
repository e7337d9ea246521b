"""What every method offers: logits, and contributions that say where they come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass
class Contributions:
    """Signed, unnormalised contributions of pixels to explained values; leading dimensions as in the targets."""

    maps: Tensor
    """…×H×W, `φ = Σ_channels W ⊙ [x, 1 - x]`."""
    weights: Tensor
    """…×6×H×W, the dynamic weights `W(x)`."""
    value: Tensor
    """…, what is explained: a logit, an evidence, a similarity, a unit."""
    constant: Tensor
    """…, the share that does not depend on the input: the bias b, positional codes."""

    @property
    def residual(self) -> Tensor:
        """…, `value - Σ maps - constant`: zero up to rounding, or the explanation is wrong."""
        return self.value - self.maps.sum(dim=(-2, -1)) - self.constant

    def reshape(self, leading: Sequence[int]) -> "Contributions":
        """The same contributions with other leading dimensions."""
        return Contributions(
            self.maps.reshape(*leading, *self.maps.shape[-2:]),
            self.weights.reshape(*leading, *self.weights.shape[-3:]),
            self.value.reshape(leading),
            self.constant.reshape(leading),
        )


class Classifier(Protocol):
    """RGB in [0, 1], N×3×H×W, in; one logit per class, N×C, out."""

    def __call__(self, images: Tensor) -> Tensor: ...

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Contributions to the logits of `targets`: N, or N×K for several classes per image."""
        ...
