"""From an image file, as people have them, to upright 8-bit RGB; and from there to what the model sees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

SUFFIXES = frozenset(
    [
        ".bmp",
        ".gif",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tga",
        ".tif",
        ".tiff",
        ".webp",
        ".avif",
    ]
)
Pixels = NDArray[np.uint8]


class UnreadableImage(Exception):
    """The reason why a file cannot be used, in a few words."""


def read_image(path: Path) -> Image.Image:
    """Decode one file to upright RGB: EXIF rotation applied, 16 bits scaled to 8, transparency laid over white."""
    try:
        with Image.open(path) as image:
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise UnreadableImage("no such file") from None
    except PermissionError:
        raise UnreadableImage("no permission to read it") from None
    except UnidentifiedImageError:
        raise UnreadableImage("empty file" if path.stat().st_size == 0 else "not an image") from None
    except Image.DecompressionBombError:
        raise UnreadableImage("too many pixels to decode safely") from None
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:  # what Pillow's decoders raise
        reason = "truncated file" if "truncated" in str(error).lower() else f"cannot be decoded ({error})"
        raise UnreadableImage(reason) from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image, dtype=np.float64)
        # 16-bit files span 0…65535; floating-point ones have no fixed range and are scaled to their own.
        low, high = (0.0, 65535.0) if image.mode != "F" else (float(values.min()), float(values.max()))
        grey = np.clip((values - low) / max(high - low, 1e-12), 0, 1) * 255
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@dataclass(frozen=True)
class Preprocessing:
    """How an RGB image becomes the model's square input."""

    size: int
    """Side of the model's input in pixels."""
    resize: int
    """Short side after resizing, before the centre crop; at least `size`."""
    fit: Literal["crop", "squash"] = "crop"
    """crop: keep proportions and take the central square. squash: see the whole image, proportions changed."""

    def reduce(self, image: Image.Image) -> Pixels:
        """H×W×3 at the resolution that crops are taken from."""
        if self.fit == "squash":
            width = height = self.resize
        else:
            scale = self.resize / min(image.size)
            width, height = (max(self.resize, round(side * scale)) for side in image.size)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.array(image)  # a copy: Pillow's own memory is read-only

    def crop(self, pixels: Pixels) -> Pixels:
        """The central size×size×3 square of a reduced image."""
        top, left = ((side - self.size) // 2 for side in pixels.shape[:2])
        return pixels[top : top + self.size, left : left + self.size]

    def __call__(self, image: Image.Image) -> Pixels:
        """The model's view of an image, size×size×3; stored as PNG it comes back bit for bit."""
        return self.crop(self.reduce(image))


def to_tensor(pixels: Pixels) -> Tensor:
    """H×W×3 bytes → 3×H×W float in [0, 1]."""
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255
