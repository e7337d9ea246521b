"""Stanford Dogs: 120 breeds in `Images/`, official lists of training and test images, boxes in `Annotation/`."""

import re
from pathlib import Path

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, ImageData, Sample, Skipped, require_training_images
from sic.data.images import SUFFIXES
from sic.data.layouts.voc import UnreadableAnnotation, read_annotation
from sic.errors import SicError

BREED = re.compile(r"n\d{8}-(.+)")
"""A breed's folder: its WordNet number and its name."""


def is_dogs(root: Path) -> bool:
    return bool(_breeds(root))


def _breeds(root: Path) -> list[Path]:
    images = root / "Images"
    return sorted(f for f in images.iterdir() if BREED.fullmatch(f.name) and f.is_dir()) if images.is_dir() else []


def open_dogs(root: Path) -> ImageData:
    """Read Stanford Dogs.

    `train_list.mat` and `test_list.mat` give the splits; without them, all images are training images.

    `n02085620-Chihuahua` is the class `Chihuahua`. An image may show several dogs; all boxes have its class.
    """
    folders = _breeds(root)
    if not folders:
        raise SicError(f"{root} is not Stanford Dogs; give the folder with Images, which has a folder per breed.")
    label = {folder.name: index for index, folder in enumerate(folders)}
    classes = tuple(folder.name.partition("-")[2].replace("_", " ") for folder in folders)
    found = {
        f"{folder.name}/{file.name}": file
        for folder in folders
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    }
    listed = _lists(root) or {"train": list(found)}
    splits: dict[str, list[Sample]] = {}
    skipped, problems = [], []
    for split, names in listed.items():
        for name in names:
            if name not in found:
                skipped.append(Skipped(f"Images/{name}", f"the list of {split} images names it but it does not exist"))
                continue
            boxes, odd = _boxes(root, name, label[name.partition("/")[0]], found[name])
            problems += odd
            sample = Sample(f"Images/{name}", found[name], (label[name.partition("/")[0]],), boxes)
            splits.setdefault(split, []).append(sample)
    used = {name for names in listed.values() for name in names}
    skipped += [Skipped(f"Images/{name}", "in neither of the lists") for name in found if name not in used]
    name = root.resolve().name
    return require_training_images(
        ImageData(name, root, "Stanford Dogs", classes, splits, skipped=skipped, problems=problems)
    )


def _lists(root: Path) -> dict[str, list[str]] | None:
    """Names below `Images/` by split; the lists may be in the root, because their archive has no folder."""
    for folder in (root / "lists", root):
        files = {split: folder / f"{split}_list.mat" for split in ("train", "test")}
        there = [file for file in files.values() if file.is_file()]
        if len(there) == 1:
            raise SicError(f"{there[0]} has no counterpart; put both train_list.mat and test_list.mat there.")
        if there:
            return {split: _file_list(file) for split, file in files.items()}
    return None


def _file_list(path: Path) -> list[str]:
    import numpy as np
    from scipy.io import loadmat

    try:
        return [str(name) for name in np.atleast_1d(loadmat(path, squeeze_me=True)["file_list"])]
    except Exception as error:  # a damaged file fails anywhere in scipy
        raise SicError(f"{path} is not a list of Stanford Dogs ({type(error).__name__}: {error}).") from None


def _boxes(root: Path, name: str, label: int, image: Path) -> tuple[tuple[Box, ...], list[str]]:
    """The boxes of an image (none without an annotation), and their problems."""
    file = (root / "Annotation" / name).with_suffix("")
    if not file.is_file():
        return (), []
    try:
        annotation = read_annotation(file)
    except UnreadableAnnotation as reason:
        return (), [f"Annotation/{file.parent.name}/{file.name} is ignored: {reason}."]
    boxes = [Box(label, *thing.corners, thing.difficult) for thing in annotation.things]
    return inside(boxes, annotation.size or size_of(image), f"Images/{name}")
