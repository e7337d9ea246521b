"""The teacher: a conventional network with its classifier, if it has one."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone, create
from sic.backbones.weights import Weights
from sic.errors import SicError


class Lesson(NamedTuple):
    """What the teacher says about N images."""

    maps: Tensor
    """The last feature maps, N×F×h×w."""
    logits: Tensor | None
    """N×C; None: the teacher has no classifier."""


class Teacher(nn.Module):
    """RGB images → `Lesson`; never trained."""

    def __init__(self, backbone: Backbone, classifier: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight: Tensor | None = None if classifier is None else nn.Buffer(classifier[0])
        self.bias: Tensor | None = None if classifier is None else nn.Buffer(classifier[1])
        self.requires_grad_(False).eval()

    @property
    def classes(self) -> int:
        return 0 if self.weight is None else len(self.weight)

    def train(self, mode: bool = True) -> "Teacher":
        return super().train(False)

    def forward(self, images: Tensor) -> Lesson:
        maps = self.backbone.feature_maps(self.backbone.prepared(images))
        pooled = self.backbone.pool_maps(maps)
        return Lesson(maps, None if self.weight is None else F.linear(pooled, self.weight, self.bias))


def load_teacher(name: str, weights: Weights) -> Teacher:
    """The conventional backbone `name` filled with `weights`."""
    backbone = create(name, "conventional", load=weights)
    classifier = weights.classifier()
    if classifier is not None and classifier[0].shape[1] != backbone.features:
        wanted = classifier[0].shape[1]
        raise SicError(f"The classifier in {weights.source} takes {wanted} features; {name} has {backbone.features}.")
    return Teacher(backbone, classifier)
