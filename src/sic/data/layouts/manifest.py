"""Manifests: a CSV, TSV or Parquet table with one row per image (or per box) and paths relative to the table.

Columns, in any order and case: `path` and `label`, where several labels are joined by `|`; optionally `split` (train,
val, test), `group` (patient, specimen) and a box, as `left, top, right, bottom` or `x, y, width, height`. With boxes,
an image has one row per box, with the label of the box. In a column called `labels`, an empty cell means that the
image shows none of the classes.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, ImageData, Sample, Skipped, require_training_images
from sic.data.layouts.folders import SPLITS
from sic.data.table import SUFFIXES, Row, Table, columns_of, read_table
from sic.errors import SicError

# fmt: off
SYNONYMS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"),
    "label": ("label", "labels", "class", "classes", "class_name", "category", "target"),
    "split": ("split", "set", "subset", "partition"),
    "group": ("group", "patient", "patient_id", "patientid", "subject", "subject_id", "specimen"),
    "left": ("left", "xmin", "x_min", "x1"),
    "top": ("top", "ymin", "y_min", "y1"),
    "right": ("right", "xmax", "x_max", "x2"),
    "bottom": ("bottom", "ymax", "y_max", "y2"),
    "x": ("x",), "y": ("y",), "width": ("width", "w"), "height": ("height", "h"),
}
# fmt: on
CORNERS, EXTENT = ("left", "top", "right", "bottom"), ("x", "y", "width", "height")


def _meanings(columns: tuple[str, ...]) -> dict[str, str]:
    """The name in the table of each column with a known meaning."""
    return {
        meaning: next(name for name in names if name in columns)
        for meaning, names in SYNONYMS.items()
        if not set(names).isdisjoint(columns)
    }


def is_manifest(folder: Path) -> bool:
    """Whether a folder holds a table of paths and labels."""
    return bool(_tables(folder))


def _tables(folder: Path) -> list[Path]:
    return [
        file
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES
        and not file.name.startswith(".")
        and {"path", "label"} <= _meanings(columns_of(file)).keys()
    ]


def open_manifest(where: Path) -> ImageData:
    """Read a table, or a folder with one table, or with one table for each split."""
    files = _tables(where) if where.is_dir() else [where]
    if not files:
        raise SicError(f"{where} has no table with the columns path and label; name the file.")
    if len(files) > 1 and not all(file.stem.lower() in SPLITS for file in files):
        raise SicError(f"{where} holds {' and '.join(file.name for file in files)}; give one of these files.")
    reader = _Reader()
    for file in files:
        reader.read(read_table(file))
    where = files[0] if len(files) == 1 else where
    return require_training_images(reader.data(where, ", ".join(file.name for file in files)))


@dataclass
class _Entry:
    """The content of the rows of one image."""

    path: Path
    said: str
    """The table and line of its first row."""
    split: str
    group: str | None
    labels: set[str] = field(default_factory=set)
    boxes: list[tuple[str, tuple[float, float, float, float]]] = field(default_factory=list)


class _Bad(Exception):
    """The reason why a row is not used."""


class _Reader:
    """Reads tables and collects their problems."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.skipped: list[Skipped] = []
        self.problems: list[str] = []

    def read(self, table: Table) -> None:
        columns = _meanings(table.columns)
        for needed in ("path", "label"):
            if needed not in columns:
                raise SicError(
                    f"{table.path} has no column {needed}; its first line must name the columns, such as path,label."
                )
        for row in table.rows:
            where = f"{row.place} of {table.path.name}"
            try:
                self._row(_Cells(row, columns), table.path, where)
            except _Bad as reason:
                self.skipped.append(Skipped(where, str(reason)))

    def _row(self, cells: "_Cells", table: Path, where: str) -> None:
        id, path = _find(cells["path"], table.parent)
        labels = {name for part in cells["label"].split("|") if (name := part.strip())}
        if not labels and cells.columns["label"] not in ("labels", "classes"):
            raise _Bad(f"no label for {id}")
        entry = _Entry(path, where, cells.split(table), cells["group"] or None, labels)
        corners = cells.corners()
        if corners is not None:
            if len(labels) != 1:
                raise _Bad(f"a box needs one label, not {len(labels)}")
            entry.boxes = [(next(iter(labels)), corners)]
        first = self.entries.setdefault(id, entry)
        if first is not entry:
            _add(first, entry, id, boxed=cells.boxed)

    def data(self, where: Path, tables: str) -> ImageData:
        names = {name for entry in self.entries.values() if entry.split == "train" for name in entry.labels}
        whole = all(name.isdecimal() for name in names)
        classes = tuple(sorted(names, key=lambda name: (int(name), name) if whole else (0, name)))
        strangers = {name for entry in self.entries.values() for name in entry.labels} - names
        self.skipped += [Skipped(f"The class {name}", "no training images") for name in sorted(strangers)]
        splits: dict[str, list[Sample]] = {}
        for id, entry in self.entries.items():
            if entry.labels and entry.labels <= strangers:
                continue
            splits.setdefault(entry.split, []).append(self._sample(id, entry, classes))
        several = any(len(sample.labels) != 1 for samples in splits.values() for sample in samples)
        return ImageData(
            where.resolve().stem,
            where,
            f"manifest ({tables})",
            classes,
            {split: splits[split] for split in dict.fromkeys(SPLITS.values()) if split in splits},
            task="multi" if several else "single",
            skipped=self.skipped,
            problems=self.problems,
        )

    def _sample(self, id: str, entry: _Entry, classes: tuple[str, ...]) -> Sample:
        labels = tuple(sorted(classes.index(name) for name in entry.labels if name in classes))
        drawn = [Box(classes.index(name), *corners) for name, corners in entry.boxes if name in classes]
        boxes, odd = inside(drawn, size_of(entry.path) if drawn else None, id)
        self.problems += odd
        return Sample(id, entry.path, labels, boxes, entry.group)


@dataclass(frozen=True)
class _Cells:
    """A row, accessed by the meaning of its columns."""

    row: Row
    columns: dict[str, str]

    def __getitem__(self, meaning: str) -> str:
        return self.row[self.columns[meaning]] if meaning in self.columns else ""

    def split(self, table: Path) -> str:
        """The split in the row, else in the name of the table, else train."""
        said = self["split"] or (table.stem if table.stem.lower() in SPLITS else "train")
        if said.lower() not in SPLITS:
            raise _Bad(f"{said!r} is not a split; use train, val or test")
        return SPLITS[said.lower()]

    @property
    def boxed(self) -> bool:
        return any(all(name in self.columns for name in four) for four in (CORNERS, EXTENT))

    def corners(self) -> tuple[float, float, float, float] | None:
        """Left, top, right, bottom; None if the row has no box."""
        for four in (CORNERS, EXTENT):
            words = [self[name] for name in four]
            if any(words) and all(name in self.columns for name in four):
                try:
                    a, b, c, d = map(float, words)
                except ValueError:
                    raise _Bad(f"its box is not four numbers ({', '.join(words)})") from None
                return (a, b, c, d) if four is CORNERS else (a, b, a + c, b + d)
        return None


def _find(text: str, folder: Path) -> tuple[str, Path]:
    """The id and the file of a path in a table; backslashes are tried as slashes."""
    if not text:
        raise _Bad("no path")
    root = os.path.abspath(folder)
    for said in (text, text.replace("\\", "/")):
        path = Path(os.path.abspath(os.path.join(root, said)))
        if os.path.isfile(path):
            return (path.relative_to(root) if path.is_relative_to(root) else Path(said)).as_posix(), path
    raise _Bad(f"it points to {text}, which does not exist")


def _add(first: _Entry, entry: _Entry, id: str, boxed: bool) -> None:
    """Add another row of the same image."""
    if (first.split, first.group) != (entry.split, entry.group):
        raise _Bad(f"{id} has another split or group in {_lower(first.said)}")
    if not boxed:
        if first.labels == entry.labels:
            raise _Bad(f"it repeats {_lower(first.said)}")
        raise _Bad(f"{_lower(first.said)} gives {id} other labels; put several labels into one row, as a|b")
    first.labels |= entry.labels
    first.boxes += entry.boxes


def _lower(where: str) -> str:
    return where[0].lower() + where[1:]
