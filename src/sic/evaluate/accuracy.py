"""How often the model is right."""

from collections.abc import Sequence
from typing import Any

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from sic.data.dataset import Sample, Task


def accuracy_figures(logits: Tensor, samples: Sequence[Sample], task: Task) -> dict[str, Any]:
    """Figures of n×C logits. single: top-1 accuracy; multi: mean average precision and per-label accuracy."""
    targets = torch.zeros_like(logits)
    for row, sample in enumerate(samples):
        targets[row, list(sample.labels)] = 1
    found = logits >= 0
    figures: dict[str, Any] = {"images": len(samples), "similar_case": found.any(dim=1).float().mean().item()}
    if task == "single":
        # Where several answers are right (birds that lack parts), any of them counts.
        return {"accuracy": targets.gather(1, logits.argmax(1, keepdim=True)).mean().item(), **figures}
    shown = targets.any(dim=0)  # a class without an image has no precision
    precision = average_precision_score(targets[:, shown], logits[:, shown]) if shown.any() else 0.0
    return {"map": float(precision), "per_label_accuracy": (found == targets.bool()).float().mean().item(), **figures}
