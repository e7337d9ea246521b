"""Draw contributions as pictures, and write pictures as files.

Only drawing scales, smooths and clips; contributions themselves are never changed.
"""

import base64
import io

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sic.methods import Contributions, opacity

SMOOTHING = 9
FULL_STRENGTH = 0.5
"""Sum of contributions above which a picture has full colour."""
LONGEST = 256
"""Longer side in pixels of a picture inside a page."""
RED_BLUE = np.array(
    [
        [5, 48, 97],
        [33, 102, 172],
        [67, 147, 195],
        [146, 197, 222],
        [209, 229, 240],
        [247, 247, 247],
        [253, 219, 199],
        [244, 165, 130],
        [214, 96, 77],
        [178, 24, 43],
        [103, 0, 31],
    ]
)
"""ColorBrewer's RdBu from -1 to 1, which is safe for readers with red-green colour blindness."""


def alpha(weights: Tensor, maps: Tensor, smooth: bool = True) -> Tensor:
    """Opacity N×H×W: `‖w‖`, 0 for negative contributions, smoothed, divided by its 99.9th percentile, clipped at 1."""
    norms = weights.norm(dim=1) * (maps >= 0)
    if smooth:
        norms = F.avg_pool2d(norms[:, None], SMOOTHING, 1, SMOOTHING // 2)[:, 0]
    return opacity(norms)


def rgba(weights: Tensor, maps: Tensor, smooth: bool = True) -> Tensor:
    """Dynamic weights N×6×H×W as colour pictures N×4×H×W in [0, 1].

    Each colour and its inverse are scaled to sum to 1, which keeps their angle.
    """
    positive = weights.clamp(min=0)
    colour, inverse = positive.chunk(2, dim=1)
    rgb = colour / (colour + inverse).clamp_min(1e-12)
    return torch.cat([rgb, alpha(weights, maps, smooth)[:, None]], dim=1)


def colour_picture(contributions: Contributions) -> Tensor:
    """The colours that the model responds to, 4×H×W, without leading dimensions; pale if there is little evidence."""
    picture = rgba(contributions.weights[None], contributions.maps[None])[0]
    picture[3] *= strength(contributions.maps)
    return picture


def over_white(picture: Tensor) -> NDArray[np.float32]:
    """RGBA 4×H×W on white, as H×W×3."""
    opacity = picture[3:]
    array: NDArray[np.float32] = (picture[:3] * opacity + 1 - opacity).permute(1, 2, 0).float().cpu().numpy()
    return array


def strength(maps: Tensor) -> float:
    """Opacity of a whole picture. Pictures are scaled to their own content, so one with little evidence must fade."""
    return min(1.0, maps.sum().abs().item() / FULL_STRENGTH)


def red_blue(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Values in [-1, 1] as RGB colours in [0, 1], … → …×3: blue below zero, red above."""
    stops = np.linspace(-1, 1, len(RED_BLUE))
    channels = [np.interp(values, stops, channel) for channel in RED_BLUE.T / 255]
    return np.stack(channels, axis=-1).astype(np.float32)


def signed(maps: Tensor, image: Tensor, smooth: bool = True) -> tuple[NDArray[np.float32], float]:
    """Signed contributions H×W over a grey copy of the image 3×H×W: the picture H×W×3, and the end of the colour
    scale."""
    drawn = smoothed(maps[None])[0] if smooth else maps
    limit = symmetric_limit(drawn) / max(strength(maps), 1e-6)
    scaled = (drawn / limit).clamp(-1, 1).float().cpu().numpy()
    opacity = np.abs(scaled)[..., None] ** 0.7
    grey = (0.6 + 0.4 * image.mean(dim=0)).float().cpu().numpy()[..., None]
    return grey * (1 - opacity) + red_blue(scaled) * opacity, limit


def symmetric_limit(maps: Tensor) -> float:
    """The end of a signed colour scale: the 99.5th percentile of `|φ|`."""
    return max(maps.abs().flatten().float().quantile(0.995).item(), 1e-12)


def smoothed(maps: Tensor, kernel: int = 5) -> Tensor:
    """Box-filtered maps N×H×W, for drawing."""
    return F.avg_pool2d(maps[:, None], kernel, 1, kernel // 2, count_include_pad=False)[:, 0]


def png(pixels: Tensor) -> bytes:
    """3×H×W or 4×H×W in [0, 1] as a PNG file."""
    array = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(buffer, "PNG")
    return buffer.getvalue()


def photo_uri(pixels: NDArray[np.uint8]) -> str:
    """H×W×3 as a data URI for a page, at most `LONGEST` pixels wide and high."""
    image = Image.fromarray(pixels)
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return webp_uri(image, quality=85)


def drawing_uri(pixels: NDArray[np.floating]) -> str:
    """H×W×3 in [0, 1] as a data URI for a page, at most `LONGEST` pixels wide and high."""
    return photo_uri((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def webp_uri(image: Image.Image, **options: object) -> str:
    """An image as a data URI; `options` as in Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", **options)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
