"""Checks of what a model directory says, before anything is built from it."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from sic.settings import Network, table

LARGEST = {"size": 4096, "resize": 16_384}
"""Pixels of a picture's side, so that no configuration asks for more memory than a machine has. The sides that a fit
takes are narrower."""


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


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
