"""Funny birds: five exchangeable parts define a species, and every part or object of a scene can be removed."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

PARTS: tuple[str, ...] = ("beak", "eye", "foot", "tail", "wing")
PLACEHOLDER = "placeholder"
OBJECTS = ("disc", "box", "pyramid", "blob")
COLORS = {
    "amber": "#fab626", "crimson": "#d62c42", "emerald": "#22a05c", "cobalt": "#2e5cd6", "violet": "#8a4cc4",
    "coral": "#f0623c", "teal": "#10a4b0", "slate": "#465068", "ivory": "#fcfaf2", "lemon": "#fcde46", "rose": "#f05ca0"
}  # fmt: skip
MODELS: dict[str, list[tuple[str, str]]] = {  # (shape, colour) of each variant
    "beak": [("cone", "amber"), ("sickle", "coral"), ("toucan", "amber"), ("spoon", "slate")],
    "eye": [("round", "ivory"), ("sleepy", "lemon"), ("target", "crimson")],
    "foot": [("web", "coral"), ("toes", "coral"), ("boot", "cobalt"), ("pads", "rose")],
    "tail": list(itertools.product(("fan", "fork", "pompom"), ("crimson", "emerald", "cobalt"))),
    "wing": list(itertools.product(("swept", "scallop"), ("crimson", "teal", "violet"))),
}
VARIANTS: dict[str, int] = {part: len(MODELS[part]) for part in PARTS}


def _between(*ranges: tuple[float, float]) -> Any:
    """A field drawn uniformly: one range for a number; hue, saturation and value for a colour, held as "#rrggbb"."""
    return dataclasses.field(metadata={"ranges": ranges})


def _drawn(cls: Any, rng: np.random.Generator) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, ranges in ((f.name, f.metadata["ranges"]) for f in dataclasses.fields(cls) if f.metadata):
        values = [float(rng.uniform(low, high)) for low, high in ranges]
        out[name] = values[0] if len(values) == 1 else "#" + bytes(int(255 * c) for c in hsv_to_rgb(*values)).hex()
    return out


@dataclass(frozen=True)
class Object:
    """A thing in the background. `x`, `y`: its centre in [-1, 1], y down; `size`: half its height in that unit."""

    kind: str
    y: float
    color: str = _between((0, 1), (0.1, 0.45), (0.45, 0.9))
    x: float = _between((-1, 1))
    size: float = _between((0.06, 0.17))
    stretch: float = _between((0.75, 1.35))
    roll: float = _between((-0.4, 0.4))


@dataclass(frozen=True)
class Scene:
    """All that a picture depends on. A part is a variant's number, or None: removed. Yaw 0 faces right, pi left."""

    class_idx: int
    beak: int | None
    eye: int | None
    foot: int | None
    tail: int | None
    wing: int | None
    objects: tuple[Object | None, ...]
    camera_distance: float = _between((4.8, 6.8))
    camera_yaw: float = _between((-0.35, 0.95))
    camera_pitch: float = _between((0.0, 0.4))
    camera_roll: float = _between((-0.22, 0.22))
    camera_x: float = _between((-0.1, 0.1))
    camera_y: float = _between((-0.1, 0.12))
    light_azimuth: float = _between((-1.2, 1.2))
    light_strength: float = _between((0.25, 0.6))
    body_color: str = _between((0, 1), (0.05, 0.42), (0.62, 0.98))
    body_belly: float = _between((0.2, 0.8))
    body_pitch: float = _between((-0.12, 0.4))
    head_turn: float = _between((-0.3, 0.3))
    head_tilt: float = _between((-0.25, 0.3))
    wing_lift: float = _between((0.3, 0.95))
    tail_lift: float = _between((-0.05, 0.4))
    sky_color: str = _between((0.45, 1.15), (0.08, 0.3), (0.8, 0.9))
    ground_color: str = _between((0, 1), (0.1, 0.4), (0.66, 0.8))
    ground_horizon: float = _between((-0.1, 0.45))
    ground_hill: float = _between((-1, 1))

    def without(self, *parts: str) -> Self:
        return dataclasses.replace(self, **cast(Any, dict.fromkeys(parts)))

    def swapped(self, part: str, variant: int) -> Self:
        return dataclasses.replace(self, **cast(Any, {part: range(VARIANTS[part])[variant]}))

    def without_object(self, i: int) -> Self:
        return dataclasses.replace(self, objects=tuple(None if j == i else o for j, o in enumerate(self.objects)))

    def to_json(self) -> dict[str, Any]:
        """Flat, as in FunnyBirds: `<part>_model`, `<part>_color`, and `bg_*` lists with one entry an object."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in (*PARTS, "objects")}
        for part in PARTS:
            variant = getattr(self, part)
            model, color = (PLACEHOLDER, PLACEHOLDER) if variant is None else MODELS[part][variant]
            out |= {f"{part}_model": model, f"{part}_color": color}
        for name, key in _OBJECT_KEYS.items():
            out[key] = "".join(f"{PLACEHOLDER if o is None else getattr(o, name)}," for o in self.objects)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        values = {f.name: data[f.name] for f in dataclasses.fields(cls) if f.name not in (*PARTS, "objects")}
        for part in PARTS:
            variant = (data[f"{part}_model"], data[f"{part}_color"])
            values[part] = None if variant[0] == PLACEHOLDER else MODELS[part].index(variant)
        rows = zip(*(data[key].split(",")[:-1] for key in _OBJECT_KEYS.values()), strict=True)
        things = (None if kind == PLACEHOLDER else Object(kind, float(y), c, *map(float, o)) for kind, y, c, *o in rows)
        return cls(**values, objects=tuple(things))


_OBJECT_KEYS = {f.name: "bg_objects" if f.name == "kind" else f"bg_{f.name}" for f in dataclasses.fields(Object)}


def species(num_classes: int, seed: int = 0) -> list[dict[str, int]]:
    """Distinct combinations of parts, any two at least three parts apart where that is possible, else two, else one."""
    combinations = np.array(list(itertools.product(*(range(VARIANTS[part]) for part in PARTS))))
    for apart, attempt in itertools.product((3, 2, 1), range(4)):  # 4 would leave no classes that share two parts
        left = np.random.default_rng((seed, attempt)).permutation(combinations)
        chosen: list[dict[str, int]] = []
        while len(left) and len(chosen) < num_classes:
            chosen.append(dict(zip(PARTS, left[0].tolist(), strict=True)))
            left = left[(left != left[0]).sum(1) >= apart]
        if len(chosen) == num_classes:
            return chosen
    raise ValueError(f"There are {len(combinations)} combinations of parts, not {num_classes}.")


def sample_scene(class_idx: int, parts: Mapping[str, int], rng: np.random.Generator, missing: bool = False) -> Scene:
    """A random view of a species. With `missing`, about half of the scenes lack 1 to 5 parts."""
    drawn = _drawn(Scene, rng)
    horizon, objects = drawn["ground_horizon"], []
    for _ in range(rng.integers(0, 13)):
        top, bottom = (-0.95, horizon) if rng.random() < 0.3 else (horizon - 0.05, 0.98)
        thing = Object(OBJECTS[rng.integers(len(OBJECTS))], float(rng.uniform(top, bottom)), **_drawn(Object, rng))
        vivid = [*COLORS.values()][rng.integers(len(COLORS))]
        objects.append(dataclasses.replace(thing, color=vivid) if rng.random() < 0.5 else thing)
    drawn["camera_yaw"] = drawn["camera_yaw"] if rng.random() < 0.5 else math.pi - drawn["camera_yaw"]
    gone = rng.choice(PARTS, size=rng.integers(1, len(PARTS) + 1), replace=False).tolist()
    drawn |= {part: parts[part] for part in PARTS}
    scene = Scene(class_idx, objects=tuple(objects), **drawn)
    return scene.without(*gone) if missing and rng.random() < 0.5 else scene
