"""Open a dataset in any layout: `open` recognises it, and each layout has a file here.

To add a layout, write a module with a function that recognises a folder and one that reads it, and add it to `LAYOUTS`.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sic.data import birds, drawing
from sic.data.boxes import cut_to_boxes
from sic.data.dataset import ImageData, Progress, same_but_for_case
from sic.data.layouts import funnybirds
from sic.data.layouts.cub import is_cub, open_cub
from sic.data.layouts.dogs import is_dogs, open_dogs
from sic.data.layouts.folders import open_folders
from sic.data.layouts.funnybirds import is_funnybirds, open_funnybirds
from sic.data.layouts.manifest import is_manifest, open_manifest
from sic.data.layouts.rsna import is_rsna, open_rsna
from sic.data.layouts.shards import is_shards, open_shards
from sic.data.layouts.voc import is_voc, open_voc
from sic.data.table import SUFFIXES as TABLES
from sic.errors import SicError
from sic.files import cache_folder

BUILT_IN = "birds"
"""The name of the built-in dataset."""


@dataclass(frozen=True)
class Layout:
    """How to recognise a folder of a layout, and how to read it."""

    recognises: Callable[[Path], bool]
    read: Callable[[Path], ImageData]


LAYOUTS: dict[str, Layout] = {
    "funnybirds": Layout(is_funnybirds, open_funnybirds),
    "voc": Layout(is_voc, open_voc),
    "cub": Layout(is_cub, open_cub),
    "dogs": Layout(is_dogs, open_dogs),
    "rsna": Layout(is_rsna, open_rsna),
    "manifest": Layout(is_manifest, open_manifest),
    "shards": Layout(is_shards, open_shards),
    "folders": Layout(Path.is_dir, open_folders),
}
"""By the name that `--layout` takes. The first layout that recognises a folder reads it."""


def open(
    where: str | Path,
    progress: Progress | None = None,
    *,
    layout: str | None = None,
    group: str | None = None,
    roi: bool = False,
) -> ImageData:
    """Open a dataset: a folder or a table in any of the `LAYOUTS`, or the built-in `birds`.

    Args:
        where: The folder or table, or "birds" (a folder of that name is `./birds`, or a `Path`).
        progress: Called with the number of finished images and their total.
        layout: One of the `LAYOUTS`; by default the layout is recognised.
        group: A regular expression that finds the group (patient, specimen) in a sample's id: its first group, or the
            whole match. Images of one group stay in one split.
        roi: Crop every image to its bounding box.

    Returns:
        The samples by split, with the problems that were found.
    """
    pattern = _pattern(group)
    data = _read(where, progress, layout)
    data.problems += same_but_for_case(data.classes)
    data.opened_with = {"where": BUILT_IN if where == BUILT_IN else str(data.root.resolve())}
    data.opened_with |= {"layout": layout, "group": group, "roi": roi}
    if pattern is not None:
        data = _grouped(data, pattern)
    return cut_to_boxes(data, cache_folder() / "roi", progress) if roi else data


def _read(where: str | Path, progress: Progress | None, layout: str | None) -> ImageData:
    if layout is not None and layout not in LAYOUTS:
        raise SicError(f"--layout {layout} does not exist; choose from {', '.join(LAYOUTS)}.")
    if where == BUILT_IN and layout is None:
        return replace(open_funnybirds(built_in_birds(progress)), name=BUILT_IN)
    root = Path(where)
    if not root.exists():
        raise SicError(
            f"{root} does not exist; give a folder of class folders, or {BUILT_IN} for the built-in dataset."
        )
    if not root.is_dir() and (layout not in (None, "manifest") or root.suffix.lower() not in TABLES):
        raise SicError(
            f"{root} is a file; give a folder with one folder of images per class, or a table of images "
            f"({', '.join(sorted(TABLES))})."
        )
    if not root.is_dir():
        return open_manifest(root)
    if layout is not None:
        return LAYOUTS[layout].read(root)
    return _recognised(root)


def _recognised(root: Path) -> ImageData:
    """Read with the first layout that recognises the folder or, as in unpacked archives, the only folder in it."""
    for folder in (root, *_only_folder(root)):
        for name, known in LAYOUTS.items():
            if name != "folders" and known.recognises(folder):
                return known.read(folder)
    return open_folders(root)


def _only_folder(root: Path) -> list[Path]:
    folders = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__MACOSX"))]
    return folders if len(folders) == 1 else []


def _pattern(group: str | None) -> re.Pattern[str] | None:
    try:
        return None if group is None else re.compile(group)
    except re.error as error:
        raise SicError(f"--group {group!r} is not a regular expression ({error}).") from None


def _grouped(data: ImageData, pattern: re.Pattern[str]) -> ImageData:
    """The dataset with the groups of the samples that match the pattern."""
    splits = {
        split: [replace(sample, group=_group(sample.id, pattern)) for sample in samples]
        for split, samples in data.splits.items()
    }
    if all(sample.group is None for samples in splits.values() for sample in samples):
        example = next(sample.id for samples in splits.values() for sample in samples)
        raise SicError(f"--group {pattern.pattern!r} matches no image path, such as {example}.")
    return replace(data, splits=splits)


def _group(id: str, pattern: re.Pattern[str]) -> str | None:
    found = pattern.search(id)
    if found is None:
        return None
    return next((part for part in found.groups() if part is not None), found[0])


def built_in_birds(progress: Progress | None = None) -> Path:
    """The folder of the built-in birds, rendered on first use; its name changes with the code that draws them."""
    code = b"".join(Path(str(module.__file__)).read_bytes() for module in (birds, drawing, funnybirds))
    folder = cache_folder() / f"birds-{hashlib.sha256(code).hexdigest()[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            funnybirds.write_funnybirds(folder, progress=progress)
        except OSError:
            if not folder.is_dir():  # else another process has finished drawing the same birds
                raise
    return folder
