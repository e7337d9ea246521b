"""What a set of labelled images is, whatever layout it came in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Task = Literal["single", "multi"]


@dataclass(frozen=True)
class Sample:
    """One labelled image."""

    id: str
    """Its path below the data's root: what people are shown."""
    path: Path
    labels: tuple[int, ...]
    """Class indices. Several: a multi-label image, or (FunnyBirds) several answers that would be right."""


@dataclass(frozen=True)
class Skipped:
    """A file that is not used, and why."""

    file: str
    reason: str


@dataclass
class ImageData:
    """Labelled images in splits; `skipped` says what was left out."""

    name: str
    root: Path
    layout: str
    classes: tuple[str, ...]
    splits: dict[str, list[Sample]]
    task: Task = "single"
    skipped: list[Skipped] = field(default_factory=list)
