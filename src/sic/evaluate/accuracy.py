"""How often the model is right."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision

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
    precision = multilabel_average_precision(logits, targets.long(), logits.shape[1]).nan_to_num()
    return {"map": precision.item(), "per_label_accuracy": (found == targets.bool()).float().mean().item(), **figures}
