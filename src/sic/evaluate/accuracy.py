"""How often the model is right."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.data.dataset import Sample, Task
from sic.data.labels import average_precisions, mean_precision, split_targets, targets
from sic.evaluate.calibration import calibration_figures

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


def detailed_figures(
    logits: Tensor, probabilities: Tensor, samples: Sequence[Sample], task: Task, classes: Sequence[str]
) -> dict[str, Any]:
    """All of `accuracy_figures`, `auroc` and `map` (means over the classes that have one), calibration, `per_class`,
    and for single labels the `confusion` matrix.

    `logits` n×C with 0 where a class is found (else as in `odds`); `probabilities` n×C.
    """
    wanted = targets(samples, len(classes))
    truth, counts = split_targets(wanted)
    single = task == "single"
    precisions, areas = average_precisions(logits, wanted), aurocs(logits, wanted)
    answers = F.one_hot(logits.argmax(1), len(classes)).bool() if single else logits >= 0
    rows = [
        {
            "class": name,
            "images": int(truth[:, label].sum()),
            "recall": _share(answers[:, label], truth[:, label] > 0),
            "precision": _share(truth[:, label] > 0, answers[:, label] & counts[:, label]),
            "average_precision": precisions[label],
            "auroc": areas[label],
        }
        for label, name in enumerate(classes)
    ]
    known = [area for area in areas if area is not None]
    result = accuracy_figures(logits, samples, task, classes) | {
        "map": mean_precision(precisions),
        "auroc": sum(known) / len(known) if known else None,
        **calibration_figures(probabilities, truth, counts, single),
        "per_class": rows,
    }
    return result | ({"confusion": confusion(logits.argmax(1), truth).tolist()} if single else {})


def _share(what: Tensor, among: Tensor) -> float | None:
    return what[among].float().mean().item() if among.any() else None


def aurocs(scores: Tensor, targets: Tensor) -> list[float | None]:
    """Of every class against the rest, over the samples that count for it; None where only one of the two is there."""
    from sklearn.metrics import roc_auc_score  # takes seconds to load, and predicting does not need it

    truth, counts = split_targets(targets)
    return [
        float(roc_auc_score(truth[known, label], scores[known, label]))
        if 0 < truth[known, label].sum() < known.sum()
        else None
        for label, known in enumerate(counts.T)
    ]


def confusion(answers: Tensor, truth: Tensor) -> Tensor:
    """C×C counts: rows are true classes, columns answers. Where several classes are right: the answer, or the first."""
    given = truth.gather(1, answers[:, None])[:, 0] > 0
    rows = torch.where(given, answers, truth.argmax(1))
    classes = truth.shape[1]
    return torch.bincount(rows * classes + answers, minlength=classes * classes).view(classes, classes)
