"""Training transforms on the loader's side: reduced images in, a batch of bytes N×3×S×S out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2

from sic.data.images import Pixels, Preprocessing

Augmentation = Literal["none", "affine", "photo", "xray"]


def evaluation_view(images: Sequence[Pixels], preprocessing: Preprocessing) -> Tensor:
    """Central crops, as the model sees images after training."""
    empty = np.empty((0, preprocessing.size, preprocessing.size, 3), np.uint8)  # a batch may have no supports
    views = np.stack([preprocessing.crop(image) for image in images]) if images else empty
    return torch.from_numpy(views).permute(0, 3, 1, 2)


def affine(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Each image by itself: flipped or not, turned by up to 12°, scaled by 0.85–1.15, shifted by up to 10 %.

    What comes in from outside the image is its mirror image, so that no black corner can become a feature.
    """
    number = len(batch)

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(number).uniform_(low, high, generator=generator).to(batch.device)

    angle, scale = uniform(-12, 12) * (math.pi / 180), 1 / uniform(0.85, 1.15)
    flip = 1 - 2 * (uniform(0, 1) < 0.5).float()
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    shift_x, shift_y = uniform(-0.2, 0.2), uniform(-0.2, 0.2)  # the grid runs from -1 to 1
    rows = [torch.stack([flip * cosine, -flip * sine, shift_x], 1), torch.stack([sine, cosine, shift_y], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(batch.shape), align_corners=False)
    moved = F.grid_sample(batch.float(), grid, padding_mode="reflection", align_corners=False)
    return moved.round().to(torch.uint8)


def photo(size: int) -> v2.Transform:
    """The paper's for photographs: random crops of 8–100 %, flips, boxes of 2–33 % blackened in every other image."""
    crop = v2.RandomResizedCrop(size, scale=(0.08, 1), interpolation=v2.InterpolationMode.BILINEAR)
    return v2.Compose([crop, v2.RandomHorizontalFlip(0.5), v2.RandomErasing(0.5, scale=(0.02, 0.33))])


def xray() -> v2.Transform:
    """The paper's for chest X-rays: flipped, turned, shifted, scaled, boxes of 5–20 % blackened in every other image.

    What comes in from outside is black, as is the air around a patient.
    """
    move = v2.RandomAffine(45, translate=(0.15, 0.15), scale=(0.85, 1.15), interpolation=v2.InterpolationMode.BILINEAR)
    return v2.Compose([v2.RandomHorizontalFlip(0.5), move, v2.RandomErasing(0.5, scale=(0.05, 0.2))])


@dataclass(frozen=True)
class TrainingTransform:
    """none: the evaluation view. affine, xray: those on it. photo: that on the whole reduced image."""

    augmentation: Augmentation
    preprocessing: Preprocessing

    def __call__(self, images: Sequence[Pixels], generator: torch.Generator) -> Tensor:
        if self.augmentation == "photo":
            whole = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]
            return _each(photo(self.preprocessing.size), whole, generator)
        views = evaluation_view(images, self.preprocessing)
        if self.augmentation == "xray":
            return _each(xray(), views, generator)
        return views if self.augmentation == "none" else affine(views, generator)


def _each(transform: v2.Transform, images: Iterable[Tensor], generator: torch.Generator) -> Tensor:
    """Each image transformed by itself."""
    # torchvision draws from the global generator: seed it for this batch and leave it as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return torch.stack([transform(image) for image in images])
