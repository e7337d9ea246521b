"""B-cos networks (Böhle et al. 2024): a B-cos linear layer on pooled features; explained exactly, without cases."""

import math

from torch import Tensor

from sic.backbones import Backbone
from sic.bcos import BcosLinear
from sic.methods.contract import (
    Answered,
    Classifier,
    Contributions,
    Pick,
    Traced,
    above_average,
    as_columns,
    own_logits,
)
from sic.settings import Loss


class Bcos(Classifier):
    """Logits are `head(pooled) / T + b`; `b = -log(C - 1)` lets every class start at its base rate."""

    name, title = "bcos", "B-cos network"
    traceable = specific = True
    forms = ("bcos", "bcosified")
    options = ("temperature", "b", "loss")
    fit_options = (*Classifier.fit_options, "backbone_b")
    temperatures = {"scratch": 0.1, "bcosify": 0.1}  # outputs of the head are small at first: T makes them grow sooner
    complete = True

    def __init__(
        self, backbone: Backbone, classes: int, *, temperature: float = 1.0, b: float = 2, loss: Loss = "bce"
    ) -> None:
        super().__init__(backbone, classes, loss)
        self.temperature, self.bias = temperature, math.log(1 / max(classes - 1, 1))
        self.backbone = backbone
        self.head = BcosLinear(backbone.features, classes, b)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.backbone(images))

    def logits(self, pooled: Tensor) -> Tensor:
        """N×C of pooled features."""
        return self.bias + self.head(pooled) / self.temperature

    def answered(self, images: Tensor) -> "AnsweredBcos":
        self.require_evaluation()
        return AnsweredBcos(self, images)

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        return self.answered(images).explain(targets)

    def explain_specific(self, images: Tensor, targets: Tensor) -> Contributions:
        return self.answered(images).explain_specific(targets)


class AnsweredBcos(Answered):
    """One forward pass for the answers and for every explanation."""

    classifier: Bcos

    def answers(self) -> tuple[Tensor, Tensor]:
        self.traced = Traced(lambda: self.classifier.backbone(self.images))
        logits = self.classifier.logits(self.traced.features)
        return logits, logits.new_zeros(logits.shape[0], 0)

    def explain(self, targets: Tensor, weights: bool = True) -> Contributions:
        return self._explain(targets, own_logits, self.classifier.bias, weights)

    def explain_specific(self, targets: Tensor) -> Contributions:
        return self._explain(targets, above_average, 0.0)

    def _explain(self, targets: Tensor, pick: Pick, bias: float, weights: bool = True) -> Contributions:
        def values(pooled: Tensor) -> Tensor:
            return pick(self.classifier.logits(pooled), as_columns(targets))

        return self.traced.contributions(values, bias, weights).reshape(targets.shape)
