"""Decoded pixels of many images: every file is read once, in worker processes, before anything depends on it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from torch.utils.data import DataLoader, Dataset

from sic.data.dataset import Sample, Skipped
from sic.data.images import Pixels, Preprocessing, UnreadableImage, read_image

Progress = Callable[[int, int], None]
CACHE_LIMIT = 8 << 30
"""Bytes of decoded pixels up to which they are kept; larger sets are decoded again whenever they are used."""


class PixelSource(Protocol):
    """Reduced images, H×W×3, by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Pixels: ...


class Decoder(Dataset[Pixels | str]):
    """Decodes files in loader workers; an unreadable file yields the reason."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = list(paths), preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Pixels | str:
        try:
            return self.preprocessing.reduce(read_image(self.paths[index]))
        except UnreadableImage as error:
            return str(error)


class CachedPixels:
    """Pixels in one file, mapped into memory on first use (in each worker by itself)."""

    def __init__(self, file: Path, shapes: list[tuple[int, int, int]]) -> None:
        self.file, self.shapes = file, shapes
        self.starts = np.concatenate([[0], np.cumsum([np.prod(shape) for shape in shapes])]).astype(np.int64)
        self._map: np.memmap | None = None

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> Pixels:
        if self._map is None:
            self._map = np.memmap(self.file, np.uint8, "r")
        return self._map[self.starts[index] : self.starts[index + 1]].reshape(self.shapes[index])

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_map": None}


class DecodedPixels:
    """Pixels decoded at every use. A file that has become unreadable since it was checked is replaced by another."""

    def __init__(self, samples: Sequence[Sample], preprocessing: Preprocessing) -> None:
        self.labels = [sample.labels for sample in samples]
        self.decoder = Decoder([sample.path for sample in samples], preprocessing)

    def __len__(self) -> int:
        return len(self.decoder)

    def __getitem__(self, index: int) -> Pixels:
        count = len(self)
        for candidate in (index, *((index + step) % count for step in range(1, count))):
            if self.labels[candidate] == self.labels[index]:
                pixels = self.decoder[candidate]
                if not isinstance(pixels, str):
                    return pixels
        side = self.decoder.preprocessing.resize
        return np.zeros((side, side, 3), np.uint8)


def load_pixels(
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    cache: Path,
    workers: int,
    progress: Progress | None = None,
) -> tuple[list[Sample], PixelSource, list[Skipped]]:
    """Read every file once. Returns the usable samples, their pixels in the same order, and what was skipped."""
    usable: list[Sample] = []
    skipped: list[Skipped] = []
    shapes: list[tuple[int, int, int]] = []
    written = 0
    loader = DataLoader(
        Decoder([sample.path for sample in samples], preprocessing), batch_size=None, num_workers=workers
    )
    with cache.open("wb") as file:
        for done, (sample, pixels) in enumerate(zip(samples, loader, strict=True), 1):
            if isinstance(pixels, str):
                skipped.append(Skipped(sample.id, pixels))
            else:
                usable.append(sample)
                array = np.asarray(pixels)
                shapes.append((array.shape[0], array.shape[1], 3))
                written += array.nbytes
                if written <= CACHE_LIMIT:
                    file.write(array.tobytes())
            if progress is not None:
                progress(done, len(samples))
    if written <= CACHE_LIMIT:
        return usable, CachedPixels(cache, shapes), skipped
    cache.unlink()
    return usable, DecodedPixels(usable, preprocessing), skipped
