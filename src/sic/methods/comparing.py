"""What SIC and the NW-Head share: an encoder, and the latents of the training images that they compare with."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.methods.contract import Classifier
from sic.settings import Loss


class Comparing(Classifier):
    """Holds its support vectors; who they are is the business of `sic.supports`."""

    with_cases = True
    fit_options: ClassVar[tuple[str, ...]] = ("supports_per_class", "keep_support_images", "inference_supports")
    support_vectors: Tensor
    support_classes: Tensor
    encoder: nn.Module
    """Images N×3×H×W → latents N×d; has the backbone."""

    def __init__(self, backbone: Backbone, classes: int, supports: int, latent: int, loss: Loss) -> None:
        """`supports`: how many there are in all (classes with few images have fewer than the others)."""
        super().__init__(backbone, classes, loss)
        self.register_buffer("support_vectors", torch.zeros(supports, latent))
        self.register_buffer("support_classes", torch.zeros(supports, dtype=torch.long))

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        backbone = self.encoder.backbone
        assert isinstance(backbone, Backbone)
        return backbone

    @property
    def case_classes(self) -> list[int]:
        return self.support_classes.tolist()

    def set_supports(self, vectors: Tensor, classes: Tensor) -> None:
        """Reason with these: S×d latents and S class indices, S as announced."""
        if vectors.shape != self.support_vectors.shape:
            raise ValueError(f"{tuple(vectors.shape)} vectors for {tuple(self.support_vectors.shape)} supports")
        self.support_vectors.copy_(vectors.detach())
        self.support_classes.copy_(classes)
