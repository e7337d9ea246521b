"""Where parts are: part maps and points, against loops over pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sic.data.birds import PARTS
from sic.data.dataset import Box, ImageData, Point, Sample
from sic.data.images import Preprocessing, to_tensor
from sic.data.layouts.funnybirds import known_part_map, open_funnybirds, write_funnybirds
from sic.evaluate.interventions import importance, part_masks
from sic.evaluate.parts import part_places

SIZES = [(61, 40), (33, 57), (24, 24)]
VIEWS = [Preprocessing(24, 24), Preprocessing(20, 26), Preprocessing(24, 24, "squash"), Preprocessing(20, 25, "squash")]
SHARES = {
    "beak": [(0.5213, 0.3127)],
    "eye": [(0.4391, 0.2741), (0.6137, 0.3833)],
    "tail": [(0.2311, 0.8329)],
    "leg": [(0.9907, 0.0211)],
}
"""Points of parts, as shares of width and height; the leg is at the edge."""
POINTS = [(part, x, y) for part, places in SHARES.items() for x, y in places]


def cub(*samples: Sample) -> ImageData:
    return ImageData("birds", Path("birds"), "CUB-200-2011", ("bird",), {"test": list(samples)})


def bird(folder: Path, size: tuple[int, int], boxed: bool) -> Sample:
    """An image of a bird with points for its parts."""
    width, height = size
    Image.new("RGB", size).save(folder / "bird.png")
    box = Box(0, 0.17 * width, 0.11 * height, 0.83 * width, 0.94 * height)
    points = tuple(Point(part, x * width, y * height) for part, x, y in POINTS)
    return Sample("bird.png", folder / "bird.png", (0,), (box,) if boxed else (), points=points)


def slow(sample: Sample, size: tuple[int, int], view: Preprocessing) -> list[list[str | None]]:
    """The part of each pixel of the view: its centre is traced back to the image, pixel by pixel."""
    if view.fit == "squash":
        reduced = [view.resize, view.resize]
    else:
        reduced = [max(view.resize, round(side * view.resize / min(size))) for side in size]
    scale = [new / old for new, old in zip(reduced, size, strict=True)]
    start = [(new - view.size) // 2 / each for new, each in zip(reduced, scale, strict=True)]
    end = [first + view.size / each for first, each in zip(start, scale, strict=True)]
    rows: list[list[str | None]] = []
    for row in range(view.size):
        rows.append([])
        for column in range(view.size):
            x, y = start[0] + (column + 0.5) / scale[0], start[1] + (row + 0.5) / scale[1]
            best, part = float("inf"), None
            for point in sample.points:
                distance = ((point.x - x) * scale[0]) ** 2 + ((point.y - y) * scale[1]) ** 2
                if start[0] <= point.x < end[0] and start[1] <= point.y < end[1] and distance < best:
                    best, part = distance, point.part
            outside = all(not (box.left <= x < box.right and box.top <= y < box.bottom) for box in sample.boxes)
            rows[-1].append(None if sample.boxes and outside else part)
    return rows


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_points_against_a_loop_over_pixels(
    tmp_path: Path, size: tuple[int, int], view: Preprocessing, boxed: bool
) -> None:
    sample = bird(tmp_path, size, boxed)
    masks = part_places(cub(sample), sample, view)
    assert masks is not None
    for row, parts in enumerate(slow(sample, size, view)):
        for column, part in enumerate(parts):
            assert [name for name, mask in masks.items() if mask[row, column]] == [part] * (part is not None)


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("part", ["beak", "leg"])
def test_points_go_where_the_pixels_go(tmp_path: Path, view: Preprocessing, part: str) -> None:
    """A white spot at a part is in the mask of that part, in the model's view."""
    size = 366, 240
    sample = bird(tmp_path, size, boxed=False)
    point = next(point for point in sample.points if point.part == part)
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    picture[round(point.y) - 2 : round(point.y) + 3, round(point.x) - 2 : round(point.x) + 3] = 255
    seen = to_tensor(view(Image.fromarray(picture))).sum(dim=0)
    masks = part_places(cub(sample), sample, view)
    assert masks is not None
    if seen.max() > 0:
        assert max(masks, key=lambda name: float((masks[name] * seen).sum())) == part
    else:
        assert part not in masks  # cropped away


def test_images_without_points(tmp_path: Path) -> None:
    unseen = Sample("bird.png", tmp_path / "bird.png", (0,), points=(Point("beak", 1, 20),))
    Image.new("RGB", (120, 40)).save(unseen.path)
    unknown = Sample("bird.png", unseen.path, (0,))
    data = cub(unseen, unknown)
    assert part_places(data, unseen, Preprocessing(20, 20)) == {}
    assert part_places(data, unknown, Preprocessing(20, 20)) is None
    data.layout = "class folders"
    assert part_places(data, unseen, Preprocessing(20, 20, "squash")) is None


def test_part_maps_against_importances(tmp_path: Path) -> None:
    write_funnybirds(tmp_path / "birds", classes=2, train=1, test=1, size=48, interventions=False)
    data, view = open_funnybirds(tmp_path / "birds"), Preprocessing(24, 24)
    for sample in (data.splits["train"][0], data.splits["test"][1]):
        masks = part_places(data, sample, view)
        assert masks is not None and tuple(masks) == PARTS
        map_ = torch.rand(24, 24, generator=torch.Generator().manual_seed(0))
        picture = Image.fromarray(known_part_map(data.root, sample.id))
        expected, _ = importance(map_[None, None], part_masks(picture, 0, view)[None])
        torch.testing.assert_close(torch.stack([(map_ * mask).sum() for mask in masks.values()]), expected[0, 0])
