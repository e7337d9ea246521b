"""Supports: the training images that a model reasons with, their names, their edits and their files."""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import DecompressionBombError

from sic.errors import SicError
from sic.files import inside

Value = TypeVar("Value")
Action = Literal["drop", "add", "replace", "pin", "unpin", "reselect"]
LIST = "supports.json"
PICTURE = re.compile(r"\d{5,}\.png")
"""The name of a support's picture: its number."""
POSITION = re.compile(r"^\d+$| #\d+$")
"""An index ("7") or a name ("Beagle #2")."""
MANY = 10
"""Digits that no index has."""
NEEDED = {"add": ("label", "image"), "replace": ("support", "image"), "reselect": ("label",)}
"""The fields that an action needs; the other actions need `support`."""


@dataclass(frozen=True)
class Support:
    """One training image that stands for its class."""

    label: int
    source: str
    """The image's id in the training data."""
    image: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)
    """S×S×3, the input of the model; None if images are not kept. It does not count for equality."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom in pixels, if the support is a part of the image."""
    pinned: bool = False
    """Kept when the supports of its class are selected again."""


@dataclass(frozen=True)
class Edit:
    """One change of the supports; create it with one of the class methods."""

    action: Action
    support: int | str | None = None
    """Its number in the list of supports, its name ("Beagle #2"), or the id of its image."""
    image: str | None = None
    """The training image that replaces it, or that is added: id or path."""
    label: str | None = None
    """Name of the class whose supports are selected again, or that an image is added to."""
    number: int | None = None
    """The number of supports to select; by default as many as before."""
    force: bool = False
    """Use an image that shows another class."""
    varied: bool | None = None
    """Select by the directions of latents, so that supports differ more (see `sic.settings.How`); None: as training."""

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise SicError(f"There is no edit {self.action!r}; choose one of {', '.join(get_args(Action))}.")
        for needed in NEEDED.get(self.action, ("support",)):
            if getattr(self, needed) is None:
                raise SicError(f"To {self.action}, name the {needed.replace('label', 'class')}.")
        if self.number is not None and self.number < 1:
            raise SicError(f"A class needs at least one support, not {self.number}.")

    @classmethod
    def drop(cls, support: int | str) -> "Edit":
        """Remove a support, given by its number, its name, or the id of its image."""
        return cls("drop", support)

    @classmethod
    def add(cls, label: str, image: str, force: bool = False) -> "Edit":
        """Add a training image (id or path) to the supports of a class; `force`: even if it shows another class."""
        return cls("add", image=image, label=label, force=force)

    @classmethod
    def replace(cls, support: int | str, image: str, force: bool = False) -> "Edit":
        """Replace a support by a training image (id or path); `force`: even if it shows another class."""
        return cls("replace", support, image, force=force)

    @classmethod
    def pin(cls, support: int | str) -> "Edit":
        """Keep a support when the supports of its class are selected again."""
        return cls("pin", support)

    @classmethod
    def unpin(cls, support: int | str) -> "Edit":
        """Undo `pin`."""
        return cls("unpin", support)

    @classmethod
    def reselect(cls, label: str, number: int | None = None, varied: bool | None = None) -> "Edit":
        """Select the supports of a class again; `number`: by default as many as before; `varied`: whether to select
        supports that differ more, by default as training did."""
        return cls("reselect", label=label, number=number, varied=varied)


def replaced(supports: Sequence[Support], label: int, others: Sequence[Support]) -> list[Support]:
    """All supports in order of class, with those of one class replaced."""
    kept = [support for support in supports if support.label != label]
    return sorted([*kept, *others], key=lambda support: support.label)


def support_names(supports: Sequence[Support], classes: Sequence[str]) -> list[str]:
    """The names of all supports for people: the class and the number in the class, from 1.

    Figures, reports, pages and the terminal all use these names.

    >>> support_names([Support(0, "a.png"), Support(1, "b.png"), Support(1, "c.png")], ["Basset", "Beagle"])
    ['Basset #1', 'Beagle #1', 'Beagle #2']
    """
    seen: Counter[int] = Counter()
    names = []
    for support in supports:
        seen[support.label] += 1
        names.append(f"{classes[support.label]} #{seen[support.label]}")
    return names


def support_key(supports: Sequence[Support], index: int) -> str:
    """The argument of commands for a support: the id of its image, which edits do not change, or its index if the image
    is a support of several classes."""
    source = supports[index].source
    alone = sum(support.source == source for support in supports) == 1
    return source if alone and not source.isdecimal() else str(index)


def by_position(which: int | str | None) -> bool:
    """Whether a support is given by its index or its name, which can change with an edit."""
    return isinstance(which, int) or (isinstance(which, str) and POSITION.search(which) is not None)


def find_support(supports: Sequence[Support], which: int | str, classes: Sequence[str]) -> int:
    """The index of a support that is given by its index, its image's id, or its name (`support_names`)."""
    if isinstance(which, int) or (which.isdecimal() and len(which) < MANY):
        index = int(which)
        if not 0 <= index < len(supports):
            raise SicError(f"There is no support {index}; they are numbered 0 to {len(supports) - 1}.")
        return index
    found = [index for index, support in enumerate(supports) if support.source == which]
    found = found or [index for index, name in enumerate(support_names(supports, classes)) if name == which]
    if len(found) > 1:
        raise SicError(f"{which} is a support of several classes; give its number: {' or '.join(map(str, found))}.")
    if not found:
        raise SicError(f"No support is {which!r}; `sic supports MODEL list` shows them.")
    return found[0]


def write_supports(supports: list[Support], folder: Path) -> None:
    """Write `supports.json` and a lossless PNG per support, from which its latent can be computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, support in enumerate(supports):
        entry: dict[str, object] = {"class": support.label, "source": support.source, "image": None}
        if support.pinned:
            entry["pinned"] = True
        if support.image is not None:
            buffer = io.BytesIO()
            Image.fromarray(support.image).save(buffer, "PNG")
            name = f"{number:05d}.png"
            (folder / name).write_bytes(buffer.getvalue())
            entry |= {"image": name, "sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
        if support.box is not None:
            entry["box"] = support.box
        entries.append(entry)
    (folder / LIST).write_text(json.dumps(entries, indent=1), encoding="utf-8")


def support_files(folder: Path) -> list[str]:
    """The names of the files that `write_supports` wrote to `folder`; `supports.json` is the last."""
    try:
        entries = json.loads((folder / LIST).read_text(encoding="utf-8"))
        pictures = [entry["image"] for entry in entries if entry["image"] is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [*(name for name in pictures if isinstance(name, str) and PICTURE.fullmatch(name)), LIST]


def remove_unlisted(folder: Path) -> None:
    """Delete pictures that are not in `supports.json`."""
    listed = support_files(folder)
    for file in folder.glob("*.png") if listed else ():
        if PICTURE.fullmatch(file.name) and file.name not in listed:
            file.unlink(missing_ok=True)


def read_supports(folder: Path, read: Callable[[str], bytes] | None = None, side: int | None = None) -> list[Support]:
    """Read the supports in `folder`; `read` returns the content of a file by its name, `side` is that of pictures."""
    read = read or (lambda name: inside(folder / name, folder).read_bytes())
    try:
        entries = json.loads(read(LIST))
        return [
            Support(
                _checked(entry["class"], int),
                _checked(entry["source"], str),
                _read_image(read, entry, side),
                _read_box(entry.get("box")),
                bool(entry.get("pinned")),
            )
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, DecompressionBombError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        raise SicError(
            f"{folder} does not hold readable supports ({reason}); copy the model directory again."
        ) from None


def _checked(value: object, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{value!r} should be of type {kind.__name__}")
    return value


def _read_box(box: list[int] | None) -> tuple[int, int, int, int] | None:
    if box is None:
        return None
    left, top, right, bottom = map(int, box)
    return left, top, right, bottom


def _read_image(
    read: Callable[[str], bytes], entry: dict[str, str | None], side: int | None
) -> NDArray[np.uint8] | None:
    name = entry["image"]
    if name is None:
        return None
    if not PICTURE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a picture of a support")
    data = read(name)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} has been changed")
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if side is not None and image.size != (side, side):  # before anything is decoded
            raise ValueError(f"{name} has {image.size[0]}×{image.size[1]} pixels, not {side}×{side}")
        return np.asarray(image.convert("RGB"))
