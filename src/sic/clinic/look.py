"""Looking at supports: who they are, who could take their place, and whose answers rest on them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from sic.clinic.examined import Examined


@dataclass(frozen=True)
class SupportInfo:
    """One support of the model as it is now."""

    index: int
    label: str
    source: str
    pinned: bool
    truth: list[str] | None
    """What the data says that its image shows; None where the image is not among the training images."""
    evidence: float
    """Mean evidence that it adds to the validation images of its class; 0 where there are none."""
    strongest: int
    """Validation images whose answer is its class and of which it is the strongest support."""


@dataclass(frozen=True)
class Candidate:
    """A training image that may stand for a class."""

    id: str
    path: Path
    distance: float
    """Of its latent from the class's mean latent, or from the support that was named."""
    support: bool
    """Is one already."""


@dataclass(frozen=True)
class Reliance:
    """An image whose answer rests on a support."""

    id: str
    path: Path
    split: str
    truth: list[str]
    evidence: float
    """What the support adds to its class's logit."""
    share: float
    """Of all evidence for the class."""
    decisive: bool
    """Without this support its class would not be the answer, or would have no similar case."""


def describe(examined: Examined) -> list[SupportInfo]:
    """All supports, in their order."""
    found = examined.predictions("validation")
    answered, evidence = found.answers, found.evidence
    strongest = torch.zeros(len(examined.supports), dtype=torch.long)
    for label in examined.labels.unique().tolist():
        own = (examined.labels == label).nonzero()[:, 0]
        if answered[:, label].any():
            winners = evidence[answered[:, label]][:, own].argmax(dim=1)
            strongest[own] = winners.bincount(minlength=len(own))
    shows = found.targets == 1
    if examined.model.config.task == "single":  # a bird that lacks parts could be any of several: it tells nothing here
        shows &= shows.sum(dim=1, keepdim=True) == 1
    training = {sample.id: sample for sample in examined.splits["train"]}
    result = []
    for index, support in enumerate(examined.supports):
        mine = evidence[shows[:, support.label], index]
        source = training.get(support.source)
        result.append(
            SupportInfo(
                index,
                examined.classes[support.label],
                support.source,
                support.pinned,
                None if source is None else examined.names(source),
                mine.mean().item() if len(mine) else 0.0,
                int(strongest[index]),
            )
        )
    return result


def candidates(examined: Examined, label: int, near: int | None) -> list[Candidate]:
    """Training images that show a class and nothing else, nearest first: to their mean, or to a support."""
    samples = [sample for sample in examined.splits["train"] if sample.labels == (label,)]
    if not samples:
        return []
    latents = examined.latents.of([sample.id for sample in samples])
    centre = latents.mean(dim=0) if near is None else examined.vectors[near]
    distances = (latents - centre).norm(dim=1)
    taken = {support.source for support in examined.supports if support.label == label}
    return [
        Candidate(samples[row].id, samples[row].path, distances[row].item(), samples[row].id in taken)
        for row in distances.argsort(stable=True).tolist()
    ]


def relying_on(examined: Examined, support: int) -> list[Reliance]:
    """Validation and test images that rely on a support (`Predictions.relying_on`), the most evidence first."""
    found = []
    for split in ("validation", "test"):
        if not examined.splits[split]:
            continue
        predictions = examined.predictions(split)
        for one in predictions.relying_on(support):
            sample, truth = predictions.samples[one.row], predictions.truth(one.row)
            found.append(Reliance(sample.id, sample.path, split, truth, one.evidence, one.share, one.decisive))
    return sorted(found, key=lambda reliance: -reliance.evidence)
