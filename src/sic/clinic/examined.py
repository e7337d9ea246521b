"""A model with certain supports and the latents of its images: all that an answer about its supports needs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sic.data.dataset import Sample
from sic.latents import Latents
from sic.methods import SIC
from sic.model import Model
from sic.predictions import Predictions
from sic.supports import Support


@dataclass(frozen=True)
class Examined:
    """Everything is on the CPU but the model itself, whose own supports do not count here."""

    model: Model
    supports: list[Support]
    vectors: Tensor
    """S×d, of the supports."""
    splits: dict[str, list[Sample]]
    """The images that have latents: `train`, `validation`, `test` (which may be empty)."""
    latents: Latents

    @property
    def classifier(self) -> SIC:
        return self.model.sic

    @property
    def classes(self) -> list[str]:
        return self.model.config.classes

    @property
    def labels(self) -> Tensor:
        """Classes of the supports, S."""
        return torch.tensor([support.label for support in self.supports])

    def embedded(self, split: str) -> Tensor:
        """Latents of a split, n×d."""
        return self.latents.of([sample.id for sample in self.splits[split]])

    @torch.no_grad()
    def predictions(self, split: str) -> Predictions:
        """What the model with these supports says about the images of a split."""
        latents = self.embedded(split)
        evidence = self.classifier.evidence(latents, self.vectors)
        return Predictions(
            logits=self.classifier.logits(evidence, self.labels),
            task=self.model.config.task,
            loss=self.classifier.loss,
            classes=self.classes,
            samples=self.splits[split],
            evidence=evidence,
            owners=self.labels,
            latents=latents,
            name=f"{split} images",
        )

    def names(self, sample: Sample) -> list[str]:
        """The classes that a sample shows."""
        return [self.classes[label] for label in sample.labels]
