"""Does a probability of 80 % mean right in 80 % of the cases?"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Bin:
    """Answers whose confidence lies in one part of [0, 1]."""

    low: float
    high: float
    answers: int
    confidence: float | None
    """Mean of what the model said; None where there is no answer."""
    accuracy: float | None
    """Share of them that were right."""


def reliability(confidence: Tensor, right: Tensor, bins: int = BINS) -> list[Bin]:
    """The reliability curve of n answers: `confidence` in [0, 1], `right` 0 or 1; bins of equal width.

    >>> [bin.accuracy for bin in reliability(torch.tensor([0.1, 0.8, 0.9]), torch.tensor([0, 1, 0]), 2)]
    [0.0, 0.5]
    """
    confidence, right = confidence.double(), right.double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(confidence, edges[1:-1], right=True)
    result = []
    for number in range(bins):
        inside = place == number
        count = int(inside.sum())
        means = (confidence[inside].mean().item(), right[inside].mean().item()) if count else (None, None)
        result.append(Bin(edges[number].item(), edges[number + 1].item(), count, *means))
    return result


def expected_error(curve: list[Bin]) -> float:
    """ECE: the mean gap between confidence and accuracy, each bin counting by its answers; NaN without answers."""
    gaps = [
        b.answers * abs(b.confidence - b.accuracy) for b in curve if b.confidence is not None and b.accuracy is not None
    ]
    return sum(gaps) / total if (total := sum(b.answers for b in curve)) else float("nan")


def calibration_figures(probabilities: Tensor, truth: Tensor, counts: Tensor, single: bool) -> dict[str, Any]:
    """`ece` and the `reliability` curve of n×C probabilities.

    single: one answer per image, the most probable class. Otherwise each class's probability is an answer of its own,
    where `counts` (n×C) says that it counts.
    """
    if single:
        confidence, best = probabilities.max(dim=1)
        curve = reliability(confidence, truth.gather(1, best[:, None])[:, 0])
    else:
        curve = reliability(probabilities[counts], truth[counts])
    return {"ece": expected_error(curve), "reliability": [asdict(b) for b in curve]}
