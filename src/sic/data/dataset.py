"""Labelled images in splits, independent of their layout on disk."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from sic.errors import SicError

Task = Literal["single", "multi"]
Progress = Callable[[int, int], None]
"""Called with the number of finished items and their total."""
Watch = Callable[[str, int, int], None]
"""Called with the name of a task, the number of finished items and their total."""
SMALLEST_CLASS = 5
"""Classes with fewer images keep all of them for training."""
NO_CLASS = -1
"""The class of images without a label."""


def nobody(task: str, done: int, total: int) -> None:
    """A `Watch` that does nothing."""


@dataclass(frozen=True)
class Box:
    """The bounding box of an object in pixels of the upright image; `right` and `bottom` are exclusive."""

    label: int
    left: float
    top: float
    right: float
    bottom: float
    difficult: bool = False
    """Marked as hard to recognise; a difficult box does not make its class a label of the image."""

    @property
    def empty(self) -> bool:
        return not (self.left < self.right and self.top < self.bottom)

    def clipped(self, width: float, height: float) -> "Box":
        """The part of the box inside an image of this size; it may be empty."""
        right, bottom = min(self.right, float(width)), min(self.bottom, float(height))
        return replace(self, left=max(self.left, 0.0), top=max(self.top, 0.0), right=right, bottom=bottom)


class Point(NamedTuple):
    """Where a part of an object is, in pixels of the upright image."""

    part: str
    x: float
    y: float


@dataclass(frozen=True)
class Sample:
    """One labelled image."""

    id: str
    """Its path below the root of the dataset, for people."""
    path: Path
    labels: tuple[int, ...]
    """Class indices; several for multi-label images and, in FunnyBirds, for images with several correct answers."""
    boxes: tuple[Box, ...] = ()
    group: str | None = None
    """Patient, specimen, …; images of one group stay in one split."""
    points: tuple[Point, ...] = ()
    """The visible parts of the object, if the layout locates them; a part can have several points."""

    @property
    def unsure(self) -> tuple[int, ...]:
        """Classes with difficult boxes only, which count neither as present nor as absent."""
        return tuple(sorted({box.label for box in self.boxes if box.difficult}.difference(self.labels)))


@dataclass(frozen=True)
class Skipped:
    """A file that is not used, and the reason."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file} is not used: {self.reason}."


@dataclass
class ImageData:
    """Labelled images in splits. `skipped`: files that are not used; `problems`: sentences about questionable ones."""

    name: str
    root: Path
    layout: str
    classes: tuple[str, ...]
    splits: dict[str, list[Sample]]
    task: Task = "single"
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    opened_with: dict[str, str | bool | None] = field(default_factory=dict)
    """The arguments of `sic.data.open` that open it again."""


def require_outside(out: Path, data: ImageData) -> None:
    """Refuse to write into the dataset, because the files would be read as data the next time."""
    if data.root.resolve() in (out.resolve(), *out.resolve().parents):
        raise SicError(f"--out {out} is inside the dataset {data.root}; choose a folder outside of it.")


class UnusableData(SicError):
    """No model can be trained on this dataset; `data` holds the images that were found, and the problems."""

    def __init__(self, sentence: str, data: ImageData) -> None:
        super().__init__(sentence)
        self.data = data


def require_training_images(data: ImageData) -> ImageData:
    """The dataset, if it has training images of at least two classes; else `UnusableData`."""
    train = data.splits.get("train", [])
    shown = {label for sample in train for label in sample.labels}
    if len(shown) >= 2:
        return data
    what = "training images of one class only" if shown else "no usable training images"
    wrong = [*map(str, data.skipped), *data.problems]
    why = f"the first of {len(wrong)} problems: {wrong[0]}" if wrong else "sic needs at least two classes."
    raise UnusableData(f"{data.root} ({data.layout}) holds {what}; {why}", data)


def without_supports(data: ImageData) -> list[str]:
    """A sentence for each class that has no training image with this label alone, which training needs."""
    alone = {sample.labels[0] for sample in data.splits.get("train", []) if len(sample.labels) == 1}
    return [
        f"No training image has the label {name!r} alone, so the class can have no supports; add such images."
        for label, name in enumerate(data.classes)
        if label not in alone
    ]


def same_but_for_case(classes: tuple[str, ...]) -> list[str]:
    """A sentence for each set of class names that differ in case only."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        spellings[name.casefold()].append(name)
    return [
        f"The names of the classes {' and '.join(map(repr, names))} differ in case only; "
        "if they are the same class, give them one name."
        for names in spellings.values()
        if len(names) > 1
    ]


def stratified(
    samples: list[Sample], fraction: float, seed: int, together: Sequence[Sequence[int]] = ()
) -> tuple[list[Sample], list[Sample]]:
    """Split samples into (rest, held out), with the same share of every class; an image counts for its rarest label.

    Images of one group stay together, and so do images whose positions are in one list of `together`; the shares are
    then approximate. A class with a single group is not held out.
    """
    counts = Counter(label for sample in samples for label in sample.labels)

    def rarest(labels: tuple[int, ...]) -> int:
        return min(labels, key=lambda label: (counts[label], label), default=NO_CLASS)

    by_class: dict[int, list[list[Sample]]] = defaultdict(list)
    for unit in _kept_together(samples, together):
        by_class[rarest(tuple(rarest(sample.labels) for sample in unit))].append(unit)
    total = Counter(rarest(sample.labels) for sample in samples)
    taken: Counter[int] = Counter()
    held: set[str] = set()
    # Rarest class first, because its groups can contain images of other classes, which then count for those.
    for label in sorted(by_class, key=lambda label: (counts[label], label)):
        units = by_class[label]
        random.Random(f"{seed}-{label}").shuffle(units)
        number = max(1, round(total[label] * fraction)) if total[label] >= SMALLEST_CLASS else 0
        for unit in units:
            size = Counter(rarest(sample.labels) for sample in unit)
            closer = taken[label] + size[label] / 2 <= number
            if closer and all(taken[other] + size[other] < total[other] for other in size):
                taken += size
                held.update(sample.id for sample in unit)
    return [s for s in samples if s.id not in held], [s for s in samples if s.id in held]


def _kept_together(samples: list[Sample], together: Sequence[Sequence[int]]) -> list[list[Sample]]:
    """Images that must stay together, as lists; the order depends on the ids only."""
    joined: dict[tuple[str, bool], tuple[str, bool]] = {}

    def unit(sample: Sample) -> tuple[str, bool]:
        key = (sample.id, False) if sample.group is None else (sample.group, True)
        while key in joined:
            key = joined[key]
        return key

    for positions in together:
        first, *others = {unit(samples[position]) for position in positions}
        joined.update(dict.fromkeys(others, first))
    units: dict[tuple[str, bool], list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.id):
        units[unit(sample)].append(sample)
    return list(units.values())
