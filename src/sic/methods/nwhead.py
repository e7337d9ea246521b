"""NW-Head (Wang & Sabuncu 2022): a vote of training images, each weighted by how near its latent is."""

import torch
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos.explanation import gradients
from sic.methods.blackbox import input_x_gradient
from sic.methods.contract import Comparing, Contributions, as_columns, without_weights
from sic.settings import Loss

NOTHING = -1e4
"""A log-weight that is 0 in any precision, and finite."""


class Encoder(nn.Module):
    """Images N×3×H×W → latents N×d: backbone, global pooling, linear projection."""

    def __init__(self, backbone: Backbone, latent: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Linear(backbone.features, latent)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.backbone(images))

    def project(self, pooled: Tensor) -> Tensor:
        return self.projection(pooled)


class NWHead(Comparing):
    """Logits are log-probabilities: softmax over `-‖f - v_i‖²`, and a class has the weights of its supports.

    It explains itself by its most influential supports. Its maps are Input×Gradient: the method has none of its own.
    """

    name, title = "nwhead", "NW-Head"
    score, evidence_for = "log-probability", "the probability"
    forms = ("conventional",)
    options = ("latent", "loss", "neighbours")
    losses = ("ce",)
    selections = ("nearest", "centroid", "random", "full")
    encoder: Encoder

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        supports: int,
        *,
        latent: int = 128,
        loss: Loss = "ce",
        neighbours: int | None = None,
    ) -> None:
        """`neighbours`: look at no more supports than these nearest ones."""
        super().__init__(backbone, classes, supports, latent, loss)
        self.encoder, self.neighbours = Encoder(backbone, latent), neighbours

    def log_weights(self, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
        """N×S; given other supports than its own, all of them count."""
        scores = -_squared_distances(latents, self.support_vectors if vectors is None else vectors)
        if vectors is None and self.neighbours is not None and self.neighbours < scores.shape[1]:
            farthest = scores.topk(self.neighbours).values[:, -1:]
            scores = torch.where(scores >= farthest, scores, scores + NOTHING)
        return scores.log_softmax(dim=1)

    def logits(self, log_weights: Tensor, classes: Tensor | None = None) -> Tensor:
        """N×S log-weights → N×C log-probabilities."""
        classes = self.support_classes if classes is None else classes
        owners = classes.expand(log_weights.shape[0], -1)
        peaks = log_weights.new_full((log_weights.shape[0], self.classes), NOTHING)
        peaks = peaks.scatter_reduce(1, owners, log_weights.detach(), "amax", include_self=False)
        sums = torch.zeros_like(peaks).index_add(1, classes, (log_weights - peaks.gather(1, owners)).exp())
        return peaks + sums.clamp_min(1).log()  # the largest adds 1; only a class without supports has less

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.log_weights(self.encoder(images)))

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        log_weights = self.log_weights(self.encoder(images))
        return self.logits(log_weights), log_weights.exp()

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Explain log-probabilities."""
        return self._explain(images, targets, of_classes=True)

    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Explain the weights of supports."""
        return self._explain(images, supports, of_classes=False)

    def _explain(self, images: Tensor, targets: Tensor, of_classes: bool) -> Contributions:
        self.require_evaluation()
        with gradients():
            columns = as_columns(targets)
            prepared = self.backbone.prepared(images.clone()).requires_grad_()

            def values(prepared: Tensor) -> Tensor:
                log_weights = self.log_weights(self.encoder.project(self.backbone.pooled(prepared)))
                return (self.logits(log_weights) if of_classes else log_weights.exp()).gather(1, columns)

            value = values(prepared).detach()
            maps = input_x_gradient(values, prepared)
        return without_weights(maps, value, torch.zeros_like(value)).reshape(targets.shape)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """N×d, S×d → N×S, without the cancellation of `‖a‖² - 2 ab + ‖b‖²`."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
