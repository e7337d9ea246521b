"""How often the model is right."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sic.data.dataset import Sample, Task
from sic.data.labels import average_precisions, mean_precision, split_targets, targets

THRESHOLD = 0.5
"""Probability from which a class is found in an image, the same for every class: a logit of 0."""


def accuracy_figures(logits: Tensor, samples: Sequence[Sample], task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """Figures of n×C logits; what a sample is unsure about counts neither way.

    single: `accuracy` (top 1) and `balanced_accuracy` (mean over classes of the share of their images that are right).
    multi: `map` and the `average_precision` of each class; `exact_match`, the share of images with every label right;
    `per_label_accuracy`, the share of all yes-or-no decisions that are right, which the paper calls accuracy on VOC.
    """
    wanted = targets(samples, len(classes))
    truth, counts = split_targets(wanted)
    found = logits >= 0
    figures: dict[str, Any] = {"images": len(samples), "similar_case": found.any(dim=1).float().mean().item()}
    if task == "single":
        # Where several answers are right (birds that lack parts), any of them counts; the image is shared by them.
        right = truth.gather(1, logits.argmax(1, keepdim=True))
        shares = truth / truth.sum(dim=1, keepdim=True).clamp_min(1)
        shown = shares.any(dim=0)
        recall = (shares * right).sum(dim=0)[shown] / shares.sum(dim=0)[shown]
        return {"accuracy": right.mean().item(), "balanced_accuracy": recall.mean().item(), **figures}
    precisions = average_precisions(logits, wanted)
    right = (found == truth.bool()) | ~counts
    return {
        "map": mean_precision(precisions),
        "per_label_accuracy": right[counts].float().mean().item(),
        "exact_match": right.all(dim=1).float().mean().item(),
        "threshold": THRESHOLD,
        "average_precision": dict(zip(classes, precisions, strict=True)),
        **figures,
    }
