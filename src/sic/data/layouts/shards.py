"""WebDataset shards: tar files of images and labels, `7.jpg` beside `7.cls` or `7.json`.

Nothing is unpacked. The headers of each shard are read once to find the offsets of its images.
"""

import json
import re
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from sic.data.dataset import ImageData, Sample, Skipped, require_training_images
from sic.data.images import DICOM_SUFFIXES, SUFFIXES, member_path
from sic.data.layouts.folders import SPLITS
from sic.errors import SicError

NAMES = ("classes.txt", "classnames.txt")
"""Files with the names of numbered classes, one per line."""
KEYS = ("labels", "label", "cls", "class")
"""Keys of labels in JSON; the first one that exists is used."""


def is_shards(root: Path) -> bool:
    """Whether the folder, or the folders of its splits, has tar files and no other folders."""
    folders = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    return bool(_shards(root)) and all(folder.name.lower() in SPLITS for folder in folders)


def _shards(root: Path) -> list[Path]:
    return sorted([*root.glob("*.tar"), *root.glob("*/*.tar")])


def open_shards(root: Path) -> ImageData:
    """Read shards. The name of a shard or of its folder gives the split; the default is train."""
    skipped = [Skipped(file.name, "compressed: its images cannot be found without unpacking") for file in _packed(root)]
    found: dict[str, list[tuple[str, Path, list[Any]]]] = defaultdict(list)
    for shard in _shards(root):
        found[_split(shard.relative_to(root))] += _contents(shard, root, skipped)
    names = _names(root, {value for samples in found.values() for _, _, labels in samples for value in labels})
    classes = tuple(dict.fromkeys(names.values()))
    label = {value: classes.index(name) for value, name in names.items()}
    splits = {
        split: [Sample(id, path, tuple(sorted({label[value] for value in labels}))) for id, path, labels in samples]
        for split, samples in found.items()
    }
    several = any(len(sample.labels) > 1 for samples in splits.values() for sample in samples)
    data = ImageData(
        root.resolve().name, root, "tar shards", classes, splits, "multi" if several else "single", skipped
    )
    return require_training_images(data)


def _packed(root: Path) -> list[Path]:
    return sorted(file for pattern in ("*.tar.gz", "*.tgz", "*/*.tar.gz", "*/*.tgz") for file in root.glob(pattern))


def _split(shard: Path) -> str:
    """The split of a shard.

    >>> _split(Path("imagenet-val-0003.tar")), _split(Path("test/7.tar")), _split(Path("0.tar"))
    ('val', 'test', 'train')
    """
    words = re.split(r"[^a-z]+", shard.as_posix().lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "train")


def _contents(shard: Path, root: Path, skipped: list[Skipped]) -> list[tuple[str, Path, list[Any]]]:
    """The id, path and labels of every image in a shard."""
    name = shard.relative_to(root).as_posix()
    images: dict[str, tuple[str, Path]] = {}
    labels: dict[str, list[Any]] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if not member.isreg():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, ending = file.partition(".")
                key, suffix = f"{folder}/{stem}", f".{ending.lower()}"
                if suffix in SUFFIXES - DICOM_SUFFIXES:
                    path = member_path(shard, member.name, member.offset_data, member.size)
                    images[key] = f"{name}/{member.name}", path
                elif suffix in (".cls", ".json"):
                    content = tar.extractfile(member)
                    assert content is not None
                    told = _labels(content.read(), suffix)
                    if told and (suffix == ".cls" or key not in labels):  # JSON may be about something else
                        labels[key] = told
                else:
                    skipped.append(Skipped(f"{name}/{member.name}", "neither an image file nor .cls nor .json"))
    except (tarfile.TarError, EOFError, OSError) as error:
        skipped.append(Skipped(name, f"cannot be read completely ({error})"))
    for key in sorted(images):
        if key not in labels:
            skipped.append(Skipped(images[key][0], "no .cls or .json file with its label"))
    return [(*images[key], labels[key]) for key in images if key in labels]


def _labels(content: bytes, suffix: str) -> list[Any]:
    """Labels as numbers or names; empty if there are none."""
    text = content.decode(errors="replace").strip()
    if suffix == ".cls":
        return [int(text) if re.fullmatch(r"\d+", text) else text] if text else []
    try:
        said = json.loads(text)
    except ValueError:
        return []
    value = next((said[key] for key in KEYS if key in said), None) if isinstance(said, dict) else said
    return [one for one in (value if isinstance(value, list) else [value]) if type(one) in (int, str) and one != ""]


def _names(root: Path, values: set[Any]) -> dict[Any, str]:
    """The class name of each label, in the order of the numbers or names."""
    file = next((root / name for name in NAMES if (root / name).is_file()), None)
    if file is None or not all(isinstance(value, int) for value in values):
        return {value: str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))}
    try:
        listed = [line.strip() for line in file.read_text(encoding="utf-8").rstrip().splitlines()]
    except UnicodeDecodeError:
        raise SicError(f"{file} is not UTF-8 text; save it as UTF-8.") from None
    if not listed or "" in listed or len(set(listed)) < len(listed):
        raise SicError(f"{file} must have one line per class; it is empty, or has an empty or a repeated line.")
    wrong = [value for value in sorted(values) if not 0 <= value < len(listed)]
    if wrong:
        raise SicError(
            f"The shards in {root} have the label {wrong[0]}, and {file} names the classes 0 to {len(listed) - 1}; "
            "correct the labels or the file."
        )
    return dict(enumerate(listed))
