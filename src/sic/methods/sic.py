"""SIC: a class's logit is `b + Σ_i sim(f⁺, v_i) / T` over the class's supports, real training images."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos import BcosLinear, bcos_similarity
from sic.methods.comparing import Comparing
from sic.methods.contract import Contributions, Loss, as_columns
from sic.methods.linear import trace


class Encoder(nn.Module):
    """Images N×3×H×W → latents `f⁺` N×d: backbone, global pooling, B-cos projection, ReLU (without: an ablation)."""

    def __init__(self, backbone: Backbone, latent: int, b: float, relu: bool = True) -> None:
        super().__init__()
        self.backbone, self.relu = backbone, relu
        self.projection = BcosLinear(backbone.features, latent, b)

    def pooled(self, images: Tensor) -> Tensor:
        """Globally pooled backbone features, N×F."""
        return self.backbone(images)

    def project(self, pooled: Tensor) -> Tensor:
        """`f⁺` of pooled features."""
        latents = self.projection(pooled)
        return latents.relu() if self.relu else latents

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.pooled(images))


class SIC(Comparing):
    """The classifier."""

    forms = ("bcos", "bcosified")
    options = ("latent", "temperature", "b", "relu", "loss")
    selections = ("nearest", "centroid", "random")
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
        loss: Loss = "bce",
    ) -> None:
        super().__init__(backbone, classes, supports, latent, loss)
        self.temperature, self.b = temperature, b
        self.bias = -math.log(max(classes - 1, 2))
        self.encoder = Encoder(backbone, latent, b, relu)

    def evidence(self, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
        """`sim(f⁺, v) / T`, N×S."""
        return bcos_similarity(latents, self.support_vectors if vectors is None else vectors, self.b) / self.temperature

    def logits(self, evidence: Tensor, classes: Tensor | None = None) -> Tensor:
        """N×S evidence → N×C logits: the bias plus each class's own evidence."""
        classes = self.support_classes if classes is None else classes
        sums = evidence.new_zeros(len(evidence), self.classes).index_add(1, classes, evidence)
        return self.bias + sums

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.evidence(self.encoder(images)))

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        evidence = self.evidence(self.encoder(images))
        return self.logits(evidence), evidence

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Test contributions: of the logits of classes `targets`, N or N×K."""

        def logits(latents: Tensor) -> Tensor:
            return self.logits(self.evidence(latents)).gather(1, as_columns(targets))

        return self.trace(images, logits, bias=self.bias).reshape(targets.shape)

    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Contributions to the evidence of supports (indices, N or N×K)."""

        def evidence(latents: Tensor) -> Tensor:
            return self.evidence(latents).gather(1, as_columns(supports))

        return self.trace(images, evidence).reshape(supports.shape)

    def trace(self, images: Tensor, outputs: Callable[[Tensor], Tensor], bias: float = 0.0) -> Contributions:
        """Contributions N×K to `outputs(f⁺)`, N×K; `bias` is the constant that they contain."""
        self.require_evaluation()
        return trace(lambda: outputs(self.encoder(images)), bias)
