"""Running a classifier over samples: the views it sees and the logits it gives."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sic.data.dataset import Progress
from sic.data.images import Preprocessing, UnreadableImage, read_image
from sic.methods import Classifier

Watch = Callable[[str, int, int], None]
"""Told what is being done, how many are done, and of how many."""


def nobody(task: str, done: int, total: int) -> None:
    """Who watches when nobody does."""


FEW = 256
"""Images up to which starting worker processes takes longer than decoding them."""


class FileViews(Dataset[Tensor]):
    """The model's views of image files as bytes, 3×S×S, decoded by loader workers."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = list(paths), preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.preprocessing(read_image(self.paths[index])).copy()).permute(2, 0, 1)


class FileViewsOrReasons(Dataset[Tensor | str]):
    """The same; of a file that cannot be read, why."""

    def __init__(self, views: FileViews) -> None:
        self.views = views

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.views[index]
        except UnreadableImage as error:
            return str(error)


def readable(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Files that decode, and the others with the reason."""
    with ThreadPoolExecutor(_cores()) as pool:
        reasons = list(pool.map(_unreadable, paths))
    good = [path for path, reason in zip(paths, reasons, strict=True) if reason is None]
    return good, [(path, reason) for path, reason in zip(paths, reasons, strict=True) if reason is not None]


def _unreadable(path: Path) -> str | None:
    try:
        read_image(path)
    except UnreadableImage as error:
        return str(error)
    return None


def _cores() -> int:
    """That this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, cores)


def device_of(classifier: Classifier) -> torch.device:
    """Where its weights are; the CPU if it has none."""
    weights = classifier.state_dict().values() if isinstance(classifier, nn.Module) else ()
    return next((value.device for value in weights), torch.device("cpu"))


def decoders(images: int) -> int:
    """Processes that decode so many images: one for each core, none for a few images."""
    return _cores() if images > FEW else 0


def view_batches(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Views in batches, N×3×S×S in [0, 1]."""
    for batch in DataLoader(FileViews(paths, preprocessing), batch_size, num_workers=decoders(len(paths))):
        yield batch.to(device).float() / 255


def views_or_reasons(paths: Sequence[Path], preprocessing: Preprocessing) -> Iterator[Tensor | str]:
    """One view 3×S×S in [0, 1] after the other, on the CPU; of a file that cannot be read, why."""
    data = FileViewsOrReasons(FileViews(paths, preprocessing))
    for view in DataLoader(data, batch_size=None, num_workers=decoders(len(paths))):
        yield view if isinstance(view, str) else view.float() / 255


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


def probabilities(classifier: Classifier, logits: Tensor) -> Tensor:
    """n×C in float64; sigmoids, unless the classifier says otherwise."""
    own = getattr(classifier, "probabilities", torch.sigmoid)
    return own(logits.double())
