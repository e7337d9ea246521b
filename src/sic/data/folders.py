"""Class folders: one folder per class, with or without train/val/test folders around them."""

import os
from pathlib import Path

from sic.data.dataset import ImageData, Sample, Skipped
from sic.data.images import SUFFIXES
from sic.errors import SicError

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    """All files below, in a fixed order; links to folders are not followed, so that nothing is visited twice."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
    return found


def has_splits(root: Path) -> bool:
    return any(folder.name.lower() == "train" and _subfolders(folder) for folder in _subfolders(root))


def open_folders(root: Path) -> ImageData:
    """Read a tree of class folders. Classes are sorted by name; every image below a class's folder belongs to it."""
    sources = {"train": root}
    if has_splits(root):
        sources = {}
        for folder in _subfolders(root):
            split = SPLITS.get(folder.name.lower())
            if split is not None and split not in sources:
                sources[split] = folder
    skipped: list[Skipped] = []
    found: dict[str, dict[str, list[Path]]] = {}
    for split, folder in sources.items():
        for class_folder in _subfolders(folder):
            images = []
            for file in _files(class_folder):
                if file.suffix.lower() in SUFFIXES:
                    images.append(file)
                else:
                    skipped.append(
                        Skipped(_name(file, root), f"not an image by its name ({file.suffix or 'no suffix'})")
                    )
            found.setdefault(class_folder.name, {})[split] = images
    classes = tuple(sorted(name for name, by_split in found.items() if by_split.get("train")))
    for name in sorted(set(found) - set(classes)):
        skipped.append(Skipped(name, "class folder without training images"))
    if len(classes) < 2:
        what = f"only one class with images ({classes[0]})" if classes else "no class folder with images"
        raise SicError(
            f"{root} holds {what}; sic needs at least two folders of images, one per class, named after the classes."
        )
    splits = {
        split: [
            Sample(_name(file, root), file, (index,))
            for index, name in enumerate(classes)
            for file in found[name].get(split, [])
        ]
        for split in sources
    }
    layout = "train/val/test folders" if "train" in sources and sources["train"] != root else "class folders"
    return ImageData(root.name, root, layout, classes, splits, skipped=skipped)


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()
