"""A model with a set of supports and the embedded images of its dataset: which images the supports are, which could
replace them, and which answers rely on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sic.data.dataset import Sample
from sic.errors import SicError
from sic.latents import Latents
from sic.methods import SIC
from sic.model import Model
from sic.predictions import Predictions
from sic.supports import Support, support_names


@dataclass(frozen=True)
class SupportSummary:
    """One support of the model, and how it is used."""

    index: int
    name: str
    """Its name for people: class and number, such as "Beagle #2"."""
    label: str
    source: str
    pinned: bool
    truth: list[str] | None
    """The classes of its image in the dataset; None if it is not one of the training images."""
    evidence: float
    """Its mean evidence in the validation images of its class; 0 if there are none."""
    strongest: int
    """The number of validation images that are answered with its class and have the most evidence from it."""


@dataclass(frozen=True)
class Candidate:
    """A training image that can be a support of a class."""

    id: str
    path: Path
    distance: float
    """From the mean latent of the class, or from a given support."""
    support: bool
    """Whether it is a support already."""


@dataclass(frozen=True)
class Reliance:
    """An image whose answer relies on a support."""

    id: str
    path: Path
    split: str
    truth: list[str]
    evidence: float
    """The contribution of the support to the logit of its class."""
    share: float
    """Of all evidence for the class."""
    decisive: bool
    """Whether the answer, or its similar case, would be lost without this support."""


@dataclass(frozen=True)
class Examined:
    """Uses the network of `model` with other `supports` than its own. All tensors are on the CPU."""

    model: Model
    supports: list[Support]
    vectors: Tensor
    """S×d, of the supports."""
    splits: dict[str, list[Sample]]
    """The embedded images by split: `train`, `validation` and `test`, which may be empty."""
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

    @property
    def support_names(self) -> list[str]:
        """The names of the supports for people."""
        return support_names(self.supports, self.classes)

    def described(self, index: int) -> str:
        """A support in a sentence: its name and its image."""
        return f"{self.support_names[index]} ({self.supports[index].source})"

    def with_supports(self, supports: Sequence[Support]) -> "Examined":
        """The same model and images with other supports."""
        known = {
            (support.label, support.source): vector for support, vector in zip(self.supports, self.vectors, strict=True)
        }
        vectors = []
        for support in supports:
            vector = known.get((support.label, support.source))
            if vector is None:
                if support.source not in self.latents:
                    raise SicError(
                        f"The image {support.source} can no longer be read, so it cannot be a support again."
                    )
                vector = self.latents.of([support.source])[0]
            vectors.append(vector)
        return replace(self, supports=[*supports], vectors=torch.stack(vectors))

    def embedded(self, split: str) -> Tensor:
        """Latents of a split, n×d."""
        return self.latents.of([sample.id for sample in self.splits[split]])

    def predictions(self, split: str) -> Predictions:
        """The predictions for the images of a split with these supports."""
        found = self.model.predictions_of(self.splits[split], self.embedded(split), (self.vectors, self.labels))
        return replace(found, name=f"{split} images")

    def names(self, sample: Sample) -> list[str]:
        """The classes that a sample shows."""
        return [self.classes[label] for label in sample.labels]

    def describe(self) -> list[SupportSummary]:
        """All supports, in their order."""
        found = self.predictions("validation")
        answered, evidence = found.answers, found.evidence
        strongest = torch.zeros(len(self.supports), dtype=torch.long)
        for label in self.labels.unique().tolist():
            own = (self.labels == label).nonzero()[:, 0]
            if answered[:, label].any():
                winners = evidence[answered[:, label]][:, own].argmax(dim=1)
                strongest[own] = winners.bincount(minlength=len(own))
        shows = found.targets == 1
        if self.model.config.task == "single":  # a bird that lacks parts may show several classes; it is left out
            shows &= shows.sum(dim=1, keepdim=True) == 1
        training = {sample.id: sample for sample in self.splits["train"]}
        result, names = [], self.support_names
        for index, support in enumerate(self.supports):
            mine = evidence[shows[:, support.label], index]
            source = training.get(support.source)
            result.append(
                SupportSummary(
                    index,
                    names[index],
                    self.classes[support.label],
                    support.source,
                    support.pinned,
                    None if source is None else self.names(source),
                    mine.mean().item() if len(mine) else 0.0,
                    int(strongest[index]),
                )
            )
        return result

    def candidates(self, label: int, near: int | None = None) -> list[Candidate]:
        """Training images that show only this class, those nearest to their mean, or to a support, first."""
        samples = [sample for sample in self.splits["train"] if sample.labels == (label,)]
        if not samples:
            return []
        latents = self.latents.of([sample.id for sample in samples])
        centre = latents.mean(dim=0) if near is None else self.vectors[near]
        distances = (latents - centre).norm(dim=1)
        taken = {support.source for support in self.supports if support.label == label}
        return [
            Candidate(samples[row].id, samples[row].path, distances[row].item(), samples[row].id in taken)
            for row in distances.argsort(stable=True).tolist()
        ]

    def relying_on(self, support: int) -> list[Reliance]:
        """Validation and test images that rely on a support (`Predictions.relying_on`), the most evidence first."""
        found = []
        for split in ("validation", "test"):
            if not self.splits[split]:
                continue
            predictions = self.predictions(split)
            for one in predictions.relying_on(support):
                sample, truth = predictions.samples[one.row], predictions.truth(one.row)
                found.append(Reliance(sample.id, sample.path, split, truth, one.evidence, one.share, one.decisive))
        return sorted(found, key=lambda reliance: -reliance.evidence)
