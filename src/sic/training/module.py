"""The training step of SIC and what happens after every epoch."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sic.bcos import BcosLinear
from sic.methods import SIC
from sic.training.base import Candidates
from sic.training.batches import Batch
from sic.training.cases import CaseTraining
from sic.training.losses import softmax_loss
from sic.training.settings import Settings
from sic.training.watch import LatentHealth, collapse, latent_health


class Guide(nn.Module):
    """What keeps a network that starts from nothing from collapsing; gone once training is over.

    Binary cross-entropy alone is lowest for latents that separate nothing when all of them vanish. Softmax
    cross-entropy does not care for evidence that all classes share, so it asks for differences instead: on the SIC
    logits, and on a B-cos classifier of the pooled features, which learns before there are latents to compare.
    """

    SCALE = 10.0
    """B-cos outputs of fresh features are small: without it the head would wait for the features to grow."""

    def __init__(self, features: int, classes: int, b: float) -> None:
        super().__init__()
        self.head = BcosLinear(features, classes, b)

    def forward(self, pooled: Tensor, logits: Tensor, targets: Tensor, support_targets: Tensor) -> Tensor:
        everyone = torch.cat([targets, support_targets])
        return softmax_loss(logits, targets) + softmax_loss(self.SCALE * self.head(pooled), everyone)


class SICTraining(CaseTraining):
    """Fits a `SIC` classifier, with the guide where there is one."""

    classifier: SIC

    def __init__(
        self,
        classifier: SIC,
        settings: Settings,
        candidates: Candidates,
        multi_label: bool,
        positive: Tensor | None = None,
    ) -> None:
        super().__init__(classifier, settings, candidates, multi_label, positive)
        self.guide = (
            Guide(classifier.encoder.backbone.features, classifier.classes, settings.b) if settings.guided else None
        )
        self.health = LatentHealth(0.0, 0.0)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier = self.classifier
        self.fade()
        pooled = classifier.encoder.pooled(self.prepared(torch.cat([batch.queries, batch.supports])))
        with torch.autocast(self.device.type, enabled=False):
            pooled = pooled.float()
            latents = classifier.encoder.project(pooled)
            evidence = classifier.evidence(latents[: len(batch.queries)], latents[len(batch.queries) :])
            logits = classifier.logits(evidence, batch.support_classes)
            loss = self.loss(logits, batch.targets)
            if self.guide is not None:
                # Fades over the second half, so that what is optimised in the end is the method's own loss.
                strength = min(1.0, 2 * (1 - self.global_step / self.total_steps))
                loss = loss + strength * self.guide(pooled, logits, batch.targets, batch.support_targets)
        return self.noted(loss, index)

    def look_at(self, latents: NDArray[np.float32]) -> None:
        self.health = latent_health(latents)

    def health_figures(self, score: float, chance: float) -> dict[str, float]:
        self.collapsed = collapse(self.health, self.settings.temperature, score, chance, self.global_step)
        return {"dead_units": self.health.dead_units, "latent_norm": self.health.norm}
