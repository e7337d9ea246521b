"""Where the parts of an image are in the model's view: one function for each layout that knows them."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sic.data.birds import PARTS
from sic.data.dataset import ImageData, Sample
from sic.data.images import Preprocessing, image_size
from sic.data.layouts.funnybirds import known_part_map
from sic.evaluate.interventions import COLOURS, part_masks
from sic.evaluate.localisation import box_mask

Masks = dict[str, Tensor]
"""By the name of a part: S×S, how much of each pixel belongs to it."""


def part_places(data: ImageData, sample: Sample, preprocessing: Preprocessing) -> Masks | None:
    """Where the parts of an image of some data are; None if that is not known."""
    if data.layout == "FunnyBirds":
        return of_funnybirds(data.root, sample, preprocessing)
    if data.layout == "CUB-200-2011":
        return of_cub(sample, preprocessing)
    return None


def of_funnybirds(root: Path, sample: Sample, preprocessing: Preprocessing) -> Masks | None:
    """The part map; those of training images are known for drawn birds only."""
    picture = known_part_map(root, sample.id)
    if picture is None:
        return None
    masks: Masks = {}
    for (part, _), mask in zip(COLOURS, part_masks(Image.fromarray(picture), 0, preprocessing) / 255, strict=True):
        masks[PARTS[part]] = masks.get(PARTS[part], 0) + mask
    return masks


def of_cub(sample: Sample, preprocessing: Preprocessing) -> Masks | None:
    """Each pixel in the bird's box, or in an image without a box, belongs to the nearest visible point of a part."""
    if not sample.points:
        return None
    size = image_size(sample.path)
    seen = [point for each in sample.points if (point := preprocessing.point(each, size)) is not None]
    if not seen:
        return {}
    centres = torch.arange(preprocessing.size) + 0.5
    x, y = torch.tensor([(point.x, point.y) for point in seen], dtype=torch.float64).T[:, :, None, None]
    nearest = ((centres - x) ** 2 + (centres[:, None] - y) ** 2).argmin(dim=0)
    bird = box_mask(sample.boxes, size, preprocessing) if sample.boxes else torch.ones_like(nearest, dtype=torch.bool)
    masks: Masks = {}
    for number, point in enumerate(seen):
        masks[point.part] = masks.get(point.part, False) | (nearest == number) & bird
    return masks
