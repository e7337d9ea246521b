"""Boxes as people draw them: some reach over the edge of their image, some lie beside it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sic.data.dataset import Box
from sic.data.images import UnreadableImage, image_size

TOLERANCE = 1.0
"""Pixels over the edge that are put down to rounding and cut off without a word."""


def size_of(path: Path) -> tuple[int, int] | None:
    """Width and height of an image; None if it cannot be read, which is said elsewhere."""
    try:
        return image_size(path)
    except UnreadableImage:
        return None


def inside(boxes: Sequence[Box], size: tuple[int, int] | None, file: str) -> tuple[tuple[Box, ...], list[str]]:
    """The boxes cut to an image of (width, height), and a sentence for each that needed more than rounding.

    Boxes without area inside the image are dropped. An unknown size is no edge.
    """
    width, height = size or (float("inf"), float("inf"))
    kept, problems = [], []
    for box in boxes:
        cut = replace(
            box,
            left=max(box.left, 0.0),
            top=max(box.top, 0.0),
            right=min(box.right, float(width)),
            bottom=min(box.bottom, float(height)),
        )
        where = f"The box {box.left:g}, {box.top:g}, {box.right:g}, {box.bottom:g} of {file}"
        if not (box.left < box.right and box.top < box.bottom):
            problems.append(f"{where} has no area and is dropped.")
        elif not (cut.left < cut.right and cut.top < cut.bottom):
            problems.append(f"{where} lies outside of the image ({_size(size)}) and is dropped.")
        else:
            kept.append(cut)
            if _furthest(box, cut) > TOLERANCE:
                problems.append(f"{where} reaches over the edge of the image ({_size(size)}) and is cut off there.")
    return tuple(kept), problems


def _size(size: tuple[int, int] | None) -> str:
    return "of unknown size" if size is None else f"{size[0]}×{size[1]}"


def _furthest(box: Box, cut: Box) -> float:
    """How far a box reaches over the edges."""
    return max(cut.left - box.left, cut.top - box.top, box.right - cut.right, box.bottom - cut.bottom)
