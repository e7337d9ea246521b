"""Decode image files in worker processes to views of a model, pixels or fingerprints."""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from sic.data import dicom, duplicates, images
from sic.data.dataset import Progress, Sample, Skipped
from sic.data.duplicates import Fingerprint, fingerprint
from sic.data.images import Pixels, Preprocessing, UnreadableImage, is_member, read_image
from sic.data.store import Store, code_of, key_of
from sic.errors import SicError
from sic.files import stamp_of
from sic.machines import cores

FEW = 256
"""The most images that are decoded without worker processes, because starting these takes longer."""
MOST_DECODERS = 16
"""The most processes for decoding."""
TOGETHER = 16
"""Images that a worker process decodes before it sends them."""
CACHE_LIMIT = 8 << 30
"""The most bytes of decoded pixels that are cached; larger datasets are decoded at every use."""


def most_workers() -> int:
    """The most loader processes: four for each core, and at least 16."""
    return max(16, 4 * (os.cpu_count() or 1))


def loader(data: Dataset[Any], batch_size: int | None = None, workers: int = 0, **options: Any) -> DataLoader[Any]:
    """torch's `DataLoader`, whose processes end with this one; without `batch_size`, it loads single items."""
    if not 0 <= workers <= most_workers():
        raise SicError(f"--workers {workers} is not possible; this machine allows 0 to {most_workers()}.")
    ending = partial(_end_with, os.getpid()) if workers else None
    return DataLoader(data, batch_size, num_workers=workers, worker_init_fn=ending, **options)


def _end_with(parent: int, _: int) -> None:
    """End this process when its parent has ended. torch's own check can wait for a full queue for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Decoded(Dataset[Any]):
    """The results of a function for image files. For a file that cannot be read, the reason as text or, without
    `or_reason`, `UnreadableImage`."""

    def __init__(self, paths: Sequence[Path], use: Callable[[Image.Image], Any], or_reason: bool = True) -> None:
        self.paths, self.use, self.or_reason = list(paths), use, or_reason

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.use(read_image(self.paths[index]))
        except UnreadableImage as error:
            if not self.or_reason:
                raise
            return str(error)


def view(preprocessing: Preprocessing, image: Image.Image) -> Tensor:
    """The model's view of an image as bytes, 3×S×S."""
    return torch.from_numpy(preprocessing(image).copy()).permute(2, 0, 1)


def view_batches(
    paths: Sequence[Path], preprocessing: Preprocessing, batch_size: int = 64, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Views in batches, N×3×S×S in [0, 1]; `UnreadableImage` for a file that cannot be read."""
    data = Decoded(paths, partial(view, preprocessing), or_reason=False)
    for batch in loader(data, batch_size, decoders(len(paths))):
        yield batch.to(device).float() / 255


def batch_on_cpu(size: int) -> int:
    """The batch size for images of `size` px on a CPU; larger batches take more memory and are not faster.

    >>> batch_on_cpu(224), batch_on_cpu(96), batch_on_cpu(32)
    (16, 64, 64)
    """
    return max(4, min(64, round(16 * (224 / size) ** 2)))


def readable_batches(
    paths: Sequence[Path], preprocessing: Preprocessing, device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, list[str | None]]]:
    """Views of the files that can be read, N×3×S×S in [0, 1], and for every file None or why it cannot be read."""
    data = Decoded(paths, partial(view, preprocessing))
    batch_size = batch_on_cpu(preprocessing.size) if torch.device(device).type == "cpu" else 256
    for views, reasons in loader(data, batch_size, decoders(len(paths)), collate_fn=_apart):
        yield (views.to(device).float() / 255 if views is not None else torch.zeros(0)), reasons


def _apart(batch: list[Tensor | str]) -> tuple[Tensor | None, list[str | None]]:
    views = [view for view in batch if isinstance(view, Tensor)]
    return (torch.stack(views) if views else None), [view if isinstance(view, str) else None for view in batch]


def views_or_reasons(paths: Sequence[Path], preprocessing: Preprocessing) -> Iterator[Tensor | str]:
    """Single views 3×S×S in [0, 1] on the CPU; for a file that cannot be read, the reason."""
    data = Decoded(paths, partial(view, preprocessing))
    for found in loader(data, workers=decoders(len(paths))):
        yield found if isinstance(found, str) else found.float() / 255


def readable(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Files that decode, and the others with the reason."""
    decoded = Decoded(paths, lambda image: None)
    with ThreadPoolExecutor(min(cores(), MOST_DECODERS)) as pool:
        reasons = list(pool.map(decoded.__getitem__, range(len(paths))))
    good = [path for path, reason in zip(paths, reasons, strict=True) if reason is None]
    return good, [(path, reason) for path, reason in zip(paths, reasons, strict=True) if reason is not None]


def decoders(images: int) -> int:
    """The number of processes for decoding: one for each core, none for a few images."""
    return min(cores(), MOST_DECODERS) if images > FEW else 0


@dataclass(frozen=True)
class Look:
    """What is found in an image, how it is stored as bytes, and read from them."""

    use: Callable[[Image.Image], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    name: object
    """Part of its key in the store."""


def looks(paths: Sequence[Path], look: Look, workers: int, keep: bool) -> Iterator[Any]:
    """What is found in image files, in their order; for a file that cannot be read, the reason.

    Unchanged files that were looked at before are not decoded again.

    Args:
        paths: The files.
        look: What to find.
        workers: Processes that decode.
        keep: Use the store, which then holds what was found.
    """
    data, code = Decoded(paths, look.use), code_of(images, dicom, duplicates)
    with Store(None if keep else 0) as store:
        keys = [_key(path, code, look.name) for path in data.paths]
        missing = [index for index, key in enumerate(keys) if key is None or key not in store]
        unknown, decoded = set(missing), _as_found(Subset(data, missing), min(workers, len(missing)))
        for index, key in enumerate(keys):
            stored = None if key is None or index in unknown else store.get(key)
            if stored is not None:
                yield look.decode(stored)
                continue
            # An entry that is no longer there was removed by another process in the meantime.
            found = next(decoded) if index in unknown else data[index]
            if key is not None and not isinstance(found, str):
                store.put(key, look.encode(found))
            yield found


def _as_found(data: Dataset[Any], workers: int) -> Iterator[Any]:
    """The items in order. Several travel at a time, and not as tensors, each of which would be sent by itself: this
    process would otherwise be slower than its workers."""
    # At once, also where nothing is missing: it draws a number, and the weights that are drawn next must not depend on
    # what is stored.
    batches = iter(loader(data, TOGETHER, workers, collate_fn=list))
    return (found for together in batches for found in together)


def _key(path: Path, code: str, name: object) -> bytes | None:
    """In the store, of what is found in a file; None if there is no such file."""
    stamp = stamp_of(path.parent.parent if is_member(path) else path)
    return None if stamp is None else key_of(code, PIL.__version__, str(path.absolute()), stamp, name)


FINGERPRINTS = Look(fingerprint, Fingerprint.encoded, Fingerprint.decoded, "fingerprint")


def read_fingerprints(
    paths: Sequence[Path], progress: Progress | None = None, keep: bool = True
) -> dict[Path, Fingerprint | str]:
    """Look at every file once, in worker processes; for an unreadable file, the reason. `keep` as in `looks`."""
    paths = list(dict.fromkeys(paths))
    found: dict[Path, Fingerprint | str] = {}
    for path, result in zip(paths, looks(paths, FINGERPRINTS, decoders(len(paths)), keep), strict=True):
        found[path] = result
        if progress is not None:
            progress(len(found), len(paths))
    return found


class PixelSource(Protocol):
    """Reduced images, H×W×3, by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Pixels: ...


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


def _first_look(preprocessing: Preprocessing, image: Image.Image) -> tuple[Pixels, Fingerprint]:
    return preprocessing.reduce(image), fingerprint(image)


SIDES = struct.Struct("<II")
"""Height and width of stored pixels."""


def _encoded(found: tuple[Pixels, Fingerprint]) -> bytes:
    pixels, own = found
    return SIDES.pack(*pixels.shape[:2]) + own.encoded() + np.asarray(pixels).tobytes()


def _decoded(stored: bytes) -> tuple[Pixels, Fingerprint]:
    start = SIDES.size + Fingerprint.BYTES
    height, width = SIDES.unpack(stored[: SIDES.size])
    pixels = np.frombuffer(stored, np.uint8, offset=start).reshape(height, width, 3)
    return pixels, Fingerprint.decoded(stored[SIDES.size : start])


def load_pixels(
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    cache: Path,
    workers: int,
    progress: Progress | None = None,
    keep: bool = True,
) -> Loaded:
    """Read every file once and cache its pixels in the file `cache`. `keep` as in `looks`."""
    usable: list[Sample] = []
    prints: list[Fingerprint] = []
    skipped: list[Skipped] = []
    shapes: list[tuple[int, int, int]] = []
    written = 0
    name = "pixels", preprocessing.resize, preprocessing.fit
    first = Look(partial(_first_look, preprocessing), _encoded, _decoded, name)
    loaded = looks([sample.path for sample in samples], first, workers, keep)
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
