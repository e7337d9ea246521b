"""The labels of samples as tensors, and average precision."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.data.dataset import Sample, Task

MAIN_SCORE: dict[Task, str] = {"single": "accuracy", "multi": "map"}
"""The metric that models are selected by."""
SCORE_NAMES = {"accuracy": "Accuracy", "map": "Mean average precision"}


def targets(samples: Sequence[Sample], classes: int) -> Tensor:
    """Targets n×C: 1 if a sample shows a class, 0 if not, NaN if unsure, which counts neither way."""
    result = torch.zeros(len(samples), classes)
    for row, sample in enumerate(samples):
        result[row, list(sample.unsure)] = math.nan
        result[row, list(sample.labels)] = 1
    return result


class Targets:
    """`targets` of samples by position, computed on demand, because all of them may not fit into memory."""

    def __init__(self, samples: Sequence[Sample], classes: int) -> None:
        self.samples, self.classes = samples, classes

    def __getitem__(self, rows: int | NDArray[np.intp]) -> Tensor:
        """Targets C of one sample, or N×C of several."""
        if isinstance(rows, np.ndarray):
            return targets([self.samples[row] for row in rows], self.classes)
        return targets([self.samples[rows]], self.classes)[0]


def split_targets(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Targets with 0 instead of NaN, and a mask of those that count."""
    return targets.nan_to_num(0), ~targets.isnan()


def shared(targets: Tensor) -> Tensor:
    """Targets N×C in which the classes of an image have equal parts of 1; unknown ones stay NaN.

    >>> shared(torch.tensor([[1.0, 0.0, 1.0], [0.0, math.nan, 1.0]]))
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000,    nan, 1.0000]])
    """
    return targets / targets.nansum(dim=1, keepdim=True).clamp_min(1)


def average_precisions(scores: Tensor, targets: Tensor) -> list[float | None]:
    """Average precision of every class over the samples that count for it (not interpolated); None without positives.

    >>> average_precisions(torch.tensor([[2.0], [1.0], [0.0]]), torch.tensor([[1.0], [math.nan], [0.0]]))
    [1.0]
    """
    from sklearn.metrics import average_precision_score  # slow to import, and not needed to predict

    truth, counts = split_targets(targets)
    return [
        float(average_precision_score(truth[known, label], scores[known, label])) if truth[known, label].any() else None
        for label, known in enumerate(counts.T)
    ]


def mean_precision(precisions: Sequence[float | None]) -> float:
    """mAP: the mean over the classes that have an average precision; 0 if none has."""
    known = [value for value in precisions if value is not None]
    return sum(known) / max(len(known), 1)
