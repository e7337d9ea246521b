"""Bounding boxes: clip boxes to their image, and crop images to their box."""

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil, floor
from pathlib import Path

from sic.data.dataset import Box, ImageData, Progress, Sample, Skipped, require_training_images
from sic.data.images import UnreadableImage, image_size, read_image, reasons
from sic.errors import SicError

TOLERANCE = 1.0
"""Pixels beyond the edge that count as rounding and are clipped without a message."""


def size_of(path: Path) -> tuple[int, int] | None:
    """Width and height of an image; None if it cannot be read, which is reported elsewhere."""
    try:
        return image_size(path)
    except UnreadableImage:
        return None


def inside(boxes: Sequence[Box], size: tuple[int, int] | None, file: str) -> tuple[tuple[Box, ...], list[str]]:
    """Clip boxes to an image of (width, height); also returns a sentence for each box that needed more than rounding.

    Boxes without area inside the image are dropped. Without a size, nothing is clipped.
    """
    width, height = size or (float("inf"), float("inf"))
    kept, problems = [], []
    for box in boxes:
        cut = box.clipped(width, height)
        where = f"The box {box.left:g}, {box.top:g}, {box.right:g}, {box.bottom:g} of {file}"
        if box.empty:
            problems.append(f"{where} has no area and is dropped.")
        elif cut.empty:
            problems.append(f"{where} is outside the image ({_size(size)}) and is dropped.")
        else:
            kept.append(cut)
            if _furthest(box, cut) > TOLERANCE:
                problems.append(f"{where} extends beyond the image ({_size(size)}) and is clipped.")
    return tuple(kept), problems


def _size(size: tuple[int, int] | None) -> str:
    return "of unknown size" if size is None else f"{size[0]}×{size[1]}"


def _furthest(box: Box, cut: Box) -> float:
    """How far a box extends beyond the edges."""
    return max(cut.left - box.left, cut.top - box.top, box.right - cut.right, box.bottom - cut.bottom)


class NoBoxes(SicError):
    """The images do not have one box each to crop to."""


def cut_to_boxes(data: ImageData, folder: Path, progress: Progress | None = None) -> ImageData:
    """Crop every image to its box; boxes and points are kept, relative to the crop.

    The crops are files below `folder`, written once, so the file of a sample is the image that the model sees.
    """
    whole = [sample for samples in data.splits.values() for sample in samples]
    if not any(sample.boxes for sample in whole):
        raise NoBoxes(f"--roi crops images to their box, but {data.root} ({data.layout}) has no boxes; leave it out.")
    for sample in whole:
        if len(sample.boxes) > 1:
            raise NoBoxes(f"--roi needs one box per image, but {sample.id} has {len(sample.boxes)}; leave it out.")
    cut: dict[str, Sample] = {}
    skipped = []
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda sample: _cut(sample, folder), whole)
        for done, (sample, result) in enumerate(zip(whole, results, strict=True), 1):
            if isinstance(result, str):
                skipped.append(Skipped(sample.id, result))
            else:
                cut[sample.id] = result
            if progress is not None:
                progress(done, len(whole))
    splits = {split: [cut[s.id] for s in samples if s.id in cut] for split, samples in data.splits.items()}
    splits = {split: samples for split, samples in splits.items() if samples}
    return require_training_images(replace(data, splits=splits, skipped=[*data.skipped, *skipped]))


def _cut(sample: Sample, folder: Path) -> Sample | str:
    """The sample with its cropped image, or the reason why there is none."""
    if not sample.boxes:
        return "it has no box to crop to"
    (box,) = sample.boxes
    left, top = floor(box.left), floor(box.top)
    region = left, top, ceil(box.right), ceil(box.bottom)
    try:
        with reasons(sample.path):
            state = sample.path.stat()
        # A new folder if the file or its box has changed.
        what = f"{sample.path.resolve()} {state.st_mtime_ns} {state.st_size} {region}"
        file = folder / hashlib.sha256(what.encode()).hexdigest()[:16] / f"{sample.path.stem}.png"
        if not file.is_file():
            image = read_image(sample.path).crop(region)
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")
            image.save(temporary, "PNG", compress_level=1)
            temporary.replace(file)
    except UnreadableImage as error:
        return str(error)
    x, y = (box.left - left, box.right - left), (box.top - top, box.bottom - top)
    moved = replace(box, left=x[0], top=y[0], right=x[1], bottom=y[1])
    points = tuple(point._replace(x=point.x - left, y=point.y - top) for point in sample.points)
    return replace(sample, path=file, boxes=(moved,), points=points)
