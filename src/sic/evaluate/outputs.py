"""Running a classifier over files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sic.data.dataset import Progress
from sic.data.images import Preprocessing
from sic.data.views import view_batches
from sic.methods import Classifier

Watch = Callable[[str, int, int], None]
"""Told what is being done, how many are done, and of how many."""


def nobody(task: str, done: int, total: int) -> None:
    """Who watches when nobody does."""


def device_of(classifier: Classifier) -> torch.device:
    """Where its weights are; the CPU if it has none."""
    weights = classifier.state_dict().values() if isinstance(classifier, nn.Module) else ()
    return next((value.device for value in weights), torch.device("cpu"))


@torch.no_grad()
def logits(
    classifier: Classifier,
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    progress: Progress | None = None,
) -> Tensor:
    """n×C, on the CPU; computed where the classifier is."""
    device = device_of(classifier)
    result: list[Tensor] = []
    for batch in view_batches(paths, preprocessing, 64 if device.type == "cpu" else 256, device):
        result.append(classifier(batch).cpu())
        if progress is not None:
            progress(sum(map(len, result)), len(paths))
    return torch.cat(result)
