"""What a set of labelled images is, whatever layout it came in."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sic.errors import SicError

Task = Literal["single", "multi"]
Progress = Callable[[int, int], None]
"""Told how many are done, and of how many."""


@dataclass(frozen=True)
class Box:
    """Where an image shows a class: pixels of the upright image, `right` and `bottom` just outside."""

    label: int
    left: float
    top: float
    right: float
    bottom: float
    difficult: bool = False
    """Hard to recognise, say those who drew it: does not make the class a label of the image."""


@dataclass(frozen=True)
class Sample:
    """One labelled image."""

    id: str
    """Its path below the data's root: what people are shown."""
    path: Path
    labels: tuple[int, ...]
    """Class indices. Several: a multi-label image, or (FunnyBirds) several answers that would be right."""
    boxes: tuple[Box, ...] = ()
    group: str | None = None
    """Patient, specimen, …: images of one group are never split apart."""

    @property
    def unsure(self) -> tuple[int, ...]:
        """Classes with difficult boxes only: neither shown nor absent, so they should count neither way."""
        return tuple(sorted({box.label for box in self.boxes if box.difficult}.difference(self.labels)))


@dataclass(frozen=True)
class Skipped:
    """A file that is not used, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file} is not used: {self.reason}."


@dataclass
class ImageData:
    """Labelled images in splits; `skipped` says what was left out, `problems` (sentences) what is odd but used."""

    name: str
    root: Path
    layout: str
    classes: tuple[str, ...]
    splits: dict[str, list[Sample]]
    task: Task = "single"
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    opened_with: dict[str, str | bool | None] = field(default_factory=dict)
    """How to open it again: the arguments of `sic.data.open`."""


def require_outside(out: Path, data: ImageData) -> None:
    """Refuse to write among the images: what is written there would be read as data the next time."""
    if data.root.resolve() in (out.resolve(), *out.resolve().parents):
        raise SicError(f"--out {out} lies inside the images in {data.root}; choose a place outside of them.")


class UnusableData(SicError):
    """Nothing can be trained on this data; `data` holds what was found and what is wrong with it."""

    def __init__(self, sentence: str, data: ImageData) -> None:
        super().__init__(sentence)
        self.data = data


def require_training_images(data: ImageData) -> ImageData:
    """The data, if it has training images of at least two classes."""
    train = data.splits.get("train", [])
    shown = {label for sample in train for label in sample.labels}
    if len(shown) >= 2:
        return data
    what = "training images of one class only" if shown else "no training image that can be used"
    wrong = [*map(str, data.skipped), *data.problems]
    why = f"the first of {len(wrong)} problems: {wrong[0]}" if wrong else "sic needs at least two classes."
    raise UnusableData(f"{data.root} ({data.layout}) holds {what}; {why}", data)


def without_supports(data: ImageData) -> list[str]:
    """A sentence for each class that training would stop at: no training image shows it and nothing else."""
    alone = {sample.labels[0] for sample in data.splits.get("train", []) if len(sample.labels) == 1}
    return [
        f"No training image shows {name!r} and nothing else, so nothing can stand for that class; add such images."
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
        "if they mean the same, give them one name."
        for names in spellings.values()
        if len(names) > 1
    ]
