"""The teacher: a conventional network with its classifier, if it has one."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone, create
from sic.backbones.weights import Weights
from sic.errors import SicError
from sic.methods import BlackBox

NORM_EPS = 1e-6
"""Of the layer norm in front of a classifier, in torchvision and timm."""


class Lesson(NamedTuple):
    """What a network computes from N images."""

    maps: Tensor
    """The last feature maps, N×F×h×w."""
    logits: Tensor | None
    """N×C; None: the network has no classifier."""
    stages: tuple[Tensor, ...] = ()
    """The feature maps after every stage of a ResNet but the last; empty for other networks."""


def stage_maps(backbone: Backbone, images: Tensor) -> tuple[Tensor, ...]:
    """The feature maps after every stage of a ResNet, the last ones last; of other networks only those."""
    prepared = backbone.prepared(images)
    parts = dict(backbone.network.named_children())
    if not isinstance(backbone.network, nn.Sequential) or "layer1" not in parts:
        return (backbone.feature_maps(prepared),)
    found = []
    for name, part in parts.items():
        prepared = part(prepared)
        if name.startswith("layer"):
            found.append(prepared)
    return tuple(found)


class Teacher(nn.Module):
    """RGB images → `Lesson`; never trained."""

    def __init__(
        self, backbone: Backbone, classifier: tuple[Tensor, Tensor] | None, *, normalised: bool = False
    ) -> None:
        """`classifier`: weight C×F and bias C; `normalised`: of pooled features with mean 0 and variance 1."""
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.features, NORM_EPS, elementwise_affine=False) if normalised else nn.Identity()
        self.weight: Tensor | None = None if classifier is None else nn.Buffer(classifier[0])
        self.bias: Tensor | None = None if classifier is None else nn.Buffer(classifier[1])
        self.requires_grad_(False).eval()

    @property
    def classes(self) -> int:
        return 0 if self.weight is None else len(self.weight)

    def classifier(self, attribution: str) -> BlackBox:
        """It as one of the methods, explained by one of `BlackBox.attributions`; only of a teacher with classes."""
        assert self.weight is not None and self.bias is not None
        classifier = BlackBox(self.backbone, self.classes, loss="ce", attribution=attribution).to(self.weight.device)
        with torch.no_grad():
            classifier.head.weight.copy_(self.weight)
            classifier.head.bias.copy_(self.bias)
        classifier.head = nn.Sequential(self.norm, classifier.head)  # type: ignore[assignment]
        return classifier.eval()

    def train(self, mode: bool = True) -> "Teacher":
        return super().train(False)

    def forward(self, images: Tensor) -> Lesson:
        return self.lesson(stage_maps(self.backbone, images))

    def lesson(self, found: tuple[Tensor, ...]) -> Lesson:
        """The same from the maps of its stages."""
        *stages, maps = found
        pooled = self.norm(self.backbone.pool_maps(maps))
        logits = None if self.weight is None else F.linear(pooled, self.weight, self.bias)
        return Lesson(maps, logits, tuple(stages))


def load_teacher(name: str, weights: Weights) -> Teacher:
    """The conventional backbone `name` filled with `weights`."""
    backbone = create(name, "conventional", load=weights)
    classifier, norm = weights.classifier(backbone.network), weights.norm(backbone.network)
    if classifier is not None and classifier.weight.shape[1] != backbone.features:
        wanted = classifier.weight.shape[1]
        raise SicError(f"The classifier in {weights.source} takes {wanted} features; {name} has {backbone.features}.")
    if classifier is None or norm is None:
        return Teacher(backbone, classifier)
    weight, bias = classifier  # the norm's own weight and bias become the classifier's
    return Teacher(backbone, (weight * norm.weight, bias + weight @ norm.bias), normalised=True)
