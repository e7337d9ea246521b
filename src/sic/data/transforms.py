"""Training transforms of bytes, N×3×S×S. The loader draws random parameters, and one batched operation on the training
device applies them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.data.images import Pixels, Preprocessing
from sic.data.parcel import Parcel
from sic.settings import Augmentation


@dataclass
class Moves(Parcel):
    """The transforms of the images of a batch."""

    source: Tensor
    """N×2×3: maps (x, y, 1) of the result to the image; both range from -1 to 1."""
    extent: Tensor
    """N×2: width and height of each image within the canvas, as shares."""
    erased: Tensor
    """N×4: left, top, right, bottom of the erased box, as shares of the result; all 0 without one."""

    def __getitem__(self, some: slice) -> "Moves":
        return Moves(self.source[some], self.extent[some], self.erased[some])


def evaluation_view(images: Sequence[Pixels], preprocessing: Preprocessing) -> Tensor:
    """Central crops, as in evaluation."""
    empty = np.empty((0, preprocessing.size, preprocessing.size, 3), np.uint8)  # a batch may have no supports
    views = np.stack([preprocessing.crop(image) for image in images]) if images else empty
    return torch.from_numpy(views).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class TrainingTransform:
    """none: the evaluation view. affine, xray: transforms of that view. photo: crops of the whole reduced image."""

    augmentation: Augmentation
    preprocessing: Preprocessing

    def canvas(self, images: Sequence[Pixels]) -> Tensor:
        """The images to transform, N×3×H×W; images of different sizes are in the upper left corner."""
        if self.augmentation != "photo":
            return evaluation_view(images, self.preprocessing)
        height, width = (max(image.shape[side] for image in images) for side in (0, 1))
        canvas = np.zeros((len(images), height, width, 3), np.uint8)
        for place, image in zip(canvas, images, strict=True):
            place[: image.shape[0], : image.shape[1]] = image
        return torch.from_numpy(canvas).permute(0, 3, 1, 2)

    def draw(self, images: Sequence[Pixels], generator: torch.Generator) -> Moves | None:
        """Random transforms of the images; None without augmentation."""
        number = len(images)
        nothing, whole = torch.zeros(number, 4), torch.ones(number, 2)
        if self.augmentation == "affine":
            return Moves(affine(number, generator), whole, nothing)
        if self.augmentation == "xray":
            return Moves(xray(number, generator), whole, boxes(number, (0.05, 0.2), generator))
        if self.augmentation == "photo":
            sides = torch.tensor([(image.shape[1], image.shape[0]) for image in images])
            crops = photo(sides, generator)
            return Moves(crops, sides / sides.amax(0), boxes(number, (0.02, 0.33), generator))
        return None

    def apply(self, canvas: Tensor, moves: Moves | None) -> Tensor:
        """The transformed images, N×3×S×S bytes, on the device of the canvas."""
        if moves is None:
            return canvas
        size = self.preprocessing.size
        grid = F.affine_grid(moves.source, [len(canvas), 3, size, size], align_corners=False)
        if self.augmentation == "photo":
            # Stay half a pixel away from the edge of each image, because the rest of the canvas is filling.
            pixel = 1 / (moves.extent * moves.extent.new_tensor([canvas.shape[3], canvas.shape[2]]))
            inside = (1 - pixel)[:, None, None]
            extent = moves.extent[:, None, None]
            grid = (torch.clamp(grid, -inside, inside) + 1) * extent - 1
        # X-rays are padded with black, like the air around a patient; others are mirrored, so corners are no feature.
        around = "zeros" if self.augmentation == "xray" else "reflection"
        moved = F.grid_sample(canvas.float(), grid, padding_mode=around, align_corners=False)
        return _erased(moved, moves.erased).round().to(torch.uint8)

    def __call__(self, images: Sequence[Pixels], generator: torch.Generator) -> Tensor:
        """Draw and apply the transforms."""
        return self.apply(self.canvas(images), self.draw(images, generator))


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).uniform_(low, high, generator=generator)


def _similarity(flip: Tensor, angle: Tensor, scale: Tensor) -> Tensor:
    """N×2×2: rotations (in degrees) and scales after a flip, from positions in the result to positions in the image."""
    cosine, sine = (angle * (math.pi / 180)).cos() / scale, (angle * (math.pi / 180)).sin() / scale
    return torch.stack([torch.stack([flip * cosine, -flip * sine], 1), torch.stack([sine, cosine], 1)], 1)


def _flips(number: int, generator: torch.Generator) -> Tensor:
    return 1 - 2 * (_uniform((number,), 0, 1, generator) < 0.5).float()


def affine(number: int, generator: torch.Generator) -> Tensor:
    """The default: random flip, rotation by up to 12°, scale 0.85–1.15, shift by up to 10 %. N×2×3."""
    angle, scale = _uniform((number,), -12, 12, generator), _uniform((number,), 0.85, 1.15, generator)
    linear = _similarity(_flips(number, generator), angle, scale)
    return torch.cat([linear, _uniform((number, 2, 1), -0.2, 0.2, generator)], 2)  # an image is 2 wide


def xray(number: int, generator: torch.Generator) -> Tensor:
    """The paper's for chest X-rays: random flip, rotation by up to 45°, scale 0.85–1.15, shift by up to 15 %. N×2×3."""
    angle, scale = _uniform((number,), -45, 45, generator), _uniform((number,), 0.85, 1.15, generator)
    linear = _similarity(_flips(number, generator), angle, scale)
    shift = _uniform((number, 2, 1), -0.3, 0.3, generator)
    return torch.cat([linear, -linear @ shift], 2)


def photo(sides: Tensor, generator: torch.Generator, tries: int = 10) -> Tensor:
    """The paper's for photographs: crops of 8–100 % of the area with sides 3:4 to 4:3, random flip. N×2×3.

    `sides`: N×2, width and height. Like torchvision's RandomResizedCrop: the first of ten crops that fits into the
    image; if none does, the largest central one.
    """
    number, (width, height) = len(sides), sides.float().T
    area = _uniform((number, tries), 0.08, 1, generator) * (width * height)[:, None]
    ratio = _uniform((number, tries), math.log(3 / 4), math.log(4 / 3), generator).exp()
    shares = torch.stack([(area * ratio).sqrt() / width[:, None], (area / ratio).sqrt() / height[:, None]], 2)
    fits = (shares <= 1).all(2)
    shares = shares[torch.arange(number), fits.int().argmax(1)]
    proportion = (width / height).clamp(3 / 4, 4 / 3)
    largest = torch.stack([(height * proportion / width).clamp_max(1), (width / proportion / height).clamp_max(1)], 1)
    none = ~fits.any(1, keepdim=True)
    shares = torch.where(none, largest, shares)
    free = torch.where(none, 0.0, (1 - shares) * _uniform((number, 2), -1, 1, generator))
    turned = torch.stack([_flips(number, generator), torch.ones(number)], 1)
    return torch.cat([torch.diag_embed(shares * turned), free[:, :, None]], 2)


def boxes(number: int, areas: tuple[float, float], generator: torch.Generator, tries: int = 10) -> Tensor:
    """Random erasing of half of the images: boxes with these shares of the area and sides of up to 3.3:1. N×4."""
    area = _uniform((number, tries), *areas, generator)
    ratio = _uniform((number, tries), math.log(0.3), math.log(3.3), generator).exp()
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 2)
    fits = (sides < 1).all(2)
    sides = sides[torch.arange(number), fits.int().argmax(1)]
    corner = (1 - sides) * _uniform((number, 2), 0, 1, generator)
    chosen = (_uniform((number,), 0, 1, generator) < 0.5) & fits.any(1)
    return torch.cat([corner, corner + sides], 1) * chosen[:, None]


def _erased(images: Tensor, boxes: Tensor) -> Tensor:
    """Set the pixels whose centre is in the box to black."""
    height, width = images.shape[2:]
    left, top, right, bottom = boxes[:, :, None].unbind(1)
    x = (torch.arange(width, device=images.device) + 0.5) / width
    y = (torch.arange(height, device=images.device) + 0.5) / height
    columns, rows = (x >= left) & (x < right), (y >= top) & (y < bottom)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)
