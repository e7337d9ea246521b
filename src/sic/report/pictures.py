"""Pictures as they go into the page: small, and inside it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sic.explain.picture import webp_uri

CELL, COLUMNS = 44, 40
"""Size and number per row of the thumbnails on a sheet."""


def on_white(rgba: NDArray[np.uint8]) -> NDArray[np.floating]:
    """H×W×4 → H×W×3 in [0, 1]."""
    scaled = rgba.astype(np.float32) / 255
    opacity = scaled[..., 3:]
    return scaled[..., :3] * opacity + 1 - opacity


def mosaic(colours: NDArray[np.floating], cell: int) -> str:
    """A matrix of colours R×C×3 in [0, 1] as squares of `cell` pixels, lossless."""
    pixels = (colours.clip(0, 1) * 255).round().astype(np.uint8)
    return webp_uri(Image.fromarray(pixels.repeat(cell, axis=0).repeat(cell, axis=1)), lossless=True)


def sheet(thumbnails: Sequence[NDArray[np.uint8] | None]) -> str:
    """All thumbnails in one picture, row by row: one large file is smaller than a thousand small ones."""
    rows = max(1, -(-len(thumbnails) // COLUMNS))
    result = Image.new("RGB", (COLUMNS * CELL, rows * CELL), "#888888")
    for number, pixels in enumerate(thumbnails):
        if pixels is not None:
            thumbnail = Image.fromarray(pixels).resize((CELL, CELL), Image.Resampling.BILINEAR)
            result.paste(thumbnail, (number % COLUMNS * CELL, number // COLUMNS * CELL))
    return webp_uri(result, quality=70)
