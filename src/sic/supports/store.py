"""The supports a model reasons with: who they are and, unless the user says no, what they look like."""

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sic.errors import SicError
from sic.files import inside

Value = TypeVar("Value")
LIST = "supports.json"
PICTURE = re.compile(r"\d{5,}\.png")
"""The name of a support's picture: its number."""


@dataclass(frozen=True)
class Support:
    """One training image that stands for its class."""

    label: int
    source: str
    """The image's id in the training data."""
    image: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)
    """S×S×3, exactly what the model saw; None where images are not to be kept. Supports are equal without it."""
    box: tuple[int, int, int, int] | None = None
    """The part of the image that the support is: left, top, right, bottom in pixels; None: all of it."""
    pinned: bool = False
    """Kept when its class is selected anew."""


def write_supports(supports: list[Support], folder: Path) -> None:
    """`supports.json` and one PNG per support, lossless, so that its latent can be computed again from it."""
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
    """The names that `write_supports` gave to the files in `folder`: plain names, `supports.json` last."""
    try:
        entries = json.loads((folder / LIST).read_text(encoding="utf-8"))
        pictures = [entry["image"] for entry in entries if entry["image"] is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [*(name for name in pictures if isinstance(name, str) and PICTURE.fullmatch(name)), LIST]


def remove_unlisted(folder: Path) -> None:
    """Delete pictures that no support has any more."""
    listed = support_files(folder)
    for file in folder.glob("*.png") if listed else ():
        if PICTURE.fullmatch(file.name) and file.name not in listed:
            file.unlink(missing_ok=True)


def read_supports(folder: Path, read: Callable[[str], bytes] | None = None, side: int | None = None) -> list[Support]:
    """The supports in `folder`; `read` returns the content of a file in it by its name, `side` is the pictures'."""
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
    except (OSError, ValueError, KeyError, TypeError, RecursionError, Image.DecompressionBombError) as error:
        raise SicError(f"{folder} does not hold readable supports ({error}); copy the model directory again.") from None


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
        raise ValueError(f"{name!r} is not the name of a picture there")
    data = read(name)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} has been changed")
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if side is not None and image.size != (side, side):  # before anything is decoded
            raise ValueError(f"{name} has {image.size[0]}×{image.size[1]} pixels, not {side}×{side}")
        return np.asarray(image.convert("RGB"))
