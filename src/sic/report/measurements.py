"""What `sic evaluate` measured, where its `evaluation.json` lies beside the model."""

import json
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sic.errors import SicError

EVALUATION = "evaluation.json"
AXES = {
    "A": ("Accuracy", "share of right answers"),
    "BI": ("Background independence", "background objects that do not matter to the answer"),
    "Com": ("Completeness", "the parts that the explanation names are those that the answer needs"),
    "Cor": ("Correctness", "parts matter to the answer in the order that the explanation says"),
    "Con": ("Contrastivity", "the explanation changes with the class that is asked about"),
}
"""FunnyBirds' main figures: name and meaning."""
KINDS = {"contributions": "signed maps", "alpha": "colour pictures"}
"""Which explanation was scored."""
BOXES = {
    "energy": "inside the boxes that people drew",
    "hit": "inside the boxes: the strongest pixel",
    "overlap": "inside the boxes: the strongest pixels, as many as fit",
}
RADIUS = 110


@dataclass(frozen=True)
class Ring:
    """One polygon of the radar: whose explanation, its values by axis, and its corners."""

    name: str
    values: dict[str, float]
    points: str


@dataclass(frozen=True)
class Spoke:
    """One axis of the radar."""

    name: str
    meaning: str
    x: float
    y: float


@dataclass(frozen=True)
class Place:
    """A share of the contributions that lies where it should; `chance`: of a map that knows nothing."""

    where: str
    share: float | None
    chance: float | None
    measured_on: str


@dataclass(frozen=True)
class Measurements:
    """FunnyBirds as a radar; localisation as shares. Empty where not measured."""

    spokes: list[Spoke]
    rings: list[Ring]
    places: list[Place]
    source: str
    """On which images, and when."""


def read_measurements(folder: Path) -> Measurements:
    """Of a model directory."""
    file = folder / EVALUATION
    if not file.is_file():
        return Measurements([], [], [], "")
    try:
        return _measurements(json.loads(file.read_text(encoding="utf-8")), file)
    except (ValueError, TypeError, KeyError) as error:
        raise SicError(f"{file} is damaged ({error!r}); run sic evaluate again, or remove it.") from None


def _measurements(content: dict[str, Any], file: Path) -> Measurements:
    birds = content.get("funnybirds") or {}
    spokes = [Spoke(*AXES[key], *_place(number, 1.0)) for number, key in enumerate(AXES)]
    rings = [_ring(name, {**birds, **birds[kind]}) for kind, name in KINDS.items() if kind in birds]
    written = datetime.fromtimestamp(file.stat().st_mtime)
    source = f"{content['images']} {content['data']}, written on {written.day} {written:%B %Y}"
    return Measurements(spokes if rings else [], rings, _places(content.get("localisation") or {}), source)


def _places(content: dict[str, Any]) -> list[Place]:
    found = []
    for name, game in content.items():
        if name.startswith("grid_"):
            size = name.removeprefix("grid_").replace("x", " × ")
            where = f"in the right one of {size} images put together"
            found.append(Place(where, game["share"], game["chance"], f"{game['grids']} such pictures"))
    boxes = content.get("boxes", {}).get("all", {})
    for key, where in BOXES.items():
        if key in boxes:
            found.append(Place(where, boxes[key], boxes["area"], f"{boxes['maps']} maps"))
    return found


def _ring(name: str, values: dict[str, Any]) -> Ring:
    known = {AXES[key][0]: float(values[key]) for key in AXES if isinstance(values.get(key), int | float)}
    corners = [_place(number, known.get(axis, 0.0)) for number, (axis, _) in enumerate(AXES.values())]
    return Ring(name, known, " ".join(f"{x:.1f},{y:.1f}" for x, y in corners))


def _place(number: int, value: float) -> tuple[float, float]:
    angle = 2 * math.pi * number / len(AXES) - math.pi / 2
    return round(RADIUS * value * math.cos(angle), 1), round(RADIUS * value * math.sin(angle), 1)
