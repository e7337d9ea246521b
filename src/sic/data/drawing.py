"""Draw the scenes of funny birds, with part maps.

Everything is a flat polygon with a number, painted back to front on one supersampled 8-bit canvas. The canvas is read
twice: through a palette of colours (then box-filtered: the picture) and through a palette of labels (one sample per
pixel: the part map). So picture and map agree, and a removal uncovers exactly what lay behind.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sic.data.birds import COLORS, MODELS, Scene

Array = npt.NDArray[np.float64]
RGB = tuple[float, float, float]
Label = tuple[int, int, int]

LABELS: dict[str, tuple[Label, ...]] = {
    "beak": ((255, 255, 0),), "eye": ((255, 255, 253), (255, 255, 254)), "foot": ((255, 0, 1), (255, 0, 2)),
    "tail": ((0, 0, 255),), "wing": ((0, 255, 1), (0, 255, 2)),
}  # fmt: skip
BLACK, WHITE, RELIEF = (26.0, 24.0, 32.0), (255.0, 253.0, 246.0), (0.58, 0.88, 1.0)
Layer = tuple[Array, RGB]
# N×3 points, polygon after polygon: u along the part, v across, lean towards the light; the ends; the colours.
Polygons = tuple[Array, list[int], list[RGB]]


def _rgb(color: str) -> RGB:
    r, g, b = bytes.fromhex(color[1:])
    return r, g, b


def _mix(a: RGB, b: RGB, t: float) -> RGB:
    return a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), a[2] + t * (b[2] - a[2])


def _tone(color: RGB, tone: float) -> RGB:
    """Towards black below 1, towards white above."""
    return _mix((0, 0, 0), color, tone) if tone <= 1 else _mix(color, (255, 255, 255), tone - 1)


def _smooth(*knots: float, steps: int = 5) -> Array:
    """Closed Catmull-Rom curve through the knots (u, v, u, v, …): N×2."""
    a, b, c, d = (np.roll(np.reshape(knots, (-1, 1, 2)), shift, 0) for shift in (1, 0, -1, -2))
    t = (np.arange(steps) / steps)[:, None]
    curve = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    return np.asarray(curve.reshape(-1, 2))


def _oval(x: float, y: float, rx: float, ry: float, turn: float = 0.0, steps: int = 20) -> Array:
    """Ellipse around (x, y), turned by an angle: N×2."""
    t, c, s = np.arange(steps) * (2 * math.pi / steps), math.cos(turn), math.sin(turn)
    return np.asarray(np.stack((rx * np.cos(t), ry * np.sin(t)), 1) @ [[c, s], [-s, c]] + (x, y))


def _relief(outline: Array, color: RGB, width: float = 0.026, tones: Sequence[float] = RELIEF) -> list[Layer]:
    """A dark rim around lighter plateaus: the outline set in by a width for each further tone."""
    ahead, behind = np.roll(outline, -1, 0), np.roll(outline, 1, 0)
    along = (ahead - behind) / np.linalg.norm(ahead - behind, axis=1, keepdims=True)
    clockwise = (outline[:, 0] * ahead[:, 1] - outline[:, 1] * ahead[:, 0]).sum() < 0
    inwards = np.pad(along[:, ::-1] * ((1, -1) if clockwise else (-1, 1)), ((0, 0), (0, 1)), constant_values=0.4)
    return [(np.pad(outline, ((0, 0), (0, 1))) + i * width * inwards, _tone(color, t)) for i, t in enumerate(tones)]


@functools.cache
def _catalogue(color: str) -> dict[str, Polygons]:
    """All shapes in a colour. Wings and tails: u from root to tip; beaks, eyes and feet: u forwards, v up."""
    # fmt: off
    c, lid = _rgb(color), _rgb(COLORS["violet"])
    light, dark, ball = _tone(c, 1.5), _tone(c, 0.62), _oval(0, 0, .19, .19)
    leg = [(_smooth(-w, .1, w, .1, w, -.5, -w, -.5, steps=1), tone) for w, tone in ((.05, dark), (.028, c))]
    wave = 1 + .15 * np.cos(np.arange(60) * math.pi / 6)[:, None]
    shapes: dict[str, list[list[Layer]]] = {
        "cone": [_relief(_smooth(-.1, 0, .1, -.02, .36, -.06, .06, -.17, -.1, -.17), _tone(c, 0.8), 0.02),
                 _relief(_smooth(-.1, .18, .13, .16, .5, -.05, .1, -.04, -.1, -.02), c)],
        "sickle": [_relief(_smooth(-.1, .15, .22, .15, .54, 0, .7, -.38, .46, -.17, .16, -.08, -.1, -.13), c)],
        "toucan": [_relief(_smooth(-.1, .23, .22, .27, .56, .13, .68, -.16, .5, -.13, .2, -.18, -.1, -.17), c),
                   [(_smooth(.52, .15, .62, .04, .67, -.15, .53, -.12, .46, 0), BLACK),
                    (_oval(.2, .17, .17, .03, -.1), light)]],
        "spoon": [_relief(_smooth(-.1, .13, .25, .06, .5, .06, .5, -.08, .25, -.09, -.1, -.13), c),
                  _relief(_oval(.56, -.01, .19, .18), c)],
        "round": [[(ball, BLACK), (ball * .88, c), (_oval(.035, -.01, .1, .1), BLACK),
                   (_oval(.07, .04, .035, .035), WHITE)]],
        "sleepy": [[(ball, BLACK), (ball * .86, c), (_oval(.02, -.06, .065, .08), BLACK),
                    (np.maximum(ball, (-1, -.02)), lid), (_oval(0, .1, .11, .035), _tone(lid, 1.25))]],
        "target": [[(ball, BLACK), (ball * .9, c), (ball * .58, WHITE), (ball * .34, BLACK)]],
        "web": [leg, _relief(_smooth(-.1, -.42, .1, -.42, .5, -.5, .4, -.57, .42, -.68, .2, -.64, 0, -.72), c)],
        "toes": [leg, *(_relief(_oval(u, v, .2, .045, t), c, 0.014) for u, v, t in (
            (-.15, -.53, .3), (.2, -.46, .12), (.18, -.57, -.35), (0, -.61, -1.2)))],
        "boot": [leg, _relief(_smooth(-.14, -.16, .13, -.16, .13, -.4, .42, -.46, .42, -.66, -.13, -.66), c),
                 [(_oval(0, -.17, .15, .06), WHITE)]],
        "pads": [leg, *(_relief(_oval(u, v, .15, .11), c, 0.022) for u, v in ((-.2, -.52), (.3, -.5), (.05, -.62)))],
        "fan": [[*_relief(_oval(.5 * math.cos(t), .5 * math.sin(t), .49, .16, t), c, 0.03),
                 (_oval(.78 * math.cos(t), .78 * math.sin(t), .1, .07, t), light)] for t in (-.85, .85, -.45, .45, 0)],
        "fork": [_relief(_smooth(-.05, .12, .3, .24, .7, .46, 1.15, .56, .8, .24, .52, 0,
                                 .8, -.24, 1.15, -.56, .7, -.46, .3, -.24, -.05, -.12), c, 0.032)],
        "pompom": [[(_smooth(-.1, .07, u, v + .04, u, v - .04, -.1, -.07), dark), *_relief(_oval(u, v, .25, .25), c),
                    (_oval(u, v, .09, .09), light)] for u, v in ((.72, .44), (.72, -.44), (.98, 0))],
        "swept": [_relief(_smooth(-.12, 0, .1, .24, .5, .28, 1.1, .12, .74, -.02, .9, -.16, .54, -.15, .62, -.32,
                                  .28, -.24, 0, -.18), c),
                  [(_smooth(.15, v, .4, v + .06, .7 - v, v + .05, .4, v), light) for v in (.12, -.01, -.14)]],
        "scallop": [*(_relief(_oval(.06 + .46 * math.cos(t), .02 + .42 * math.sin(t), .26, .18, t), c)
                      for t in (.8, -.9, .25, -.35)),
                    _relief(_oval(.16, 0, .3, .26), _tone(c, 1.15), 0.03), [(_oval(.14, .06, .14, .1), light)]],
        "disc": [_relief(_oval(0, 0, 1, 1), c, 0.13, (0.66, 0.74, 0.82, 0.89, 0.95, 1))],
        "blob": [_relief(_oval(0, 0, 1, 1, steps=60) * wave, c, 0.13, (0.7, 0.8, 0.9, 1))],
        "box": [[(_smooth(-1, -1, .8, -1, .8, .7, -1, .7, steps=1), _tone(c, 0.86)),
                 (_smooth(-1, .7, .8, .7, 1.2, 1.1, -.6, 1.1, steps=1), c),
                 (_smooth(.8, .7, 1.2, 1.1, 1.2, -.6, .8, -1, steps=1), _tone(c, 0.62))]],
        "pyramid": [[(_smooth(0, 1.3, -1, -.8, .3, -1.05, steps=1), c),
                     (_smooth(0, 1.3, .3, -1.05, 1, -.75, steps=1), _tone(c, 0.66))]],
    }
    # fmt: on
    out = {}
    for name, groups in shapes.items():
        outlines, colors = zip(*itertools.chain(*groups), strict=True)
        points = np.concatenate([np.pad(o, ((0, 0), (0, 3 - o.shape[1]))) for o in outlines])
        out[name] = points, np.cumsum([len(o) for o in outlines]).tolist(), list(colors)
    return out


# View space has x to the right, y up and z towards the camera; the canvas is [-1, 1] in x and y, with y down.
CIRCLE = _oval(0, 0, 1, 1, steps=32)
TRUNK = np.array([(-0.36, 0.07, 0), (0, 0, 0), (0.32, 0.3, 0), (0.48, 0.57, 0)])  # centres of rump, trunk, neck, head
RADII = np.array([(0.34, 0.25, 0.24), (0.56, 0.43, 0.4), (0.29, 0.36, 0.28), (0.34, 0.33, 0.32)])
BELLY, BELLY_RADII = np.array([(0.2, -0.1, 0.0)]), np.array([(0.34, 0.3, 0.34)])
SUPERSAMPLING, FOCUS, BANDS = 3, 3.1, 30
Paint = tuple[Array, list[int], list[RGB], Label]  # polygons on the canvas (N×2), and their label in the part map
NOTHING: Label = (0, 0, 0)


class Rendering(NamedTuple):
    """`image`: H×W×3 RGB; `part_map`: H×W×3 in the colours of FunnyBirds. Both uint8."""

    image: npt.NDArray[np.uint8]
    part_map: npt.NDArray[np.uint8]


def render(scene: Scene, size: int = 128) -> Rendering:
    """Draw a scene. The same scene and size give the same bytes."""
    light = np.array([math.sin(scene.light_azimuth), math.cos(scene.light_azimuth)])
    sky, ground, side = _rgb(scene.sky_color), _rgb(scene.ground_color), size * SUPERSAMPLING
    bands = [_mix(sky, WHITE, 0.75 * i / BANDS) for i in range(BANDS)]
    bands += [_tone(ground, 1.2 - 0.4 * i / BANDS) for i in range(BANDS)]
    numbers: dict[tuple[RGB, Label], int] = {}
    band_numbers = [numbers.setdefault((color, NOTHING), len(numbers)) for color in bands]
    height = np.interp(np.linspace(-1, 1, side), (-1, scene.ground_horizon, 1), (0, BANDS, 2 * BANDS - 1))
    rows = np.array(band_numbers, np.uint8)[height.astype(int)]
    layer = Image.fromarray(np.repeat(rows[:, None], side, axis=1))
    draw = ImageDraw.Draw(layer)
    for points, ends, colors, label in itertools.chain(_ground(scene), _things(scene, light), _bird(scene, light)):
        flat = ((points + 1) * (0.5 * side) - 0.5).ravel().tolist()
        for start, end, color in zip([0, *ends], ends, colors, strict=False):
            draw.polygon(flat[2 * start : 2 * end], fill=numbers.setdefault((color, label), len(numbers)))
    small = layer.resize((size, size), Image.Resampling.NEAREST)
    small.putpalette(np.array([label for _, label in numbers], np.uint8).tobytes())
    layer.putpalette(np.clip([color for color, _ in numbers], 0, 255).astype(np.uint8).tobytes())
    image = np.asarray(layer.convert("RGB").reduce(SUPERSAMPLING))
    across, slope = np.linspace(-1, 1, size, dtype=np.float32), (0.18 * scene.light_strength * light).astype(np.float32)
    lit = image * (1 + slope[0] * across - slope[1] * across[:, None])[..., None]
    return Rendering(np.minimum(lit, 255).astype(np.uint8), np.array(small.convert("RGB")))


def _ground(scene: Scene) -> Iterator[Paint]:
    """A hill on the horizon, and the shadow of the body."""
    y, scale, n, ground = scene.ground_horizon, FOCUS / scene.camera_distance, len(CIRCLE), _rgb(scene.ground_color)
    hill = np.minimum(CIRCLE * (0.8, 0.22) + (scene.ground_hill, y), (2, y))
    yield hill, [n], [_mix(ground, _mix(_rgb(scene.sky_color), WHITE, 0.75), 0.5)], NOTHING
    centre = (scene.camera_x, min(scene.camera_y + 1.05 * scale, 0.95))
    rings = np.concatenate([CIRCLE * (0.75 * scale * r, 0.14 * scale * r) + centre for r in np.linspace(1, 0.5, 6)])
    yield rings, list(range(n, 6 * n + 1, n)), [_tone(ground, 0.84 - 0.05 * i) for i in range(6)], NOTHING


def _things(scene: Scene, light: Array) -> Iterator[Paint]:
    for i, thing in sorted(enumerate(scene.objects), key=lambda item: item[1].y if item[1] else 0):
        if thing is not None:
            points, ends, tones = _catalogue("#ffffff")[thing.kind]
            c, s, color = math.cos(thing.roll), math.sin(thing.roll), _rgb(thing.color)
            frame = thing.size * np.array([(c * thing.stretch, s * thing.stretch), (s, -c), light * (1, -1)])
            colors = [_tone(color, tone / 255) for tone, _, _ in tones]
            yield points @ frame + (thing.x, thing.y), ends, colors, (204, 204, 204 + i)


def _turn(axis: int, angle: float) -> Array:
    """3×3 for row vectors: turns the axis after `axis` towards the one after that."""
    out, i, j, c, s = np.eye(3), axis - 2, axis - 1, math.cos(angle), math.sin(angle)
    out[i, i], out[i, j], out[j, i], out[j, j] = c, s, -s, c
    return out


def _bird(scene: Scene, light: Array) -> Iterator[Paint]:
    """The parts and the body from back to front; what points away from the camera goes behind the body."""
    view = _turn(1, -scene.camera_yaw) @ _turn(0, scene.camera_pitch) @ _turn(2, scene.camera_roll)
    body = _turn(2, scene.body_pitch) @ view
    head = _turn(2, scene.head_tilt) @ _turn(1, -scene.head_turn) @ view
    skull, near = TRUNK[3] @ body, math.copysign(1, view[2, 2])
    up, along = math.sin(scene.tail_lift), math.cos(scene.tail_lift)
    fan = np.array([(-along, up, 0), (0.9 * up, 0.9 * along, 0.45)]) @ body
    jobs: list[tuple[float, str, int, Array, Array]] = [  # order (0: the body), part, which of a pair, u and v, origin
        (0.1 - body[0, 2], "tail", 0, fan, np.array([-0.55, 0.06, 0]) @ body),
        (head[0, 2] + 0.15, "beak", 0, head[:2], skull + np.array([0.28, -0.05, 0]) @ head),
    ]
    up, along = math.sin(scene.wing_lift), math.cos(scene.wing_lift)
    for which, side in enumerate((-1, 1)):
        out = np.array([0.5, 0.28, 0.82 * side]) @ head
        plane = np.array([(-along, up, 0.45 * side), (up, along, 0.25 * side)])
        jobs += [
            (2 * near * side, "wing", which, plane @ body, np.array([0.08, 0.16, 0.33 * side]) @ body),
            (0.1 * near * side - 1.5, "foot", which, view[:2], np.array([0.06, -0.38, 0.22 * side]) @ view),
            (out[2], "eye", which, np.array([(0.86, 0, -0.5 * side), (0, 1, 0)]) @ head, skull + 0.28 * out),
        ]
    for _, part, which, axes, origin in sorted([*jobs, (0, "", 0, body, skull)], key=lambda job: job[0]):
        if not part:
            yield from _body(scene, body, light)
        elif (variant := getattr(scene, part)) is not None:
            model, color = MODELS[part][variant]
            points, ends, colors = _catalogue(COLORS[color])[model]
            stretch = [[min(max(1, 0.5 / (math.hypot(x, y) + 1e-9)), 2)] for x, y, _ in axes.tolist()]  # edge-on
            frame = np.concatenate((axes * stretch, [(*light, 0)]))
            yield _project(points @ frame + origin, scene), ends, colors, LABELS[part][which]


def _project(points: Array, scene: Scene) -> Array:
    """View space, N×3, to the canvas, N×2."""
    scale = np.array([FOCUS, -FOCUS]) / (scene.camera_distance - points[:, 2:])
    return np.asarray(points[:, :2] * scale + np.array([scene.camera_x, scene.camera_y]))


def _body(scene: Scene, body: Array, light: Array) -> Iterator[Paint]:
    """Ellipsoids as nested outlines that brighten towards the light, level by level so that they merge."""
    color, steps = _rgb(scene.body_color), np.linspace(0, 1, 9)
    tones = [_tone(color, 1 - scene.light_strength * (0.75 - t)) for t in steps.tolist()]
    belly = [_mix(tones[3], WHITE, scene.body_belly * (0.15 + 0.65 * t)) for t in steps.tolist()]
    for at, radii, colors, shrink, lean in ((TRUNK, RADII, tones, 0.9, 0.45), (BELLY, BELLY_RADII, belly, 0.5, 0)):
        spread = radii[:, :, None] * body[:, :2]
        cov = spread.transpose(0, 2, 1) @ spread  # the outline is the unit circle times the square root of this
        det, trace = np.sqrt(np.linalg.det(cov))[:, None, None], np.trace(cov, axis1=1, axis2=2)[:, None, None]
        rims = CIRCLE @ ((cov + det * np.eye(2)) / np.sqrt(trace + 2 * det))
        t = steps[:, None, None, None]  # levels × ellipsoids × points × coordinates
        rims = rims * (1 - shrink * t) + lean * t * np.sqrt(trace / 2) * light
        points = (rims @ np.eye(2, 3) + (at @ body)[:, None]).reshape(-1, 3)
        ends = list(range(len(CIRCLE), len(points) + 1, len(CIRCLE)))
        yield _project(points, scene), ends, [c for c in colors for _ in at], NOTHING


def masks(part_map: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.bool_]]:
    """Where each part is seen: H×W by name, a pair (eyes, feet, wings) as one."""
    return {part: (part_map[..., None, :3] == labels).all(-1).any(-1) for part, labels in LABELS.items()}


def object_masks(part_map: npt.NDArray[np.uint8]) -> dict[int, npt.NDArray[np.bool_]]:
    """Where each background object is seen: H×W by index; hidden objects are left out."""
    grey, blue = (part_map[..., :2] == 204).all(-1), part_map[..., 2]
    return {i - 204: grey & (blue == i) for i in np.unique(blue[grey]).tolist() if 204 <= i < 254}
