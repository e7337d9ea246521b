"""The training of SIC: its step, its guide, and a look at its latents after every epoch."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sic.bcos import BcosLinear
from sic.methods import SIC
from sic.settings import Settings
from sic.training.bank import SupportBank
from sic.training.base import Candidates
from sic.training.batches import Batch
from sic.training.comparing import ComparingTraining
from sic.training.losses import softmax_loss


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


class SICTraining(ComparingTraining):
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
        self.bank: SupportBank | None = None
        """Where supports come from, if that is what the settings say."""
        self.draws_supports = settings.support_source != "bank"
        self.health = LatentHealth(0.0, 0.0)

    def on_train_start(self) -> None:
        settings = self.settings
        if settings.support_source == "bank":
            latents = torch.from_numpy(self.embed()).to(self.device)
            self.classifier.train()
            self.bank = SupportBank(latents, self.candidates, settings.supports_per_class, settings.seed)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier = self.classifier
        self.fade()
        pooled = classifier.encoder.pooled(self.prepared(torch.cat([batch.queries, batch.supports])))
        with torch.autocast(self.device.type, enabled=False):
            pooled = self.whole(pooled.float(), batch)
            latents = classifier.encoder.project(pooled)
            logits = self.compared(latents, batch) if self.bank is None else self.recalled(latents, batch, self.bank)
            loss = self.loss(logits, batch.targets)
            if self.guide is not None:
                # Fades over the second half, so that what is optimised in the end is the method's own loss.
                strength = min(1.0, 2 * (1 - self.global_step / self.total_steps))
                loss = loss + strength * self.guide(pooled, logits, batch.targets, batch.support_targets)
        return self.noted(loss, index)

    def compared(self, latents: Tensor, batch: Batch) -> Tensor:
        """Logits of the queries with the supports of their batch."""
        queries, supports = latents.split([len(batch.targets), len(batch.support_targets)])
        return self.classifier.logits(self.classifier.evidence(queries, supports), batch.support_classes)

    def recalled(self, latents: Tensor, batch: Batch, bank: SupportBank) -> Tensor:
        """Logits of the queries with supports of the bank, which remembers the queries."""
        drawn = bank.draw(batch.rows, latents, self.global_step)
        evidence = self.classifier.evidence(latents, drawn.vectors).view(drawn.counts.shape)
        bank.remember(batch.rows, latents)
        return self.classifier.bias + (evidence * drawn.counts).sum(dim=2)

    def look_at(self, latents: NDArray[np.float32]) -> None:
        self.health = latent_health(latents)
        if self.bank is not None:
            self.bank.latents.copy_(torch.from_numpy(latents))

    def health_figures(self, score: float, chance: float) -> dict[str, float]:
        self.collapsed = collapse(self.health, self.settings.temperature, score, chance, self.global_step)
        return {"dead_units": self.health.dead_units, "latent_norm": self.health.norm}


@dataclass(frozen=True)
class LatentHealth:
    """State of the latents of the training set after an epoch."""

    dead_units: float
    """Share of latent units that no training image activates."""
    norm: float
    """Mean latent norm."""


def latent_health(latents: NDArray[np.float32]) -> LatentHealth:
    """Of n×d latents."""
    dead = float((latents.max(axis=0) <= 0).mean())
    return LatentHealth(dead, float(np.linalg.norm(latents, axis=1).mean()))


FIRST_LOOK = 150
"""Steps before which a fit may look lost without being so."""


def collapse(health: LatentHealth, temperature: float, score: float, chance: float, steps: int) -> str | None:
    """A sentence if training has collapsed: at chance level, with dead units or with latents too short to matter."""
    if steps < FIRST_LOOK or (score > 1.5 * chance and np.isfinite(health.norm)):
        return None
    if health.dead_units > 0.5:
        sign = f"{health.dead_units:.0%} of the latent units are dead"
    elif not health.norm >= 0.1 * temperature:  # also where it is not a number
        sign = f"latents have shrunk to a norm of {health.norm:.2g}, too little evidence at T = {temperature:g}"
    else:
        return None
    return (
        f"The fit has collapsed: after {steps} steps the score is {score:.1%} (chance: {chance:.1%}) and {sign}. "
        "It will hardly recover; stop it and use --recipe scratch, a lower --lr, or pretrained --weights."
    )
