"""SIC: a class's logit is `b + Σ_i sim(f⁺, v_i) / T` over the class's supports, real training images."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos import BcosLinear, bcos_similarity, keep_feature_maps
from sic.methods.contract import (
    Answered,
    Comparing,
    Contributions,
    Pick,
    Traced,
    above_average,
    as_columns,
    own_logits,
)
from sic.settings import Loss

Outputs = Callable[[Tensor], Tensor]
"""Latents N×d → N×K."""


class Encoder(nn.Module):
    """Images N×3×H×W → latents `f⁺` N×d: backbone, global pooling, B-cos projection, ReLU (without: an ablation).

    With local units, pooling comes last: every place of the last feature maps is projected by itself. Pooled first, one
    part of an image can turn off a unit that another part turns on.
    """

    def __init__(self, backbone: Backbone, latent: int, b: float, relu: bool = True, local: bool = False) -> None:
        super().__init__()
        self.backbone, self.relu, self.local = backbone, relu, local
        self.projection = BcosLinear(backbone.map_features if local else backbone.features, latent, b)

    def features(self, images: Tensor) -> Tensor:
        """What is projected: globally pooled features N×F, or with local units those of P places, N×P×F."""
        if not self.local:
            return self.backbone(images)
        maps = self.backbone.feature_maps(self.backbone.prepared(images))
        keep_feature_maps(maps)
        return maps.flatten(2).transpose(1, 2)

    def project(self, features: Tensor) -> Tensor:
        """`f⁺` of features."""
        latents = self.projection(features)
        if self.relu:
            latents = latents.relu()
        return latents.mean(dim=-2) if self.local else latents

    def pooled(self, features: Tensor) -> Tensor:
        """Globally pooled features, N×F."""
        return features.mean(dim=-2) if self.local else features

    def additive(self, features: Tensor, latents: Tensor) -> Tensor:
        """Of an image's features and latents, those that are the mean over its parts."""
        return latents if self.local else features

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.features(images))


class SIC(Comparing):
    """The classifier."""

    name, title = "sic", "SIC"
    traceable = by_similarity = specific = True
    besides_supports = "start (bias)"
    forms = ("bcos", "bcosified")
    options = ("latent", "temperature", "b", "relu", "local_units", "loss")
    fit_options = (*Comparing.fit_options, "teacher", "backbone_b", "misplaced", "support_source", "ways")
    temperatures = {"paper": 30.0}
    collapses = True
    selections = ("nearest", "varied", "centroid", "random")
    complete = True
    encoder: Encoder

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        supports: int,
        *,
        latent: int = 128,
        temperature: float = 30.0,
        b: float = 2,
        relu: bool = True,
        local_units: bool = False,
        loss: Loss = "bce",
    ) -> None:
        super().__init__(backbone, classes, supports, latent, loss)
        self.temperature, self.b = temperature, b
        self.bias = -math.log(max(classes - 1, 2))
        self.encoder = Encoder(backbone, latent, b, relu, local_units)

    def evidence(self, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
        """`sim(f⁺, v) / T`, N×S."""
        return bcos_similarity(latents, self.support_vectors if vectors is None else vectors, self.b) / self.temperature

    def evidence_by_part(self, parts: Tensor, vectors: Tensor) -> Tensor:
        """Split the evidence for images that consist of n equal parts, such as the images of a grid.

        Args:
            parts: Pooled features of the parts, N×n×F, or with local units latents, N×n×d (`Encoder.additive`). Those
                of the whole image are their mean.
            vectors: Latents of the supports, S×d.

        Returns:
            N×n×S. The sum over the parts is the `evidence` for the whole image: the contributions to it, added up over
            the pixels of each part, if the network computes the same features for a part in a whole and by itself.
        """
        shares = (parts if self.encoder.local else self._latents_by_part(parts)) / parts.shape[1]
        latents = shares.sum(dim=1)
        gains = self.evidence(latents, vectors) / _nonzero(latents @ vectors.T)
        return (shares @ vectors.T) * gains[:, None]

    def _latents_by_part(self, parts: Tensor) -> Tensor:
        """Split the latents of images: pooled features of their parts N×n×F → N×n×d, whose mean they are."""
        directions, whole = self.encoder.projection.scaled_weight(), parts.mean(dim=1)
        gains = self.encoder.project(whole) / _nonzero(whole @ directions.T)
        return (parts @ directions.T) * gains[:, None]

    def logits(self, evidence: Tensor, classes: Tensor | None = None) -> Tensor:
        """N×S evidence → N×C logits: the bias plus each class's own evidence."""
        return self.bias + self.by_class(evidence, self.support_classes if classes is None else classes)

    def by_class(self, evidence: Tensor, classes: Tensor) -> Tensor:
        """N×S evidence of supports of some classes, S → N×C: that of each class."""
        return evidence.new_zeros(evidence.shape[0], self.classes).index_add(1, classes, evidence)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.evidence(self.encoder(images)))

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        evidence = self.evidence(self.encoder(images))
        return self.logits(evidence), evidence

    def answered(self, images: Tensor) -> "AnsweredSIC":
        self.require_evaluation()
        return AnsweredSIC(self, images)

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Test contributions: of the logits of classes `targets`, N or N×K."""
        return self.trace(images, self.outputs(targets), self.bias).reshape(targets.shape)

    def explain_specific(self, images: Tensor, targets: Tensor) -> Contributions:
        return self.trace(images, self.outputs(targets, above_average)).reshape(targets.shape)

    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Contributions to the evidence of supports (indices, N or N×K)."""
        return self.trace(images, self.evidence_of(supports)).reshape(supports.shape)

    def trace(self, images: Tensor, outputs: Outputs, bias: float = 0.0, weights: bool = True) -> Contributions:
        """Contributions N×K to `outputs(f⁺)`, N×K; `bias` is the constant that they contain."""
        self.require_evaluation()
        return Traced(lambda: self.encoder(images)).contributions(outputs, bias, weights)

    def outputs(self, targets: Tensor, pick: Pick = own_logits) -> Outputs:
        """Latents → the logits of classes `targets`, N or N×K, or what `pick` makes of them."""
        return lambda latents: pick(self.logits(self.evidence(latents)), as_columns(targets))

    def evidence_of(self, supports: Tensor) -> Outputs:
        """Latents → the evidence of supports (indices, N or N×K)."""
        return lambda latents: self.evidence(latents).gather(1, as_columns(supports))


def _nonzero(values: Tensor) -> Tensor:
    """The same values, with 1 in the place of 0."""
    return torch.where(values == 0, 1, values)


class AnsweredSIC(Answered):
    """One forward pass for the answers and for every explanation."""

    classifier: SIC

    @property
    def strengths(self) -> Tensor:
        """`‖f⁺‖ / T` of each image, N: evidence is strength times likeness, `|cos|^B`."""
        return self.traced.features.norm(dim=1) / self.classifier.temperature

    def answers(self) -> tuple[Tensor, Tensor]:
        self.traced = Traced(lambda: self.classifier.encoder(self.images))
        evidence = self.classifier.evidence(self.traced.features)
        return self.classifier.logits(evidence), evidence

    def explain(self, targets: Tensor, weights: bool = True) -> Contributions:
        found = self.traced.contributions(self.classifier.outputs(targets), self.classifier.bias, weights)
        return found.reshape(targets.shape)

    def explain_specific(self, targets: Tensor) -> Contributions:
        return self.traced.contributions(self.classifier.outputs(targets, above_average)).reshape(targets.shape)

    def explain_evidence(self, supports: Tensor) -> Contributions:
        found = self.traced.contributions(self.classifier.evidence_of(supports), weights=False)
        return found.reshape(supports.shape)
