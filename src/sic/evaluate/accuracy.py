"""Accuracy and calibration of predictions."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sic.data.labels import average_precisions, mean_precision, split_targets
from sic.predictions import Predictions

BINS = 15
"""Bins of the reliability curve."""


def detailed_figures(predictions: Predictions) -> dict[str, Any]:
    """The metrics of `Answers.figures`, `auroc` and `map` (means over the classes for which they are defined),
    calibration, `per_class` and, for single labels, the `confusion` matrix."""
    wanted = predictions.targets
    truth, counts = split_targets(wanted)
    single = predictions.task == "single"
    precisions, areas = average_precisions(predictions.scores, wanted), aurocs(predictions.scores, wanted)
    said = predictions.answers
    rows = [
        {
            "class": name,
            "images": int(truth[:, label].sum()),
            "recall": _share(said[:, label], truth[:, label] > 0),
            "precision": _share(truth[:, label] > 0, said[:, label] & counts[:, label]),
            "average_precision": precisions[label],
            "auroc": areas[label],
        }
        for label, name in enumerate(predictions.classes)
    ]
    known = [area for area in areas if area is not None]
    result = predictions.quality | {
        "map": mean_precision(precisions),
        "auroc": sum(known) / len(known) if known else None,
        **calibration_figures(predictions.probabilities, truth, counts, single),
        "per_class": rows,
    }
    if (clean := predictions.without_copies) is not None:
        result["without_copies"] = clean.quality
    return result | ({"confusion": confusion(predictions.nearest, truth).tolist()} if single else {})


def _share(what: Tensor, among: Tensor) -> float | None:
    return what[among].float().mean().item() if among.any() else None


def aurocs(scores: Tensor, targets: Tensor) -> list[float | None]:
    """The AUROC of every class against the rest, over the samples that count for it; None if it is undefined."""
    from sklearn.metrics import roc_auc_score  # takes seconds to load, and predicting does not need it

    truth, counts = split_targets(targets)
    return [
        float(roc_auc_score(truth[known, label], scores[known, label]))
        if 0 < truth[known, label].sum() < known.sum()
        else None
        for label, known in enumerate(counts.T)
    ]


def confusion(answers: Tensor, truth: Tensor) -> Tensor:
    """C×C counts: rows are true classes, columns predicted ones. If several classes are correct, the row is the
    predicted one, or else the first."""
    given = truth.gather(1, answers[:, None])[:, 0] > 0
    rows = torch.where(given, answers, truth.argmax(1))
    classes = truth.shape[1]
    return torch.bincount(rows * classes + answers, minlength=classes * classes).view(classes, classes)


@dataclass(frozen=True)
class Bin:
    """The answers whose confidence is in one interval."""

    low: float
    high: float
    answers: int
    confidence: float | None
    """Mean confidence; None if the bin is empty."""
    accuracy: float | None
    """Share of correct answers."""


def reliability(confidence: Tensor, right: Tensor, bins: int = BINS) -> list[Bin]:
    """The reliability curve of n answers with `confidence` in [0, 1] and `right` 0 or 1, in bins of equal width.

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
    """ECE: the mean gap between confidence and accuracy, weighted by the answers in each bin; NaN without answers."""
    gaps = [
        b.answers * abs(b.confidence - b.accuracy) for b in curve if b.confidence is not None and b.accuracy is not None
    ]
    return sum(gaps) / total if (total := sum(b.answers for b in curve)) else float("nan")


def calibration_figures(probabilities: Tensor, truth: Tensor, counts: Tensor, single: bool) -> dict[str, Any]:
    """`ece` and the `reliability` curve of n×C probabilities.

    With `single` labels, the answer for an image is its most probable class. Otherwise every class is an answer, if
    `counts` (n×C) says so.
    """
    if single:
        confidence, best = probabilities.max(dim=1)
        curve = reliability(confidence, truth.gather(1, best[:, None])[:, 0])
    else:
        curve = reliability(probabilities[counts], truth[counts])
    return {"ece": expected_error(curve), "reliability": [asdict(b) for b in curve]}
