"""Training transforms on the loader's side: reduced images in, a batch of bytes N×3×S×S out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2

from sic.data.images import Pixels, Preprocessing

Augmentation = Literal["none", "affine", "photo"]


def evaluation_view(images: Sequence[Pixels], preprocessing: Preprocessing) -> Tensor:
    """Central crops, as the model sees images after training."""
    return torch.from_numpy(np.stack([preprocessing.crop(image) for image in images])).permute(0, 3, 1, 2)


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


@dataclass(frozen=True)
class TrainingTransform:
    """none: the evaluation view. affine: `affine` on it. photo: the paper's random crops, flips and erased boxes."""

    augmentation: Augmentation
    preprocessing: Preprocessing

    def __call__(self, images: Sequence[Pixels], generator: torch.Generator) -> Tensor:
        if self.augmentation == "photo":
            return self._photos(images, generator)
        views = evaluation_view(images, self.preprocessing)
        return views if self.augmentation == "none" else affine(views, generator)

    def _photos(self, images: Sequence[Pixels], generator: torch.Generator) -> Tensor:
        size = self.preprocessing.size
        photo = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.RandomErasing()])
        # torchvision draws from the global generator: seed it for this batch and leave it as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return torch.stack([photo(torch.from_numpy(np.array(image)).permute(2, 0, 1)) for image in images])
