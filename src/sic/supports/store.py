"""The cases a model reasons with: who they are and, unless the user says no, what they look like."""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sic.errors import SicError


@dataclass(frozen=True)
class Support:
    """One training image that stands for its class."""

    label: int
    source: str
    """The image's id in the training data."""
    image: NDArray[np.uint8] | None
    """S×S×3, exactly what the model saw; None where images are not to be kept."""
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
        entries.append(entry)
    (folder / "supports.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")


def remove_unlisted(folder: Path) -> None:
    """Delete pictures that no support has any more."""
    file = folder / "supports.json"
    listed = {entry["image"] for entry in json.loads(file.read_text(encoding="utf-8"))} if file.is_file() else set()
    for picture in folder.glob("*.png"):
        if picture.name not in listed:
            picture.unlink(missing_ok=True)


def read_supports(folder: Path) -> list[Support]:
    try:
        entries = json.loads((folder / "supports.json").read_text(encoding="utf-8"))
        return [
            Support(entry["class"], entry["source"], _read_image(folder, entry), pinned=bool(entry.get("pinned")))
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SicError(f"{folder} does not hold readable supports ({error}); copy the model directory again.") from None


def _read_image(folder: Path, entry: dict[str, str | None]) -> NDArray[np.uint8] | None:
    name = entry["image"]
    if name is None:
        return None
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not a plain file name")
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} has been changed")
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))
