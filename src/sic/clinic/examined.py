"""A model with certain supports and the latents of its images: all that an answer about its supports needs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sic.clinic.latents import Latents
from sic.data.dataset import Sample
from sic.directory import SavedModel
from sic.methods import SIC
from sic.supports import Case


@dataclass(frozen=True)
class Examined:
    """Everything is on the CPU but the model itself, whose own supports do not count here."""

    model: SavedModel
    cases: list[Case]
    vectors: Tensor
    """S×d, of the cases."""
    splits: dict[str, list[Sample]]
    """The images that have latents: `train`, `validation`, `test` (which may be empty)."""
    latents: Latents

    @property
    def classifier(self) -> SIC:
        assert isinstance(self.model.classifier, SIC)
        return self.model.classifier

    @property
    def classes(self) -> list[str]:
        return self.model.config.classes

    @property
    def labels(self) -> Tensor:
        """Classes of the cases, S."""
        return torch.tensor([case.label for case in self.cases])

    def embedded(self, split: str) -> Tensor:
        """Latents of a split, n×d."""
        return self.latents.of([sample.id for sample in self.splits[split]])

    @torch.no_grad()
    def evidence(self, split: str) -> Tensor:
        """n×S."""
        return self.classifier.evidence(self.embedded(split), self.vectors)

    def logits(self, evidence: Tensor) -> Tensor:
        """n×C."""
        return self.classifier.logits(evidence, self.labels)

    def answered(self, logits: Tensor) -> Tensor:
        """n×C bool: the classes found; with one label per image the best, however good."""
        if self.model.config.task == "multi":
            return logits >= 0
        return torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.argmax(1, keepdim=True), True)

    def names(self, sample: Sample) -> list[str]:
        """The classes that a sample shows."""
        return [self.classes[label] for label in sample.labels]
