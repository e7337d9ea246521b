"""The views that a model gets of image files, decoded by loader processes."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sic.data.images import Preprocessing, UnreadableImage, read_image
from sic.data.loader import loader

FEW = 256
"""Images up to which starting worker processes takes longer than decoding them."""


class FileViews(Dataset[Tensor]):
    """The model's views of image files as bytes, 3×S×S."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = list(paths), preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.preprocessing(read_image(self.paths[index])).copy()).permute(2, 0, 1)


class FileViewsOrReasons(Dataset[Tensor | str]):
    """The same; for a file that cannot be read, the reason."""

    def __init__(self, views: FileViews) -> None:
        self.views = views

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.views[index]
        except UnreadableImage as error:
            return str(error)


def view_batches(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Views in batches, N×3×S×S in [0, 1]; `UnreadableImage` for a file that cannot be read."""
    for batch in loader(FileViews(paths, preprocessing), batch_size, decoders(len(paths))):
        yield batch.to(device).float() / 255


def readable_batches(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Tensor, list[str | None]]]:
    """Views of the files that can be read, N×3×S×S in [0, 1], and for every file None or why it cannot be read."""
    data = FileViewsOrReasons(FileViews(paths, preprocessing))
    batch_size = 64 if torch.device(device).type == "cpu" else 256
    for views, reasons in loader(data, batch_size, decoders(len(paths)), collate_fn=_apart):
        yield (views.to(device).float() / 255 if views is not None else torch.zeros(0)), reasons


def _apart(batch: list[Tensor | str]) -> tuple[Tensor | None, list[str | None]]:
    views = [view for view in batch if isinstance(view, Tensor)]
    return (torch.stack(views) if views else None), [view if isinstance(view, str) else None for view in batch]


def views_or_reasons(paths: Sequence[Path], preprocessing: Preprocessing) -> Iterator[Tensor | str]:
    """One view 3×S×S in [0, 1] after the other, on the CPU; for a file that cannot be read, the reason."""
    data = FileViewsOrReasons(FileViews(paths, preprocessing))
    for view in loader(data, workers=decoders(len(paths))):
        yield view if isinstance(view, str) else view.float() / 255


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


def decoders(images: int) -> int:
    """Processes that decode so many images: one for each core, none for a few images."""
    return _cores() if images > FEW else 0


def _cores() -> int:
    """That this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, cores)
