"""SIC: a class's logit is `b + Σ_i sim(f⁺, v_i) / T` over the class's supports, real training images."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos import BcosLinear, bcos_similarity, explaining, linear_maps
from sic.errors import SicError
from sic.methods.contract import Contributions


class Encoder(nn.Module):
    """Images N×3×H×W → latents `f⁺` N×d: backbone, global pooling, B-cos projection, ReLU."""

    def __init__(self, backbone: Backbone, latent: int, b: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = BcosLinear(backbone.features, latent, b)

    def pooled(self, images: Tensor) -> Tensor:
        """Globally pooled backbone features, N×F."""
        return self.backbone(images)

    def project(self, pooled: Tensor) -> Tensor:
        """`f⁺` of pooled features."""
        return self.projection(pooled).relu()

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.pooled(images))


class SIC(nn.Module):
    """The classifier. It holds its support vectors; who they are is the business of `sic.supports`."""

    support_vectors: Tensor
    support_classes: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        supports: int,
        *,
        latent: int = 128,
        temperature: float = 30.0,
        b: float = 2,
    ) -> None:
        """`supports`: how many there are in all (classes with few images have fewer than the others)."""
        super().__init__()
        if backbone.form == "conventional":
            raise SicError("SIC needs a backbone that can be traced: --form bcos or bcosified, not conventional.")
        self.classes, self.temperature, self.b = classes, temperature, b
        self.bias = -math.log(max(classes - 1, 2))
        self.encoder = Encoder(backbone, latent, b)
        self.register_buffer("support_vectors", torch.zeros(supports, latent))
        self.register_buffer("support_classes", torch.zeros(supports, dtype=torch.long))

    def set_supports(self, vectors: Tensor, classes: Tensor) -> None:
        """Reason with these: S×d latents and S class indices, S as announced."""
        if vectors.shape != self.support_vectors.shape:
            raise ValueError(f"{tuple(vectors.shape)} vectors for {tuple(self.support_vectors.shape)} supports")
        self.support_vectors.copy_(vectors.detach())
        self.support_classes.copy_(classes)

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

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Test contributions: of the logits of classes `targets`, N or N×K."""
        columns = targets if targets.dim() == 2 else targets[:, None]

        def logits(latents: Tensor) -> Tensor:
            return self.logits(self.evidence(latents)).gather(1, columns.clone())  # may come from inference mode

        return self.trace(images, logits, bias=self.bias).reshape(targets.shape)

    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Contributions to the evidence of supports (indices, N or N×K)."""
        columns = supports if supports.dim() == 2 else supports[:, None]

        def evidence(latents: Tensor) -> Tensor:
            return self.evidence(latents).gather(1, columns.clone())

        return self.trace(images, evidence).reshape(supports.shape)

    def trace(self, images: Tensor, outputs: Callable[[Tensor], Tensor], bias: float = 0.0) -> Contributions:
        """Contributions N×K to `outputs(f⁺)`, N×K; `bias` is the constant that they contain."""
        if any(module.training for module in self.modules()):
            raise RuntimeError("explaining needs the model in evaluation mode: call .eval() first")
        with explaining() as trace:
            values = outputs(self.encoder(images))
            linear = linear_maps(values, trace)
        assert trace.source is not None
        maps = (linear.weights * trace.source.detach()[:, None]).sum(dim=2)
        return Contributions(maps, linear.weights, values.detach(), linear.constants + bias)
