"""Decode the pixels of many images: every file is read and checked once, in worker processes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch.utils.data import Dataset

from sic.data.dataset import Progress, Sample, Skipped
from sic.data.duplicates import Fingerprint, fingerprint
from sic.data.images import Pixels, Preprocessing, UnreadableImage, read_image
from sic.data.loader import loader

CACHE_LIMIT = 8 << 30
"""The most bytes of decoded pixels that are cached; larger datasets are decoded at every use."""


class PixelSource(Protocol):
    """Reduced images, H×W×3, by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Pixels: ...


class FirstLook(Dataset[tuple[Pixels, Fingerprint] | str]):
    """Decodes files in loader workers to a reduced image and its fingerprint, or the reason why it cannot be read."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = list(paths), preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Pixels, Fingerprint] | str:
        try:
            image = read_image(self.paths[index])
            return self.preprocessing.reduce(image), fingerprint(image)
        except UnreadableImage as error:
            return str(error)


class CachedPixels:
    """Pixels in one file, mapped into memory on first use (in each worker)."""

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
    """Pixels decoded at every use. Another image replaces a file that has become unreadable since it was checked."""

    def __init__(self, samples: Sequence[Sample], preprocessing: Preprocessing) -> None:
        self.samples, self.preprocessing = list(samples), preprocessing

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Pixels:
        wanted, count = self.samples[index].labels, len(self)
        for candidate in (index, *((index + step) % count for step in range(1, count))):
            if self.samples[candidate].labels == wanted:
                with suppress(UnreadableImage):
                    return self.preprocessing.reduce(read_image(self.samples[candidate].path))
        return np.zeros((self.preprocessing.resize, self.preprocessing.resize, 3), np.uint8)


@dataclass
class Loaded:
    """The readable samples, their pixels and fingerprints in the same order, and the skipped files."""

    samples: list[Sample]
    pixels: PixelSource
    prints: list[Fingerprint]
    skipped: list[Skipped]


def load_pixels(
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    cache: Path,
    workers: int,
    progress: Progress | None = None,
) -> Loaded:
    """Read every file once and cache its pixels."""
    usable: list[Sample] = []
    prints: list[Fingerprint] = []
    skipped: list[Skipped] = []
    shapes: list[tuple[int, int, int]] = []
    written = 0
    looks = FirstLook([sample.path for sample in samples], preprocessing)
    loaded = loader(looks, workers=workers)
    with cache.open("wb") as file:
        for done, (sample, look) in enumerate(zip(samples, loaded, strict=True), 1):
            if isinstance(look, str):
                skipped.append(Skipped(sample.id, look))
            else:
                usable.append(sample)
                array = np.asarray(look[0])
                prints.append(look[1])
                shapes.append((array.shape[0], array.shape[1], 3))
                written += array.nbytes
                if written <= CACHE_LIMIT:
                    file.write(array.tobytes())
            if progress is not None:
                progress(done, len(samples))
    if written <= CACHE_LIMIT:
        return Loaded(usable, CachedPixels(cache, shapes), prints, skipped)
    cache.unlink()
    return Loaded(usable, DecodedPixels(usable, preprocessing), prints, skipped)
