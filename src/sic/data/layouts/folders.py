"""Class folders: one folder per class, with or without train/val/test folders around them."""

import os
from pathlib import Path

from sic.data.dataset import ImageData, Sample, Skipped, UnusableData
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
    """All files below a folder in a fixed order; links to folders are not followed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
    return found


def _splits(root: Path) -> dict[str, Path] | None:
    """The folders of the splits, if the root has them. A class can also be called `train`."""
    named = [(SPLITS.get(folder.name.lower()), folder) for folder in _subfolders(root)]
    found = {split: folder for split, folder in reversed(named) if split is not None and _subfolders(folder)}
    if "train" not in found:
        return None
    classes = {folder.name for folder in _subfolders(found["train"])}
    shared = any(classes & {f.name for f in _subfolders(found[split])} for split in found if split != "train")
    return found if shared or all(split is not None for split, _ in named) else None


def open_folders(root: Path) -> ImageData:
    """Read class folders. Classes are sorted by name; all images below the folder of a class belong to it."""
    splits_found = _splits(root)
    sources = splits_found or {"train": root}
    skipped = [
        Skipped(_name(file, root), "not in a class folder")
        for folder in sorted({root, *sources.values()})
        for file in sorted(folder.iterdir())
        if _is_image(file)
    ]
    if splits_found:
        others = sorted(set(_subfolders(root)) - set(sources.values()))
        skipped += [
            Skipped(folder.name, "not a split with class folders, or a second folder of the same split")
            for folder in others
        ]
    found: dict[str, dict[str, list[Path]]] = {}
    for split, folder in sources.items():
        for class_folder in _subfolders(folder):
            images = []
            for file in _files(class_folder):
                if _is_image(file):
                    images.append(file)
                else:
                    skipped.append(Skipped(_name(file, root), f"not an image file ({file.suffix or 'no suffix'})"))
            found.setdefault(_name(class_folder, folder), {})[split] = images
    classes = tuple(sorted(name for name, by_split in found.items() if by_split.get("train")))
    for name in sorted(set(found) - set(classes)):
        skipped.append(Skipped(name, "class folder without training images"))
    splits = {
        split: [
            Sample(_name(file, root), file, (index,))
            for index, name in enumerate(classes)
            for file in found[name].get(split, [])
        ]
        for split in sources
    }
    layout = "train/val/test folders" if splits_found else "class folders"
    data = ImageData(root.resolve().name, root, layout, classes, splits, skipped=skipped)
    if len(classes) < 2:
        what = f"only one class with images ({classes[0]})" if classes else "no class folder with images"
        raise UnusableData(
            f"{root} holds {what}; sic needs at least two folders of images, one per class, named after the classes.",
            data,
        )
    return data


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def _name(file: Path, root: Path) -> str:
    name = file.relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SicError(f"The name of {name!r} in {root} is not valid UTF-8; rename it.") from None
    return name
