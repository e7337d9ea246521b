"""Unlabelled images in memory: decoded once, cropped and flipped on the device that trains."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sic.data.dataset import Progress
from sic.data.images import SUFFIXES, Preprocessing, UnreadableImage, read_image
from sic.errors import SicError

SMALLEST_CROP = 0.2
"""Share of an image's area that a crop shows at least."""
DECODED_AT_ONCE = 64


def image_files(folder: Path) -> list[Path]:
    """All image files in `folder` and below, sorted."""
    if not folder.is_dir():
        raise SicError(f"{folder} is not a folder of images.")
    found = sorted(
        Path(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES
    )
    if not found:
        raise SicError(f"There are no images in {folder}.")
    return found


class _Decoded(Dataset[tuple[list[int], Tensor]]):
    """Several files at a time: the positions of the readable ones and their pixels, one tensor for all of them. A
    tensor for each would keep the main process busy with receiving them."""

    def __init__(self, files: Sequence[Path], preprocessing: Preprocessing) -> None:
        self.files, self.preprocessing = files, preprocessing

    def __len__(self) -> int:
        return -(-len(self.files) // DECODED_AT_ONCE)

    def __getitem__(self, index: int) -> tuple[list[int], Tensor]:
        places, images = [], [np.empty((0, self.preprocessing.size, self.preprocessing.size, 3), np.uint8)]
        first = index * DECODED_AT_ONCE
        for place, file in enumerate(self.files[first : first + DECODED_AT_ONCE], first):
            try:
                images.append(self.preprocessing(read_image(file))[None])
            except UnreadableImage:
                continue
            places.append(place)
        return places, torch.from_numpy(np.concatenate(images).transpose(0, 3, 1, 2)).contiguous()


def decode(
    files: Sequence[Path], preprocessing: Preprocessing, workers: int, progress: Progress | None = None
) -> tuple[Tensor, list[int]]:
    """All readable files, bytes N×3×S×S, and the position of each among `files`."""
    size = preprocessing.size
    pixels = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    places: list[int] = []
    loader = DataLoader(_Decoded(files, preprocessing), batch_size=None, num_workers=workers)
    for done, (found, images) in enumerate(loader, 1):
        pixels[len(places) : len(places) + len(found)] = images
        places += found
        if progress is not None:
            progress(min(done * DECODED_AT_ONCE, len(files)), len(files))
    if not places:
        raise SicError(f"None of the {len(files)} images can be read; the first is {files[0]}.")
    return pixels[: len(places)], places


@dataclass(frozen=True)
class Crops:
    """Random crops of N images: the same part can be drawn at any size."""

    images: Tensor
    """Bytes N×3×H×W."""
    transforms: Tensor
    """N×2×3, from the crop's coordinates to the image's, as `affine_grid` takes them."""
    blended: Tensor | None = None
    """N, the share of the neighbouring crop that is blended into each, at most a half; None: none is blended."""

    @classmethod
    def draw(cls, images: Tensor, generator: np.random.Generator, mixup: float = 0.0) -> "Crops":
        """Parts of random area, proportion and place, half of them mirrored; `mixup`: the share of blended crops."""
        number = len(images)
        area = generator.uniform(SMALLEST_CROP, 1, number)
        proportion = np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3), number))
        sides = np.stack([np.sqrt(area * proportion), np.sqrt(area / proportion)], 1).clip(0, 1)
        places = generator.uniform(-1, 1, (number, 2)) * (1 - sides)
        mirrored = np.where(generator.random(number) < 0.5, -1.0, 1.0)
        transforms = np.zeros((number, 2, 3), np.float32)
        transforms[:, 0, 0], transforms[:, 1, 1] = sides[:, 0] * mirrored, sides[:, 1]
        transforms[:, :, 2] = places
        crops = cls(images, torch.from_numpy(transforms).to(images.device, non_blocking=True))
        if not mixup:
            return crops
        blended = np.where(generator.random(number) < mixup, generator.uniform(0, 0.5, number), 0).astype(np.float32)
        return replace(crops, blended=torch.from_numpy(blended).to(images.device, non_blocking=True))

    def at(self, size: int) -> Tensor:
        """RGB in [0, 1], N×3×size×size."""
        grid = F.affine_grid(self.transforms, [len(self.images), 3, size, size], align_corners=False)
        drawn = F.grid_sample(self.images.float(), grid, align_corners=False, padding_mode="border")
        if self.blended is not None:
            drawn = torch.lerp(drawn, drawn.roll(1, 0), self.blended[:, None, None, None])
        return (drawn / 255).contiguous(memory_format=torch.channels_last)
