"""B-cos networks (Böhle et al. 2024): a B-cos linear layer on pooled features; explained exactly, without cases."""

import math

from torch import Tensor

from sic.backbones import Backbone
from sic.bcos import BcosLinear
from sic.methods.contract import Classifier, Contributions, Loss, as_columns
from sic.methods.linear import trace


class Bcos(Classifier):
    """Logits are `head(pooled) / T + b`; `b = -log(C - 1)` lets every class start at its base rate."""

    forms = ("bcos", "bcosified")
    options = ("temperature", "b", "loss")
    complete = True

    def __init__(
        self, backbone: Backbone, classes: int, *, temperature: float = 1.0, b: float = 2, loss: Loss = "bce"
    ) -> None:
        super().__init__(backbone, classes, loss)
        self.temperature, self.bias = temperature, -math.log(max(classes - 1, 1))
        self.backbone = backbone
        self.head = BcosLinear(backbone.features, classes, b)

    def forward(self, images: Tensor) -> Tensor:
        return self.bias + self.head(self.backbone(images)) / self.temperature

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        self.require_evaluation()
        return trace(lambda: self(images).gather(1, as_columns(targets)), self.bias).reshape(targets.shape)
