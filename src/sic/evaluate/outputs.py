"""Run a classifier on image files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sic.data.dataset import Progress
from sic.data.images import Preprocessing
from sic.data.loading import view_batches
from sic.methods import Classifier

Watch = Callable[[str, int, int], None]
"""Called with the name of a task, the number of finished items and their total."""


def nobody(task: str, done: int, total: int) -> None:
    """A `Watch` that does nothing."""


def device_of(classifier: Classifier) -> torch.device:
    """The device of the weights; the CPU if there are none."""
    weights = classifier.state_dict().values() if isinstance(classifier, nn.Module) else ()
    return next((value.device for value in weights), torch.device("cpu"))


@torch.no_grad()
def logits(
    classifier: Classifier,
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    progress: Progress | None = None,
) -> Tensor:
    """Logits n×C on the CPU, computed on the classifier's device."""
    device = device_of(classifier)
    result: list[Tensor] = []
    for batch in view_batches(paths, preprocessing, 64 if device.type == "cpu" else 256, device):
        result.append(classifier(batch).cpu())
        if progress is not None:
            progress(sum(map(len, result)), len(paths))
    return torch.cat(result)
