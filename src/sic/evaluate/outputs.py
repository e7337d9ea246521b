"""Running a classifier over samples: the views it sees and the logits it gives."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sic.data.dataset import Progress
from sic.data.images import Preprocessing, UnreadableImage, read_image, to_tensor
from sic.methods import Classifier


class FileViews(Dataset[Tensor]):
    """The model's views of image files, 3×S×S, decoded by loader workers."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = list(paths), preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return to_tensor(self.preprocessing(read_image(self.paths[index])))


def readable(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Files that decode, and the others with the reason."""
    good, bad = [], []
    for path in paths:
        try:
            read_image(path)
            good.append(path)
        except UnreadableImage as error:
            bad.append((path, str(error)))
    return good, bad


def view_batches(paths: Sequence[Path], preprocessing: Preprocessing, batch_size: int = 64) -> Iterator[Tensor]:
    """Views in batches, N×3×S×S."""
    yield from DataLoader(FileViews(paths, preprocessing), batch_size, num_workers=1 if len(paths) > 256 else 0)


@torch.no_grad()
def logits(
    classifier: Classifier,
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Tensor:
    """n×C."""
    result: list[Tensor] = []
    for batch in view_batches(paths, preprocessing):
        result.append(classifier(batch.to(device)).cpu())
        if progress is not None:
            progress(sum(map(len, result)), len(paths))
    return torch.cat(result)
