"""Whether a model directory can be trusted: its configuration makes sense, its files are the ones that were saved.

`manifest.json` holds the checksums of the files, which show damage, and optionally a signature, which shows tampering:
a checksum can be computed again by whoever changes a file, the signature (HMAC-SHA256) cannot without its key.
"""

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from sic.errors import SicError
from sic.evaluate.metrics import ACCURACY
from sic.settings import Network, table

MANIFEST = "manifest.json"
SHORTEST_KEY = 32
"""Bytes."""
Read = Callable[[str], bytes]
"""Returns the content of a file of the model by its name."""
LARGEST = {"size": 4096, "resize": 16_384}
"""Pixels of a picture's side, so that no configuration asks for more memory than a machine has. The sides that a fit
takes are narrower."""
FIGURES: dict[str, Any] = {
    **dict.fromkeys([metric.key for metric in ACCURACY], float),
    "teacher_accuracy": float,
    "images": int,
    "note": str,
    "name": str,
}
"""Types of the figures of a split that are shown to people."""
RECORDED: dict[str, Any] = {
    "preprocessing": dict[str, Any],
    "origin": str | None,
    "terms": str | None,
    "best_epoch": int,
}
"""Types of what is recorded of a training besides its settings."""


def check_fields(content: Any) -> None:
    """Raise ValueError where a field of a dataclass is of another type than it says, or not in its range.

    The ranges of settings are those of `sic.settings`.
    """
    hints = get_type_hints(type(content))
    for field in fields(content):
        name, value = field.name, getattr(content, field.name)
        if is_dataclass(value):
            check_fields(value)
        elif not _fits(value, hints[name]):
            raise ValueError(f"{name} cannot be {_short(value)}")
        elif name in LARGEST and not 0 < value <= LARGEST[name]:
            raise ValueError(f"{name} must be from 1 to {LARGEST[name]}, not {value}")
        elif fault := _fault(content, name):
            raise ValueError(f"{name} {fault}")


def check_classes(classes: list[str]) -> None:
    """Raise ValueError where class names cannot be told apart, or there are none."""
    if not classes or len(set(classes)) < len(classes):
        raise ValueError("classes must be names, each of them once")


def check_settings(training: Mapping[str, Any]) -> None:
    """Raise ValueError where a setting of a training is of another type than the settings of today have, or what else
    is recorded of it."""
    for name, kind in RECORDED.items():
        if name in training and not _fits(training[name], kind):
            raise ValueError(f"{name} cannot be {_short(training[name])}")
    for name, option in table().items():
        value, kind = training.get(name), (int, float) if option.type is float else option.type
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} cannot be {_short(value)}")


def check_figures(figures: Mapping[str, Any]) -> None:
    """Raise ValueError where a figure of a split is of another type than the figures that sic records."""
    for name, value in figures.items():
        known = _fits(value, FIGURES.get(name, Any)) and _finite(value)
        if not known or (name == "images" and value < 0):
            raise ValueError(f"{name} cannot be {_short(value)}")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError where a tensor holds NaN or infinity: every answer would be worthless."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")


def _fault(content: object, name: str) -> str | None:
    """Why no run can have this value of a setting."""
    value = getattr(content, name)
    known = isinstance(content, Network) and name in table() and value is not None
    return table()[name].fault(value) if known else None


def _fits(value: object, kind: Any) -> bool:
    """Whether a value as JSON has it is of an annotated type; a number must be finite."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, NoneType if kind is None else kind)


def _finite(value: object) -> bool:
    """Whether all numbers in a value as JSON has it are finite."""
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def manifest(names: Sequence[str], read: Read, key: bytes | None = None) -> bytes:
    """The content of `manifest.json` for these files; signed, if there is a key."""
    files = {name: hashlib.sha256(read(name)).hexdigest() for name in sorted(names)}
    content: dict[str, Any] = {"files": files}
    if key is not None:
        content["signature"] = _signature(files, key)
    return json.dumps(content, indent=1).encode()


def check_manifest(folder: Path, read: Read, needed: Sequence[str], key: bytes | None = None) -> int:
    """Compare the files of a model with its manifest; returns their number.

    Raises SicError if one of them was changed, if a `needed` one is not listed, or if `key` did not sign them.
    """
    file = folder / MANIFEST
    try:
        content = json.loads(read(MANIFEST))
        files = {str(name): str(checksum) for name, checksum in content["files"].items()}
        signature = content.get("signature")
    except FileNotFoundError:
        raise SicError(f"{folder} has no {MANIFEST}: an older sic saved it, so changes cannot be detected.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SicError(f"{file} is damaged; copy the model directory again.") from None
    if key is not None:
        if signature is None:
            raise SicError(f"{file} is not signed; sign it with --sign where the model comes from.")
        if not isinstance(signature, str) or not hmac.compare_digest(
            signature.encode(), _signature(files, key).encode()
        ):
            raise SicError(f"{file} was signed with another key, or changed since; do not use this model.")
    for name in needed:
        if name not in files:
            raise SicError(f"{folder / name} is not listed in {MANIFEST}; do not use this model.")
    for name, checksum in files.items():
        try:
            same = hashlib.sha256(read(name)).hexdigest() == checksum
        except OSError:
            same = False
        if not same:
            raise SicError(f"{folder / name} is not the file that was saved; copy the model directory again.")
    return len(files)


def read_key(file: Path) -> bytes:
    """The secret that models are signed with."""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise SicError(f"--key {file} cannot be read ({error.strerror}).") from None
    if len(key) < SHORTEST_KEY:
        raise SicError(
            f"--key {file} holds fewer than {SHORTEST_KEY} bytes; "
            "python -c 'import secrets; print(secrets.token_hex(32))' makes a key."
        )
    return key


def _signature(files: dict[str, str], key: bytes) -> str:
    return hmac.new(key, json.dumps(files, sort_keys=True).encode(), hashlib.sha256).hexdigest()
