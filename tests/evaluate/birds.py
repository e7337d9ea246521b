"""A FunnyBirds-like test set by hand: every part is a square (or a pair of them), its shade says the variant."""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.drawing import LABELS
from sic.methods import Classifier, Contributions

SIZE, SIDE = 40, 5
CORNERS = {"beak": [(2, 2)], "eye": [(2, 16), (2, 22)], "foot": [(14, 2), (14, 10)], "tail": [(14, 30)],
           "wing": [(26, 2), (26, 9)]}  # fmt: skip
OBJECTS = [(26, 22), (34, 32)]
WEIGHTS = torch.tensor([1.0, 2, 3, 4, 5])
"""What each part is worth to `Oracle`."""
# The last has nothing in common with a bird: a class for images that show none.
CLASSES = [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 0, 0, 1], [0, 1, 0, 1, 2], [1, 0, 1, 0, 2], [9, 9, 9, 9, 9]]


def square(corner: tuple[int, int]) -> tuple[slice, slice]:
    return tuple(slice(place, place + SIDE) for place in corner)  # type: ignore[return-value]


def masks() -> np.ndarray:
    """P×S×S."""
    result = np.zeros((len(PARTS), SIZE, SIZE), bool)
    for number, part in enumerate(PARTS):
        for corner in CORNERS[part]:
            result[number][square(corner)] = True
    return result


def shade(variant: int) -> int:
    return 40 * (variant + 1)


def picture(variants: list[int], kept: set[str], objects: set[int]) -> np.ndarray:
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    for part, variant, mask in zip(PARTS, variants, masks(), strict=True):
        if part in kept:
            pixels[mask, 0] = shade(variant)
    for number in objects:
        pixels[square(OBJECTS[number])][..., 2] = 200
    return pixels


def part_map(objects: set[int]) -> np.ndarray:
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    for part, corners in CORNERS.items():
        for corner, colour in zip(corners, LABELS[part], strict=True):
            pixels[square(corner)] = colour
    for number in objects:
        pixels[square(OBJECTS[number])] = (204, 204, 204 + number)
    return pixels


def write(root: Path, per_class: int = 2) -> list[Sample]:
    """The whole layout, and the test samples; image i has i % 3 background objects."""

    def store(name: str, pixels: np.ndarray) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)

    samples, scenes = [], []
    for label, variants in enumerate(CLASSES[:-1]):
        for _ in range(per_class):
            index = len(samples)
            objects = set(range(index % 3))
            name = f"{label}/{index:06d}"
            store(f"test/{name}.png", picture(variants, set(PARTS), objects))
            store(f"test_part_map/{name}.png", part_map(objects))
            for count in range(len(PARTS) + 1):
                for kept in itertools.combinations(PARTS, count):
                    changed = picture(variants, set(kept), objects)
                    store(f"test_interventions/{name}/body_{'_'.join(kept)}.png", changed)
            for number in objects:
                changed = picture(variants, set(PARTS), objects - {number})
                store(f"test_interventions/{name}/background_interventions/{number}.png", changed)
            samples.append(Sample(f"test/{name}.png", root / f"test/{name}.png", (label,)))
            scenes.append({"class_idx": label, "bg_objects": "3," * len(objects)})
    classes = [{"class_idx": c, "parts": dict(zip(PARTS, v, strict=True))} for c, v in enumerate(CLASSES)]
    for name, content in {"classes": classes, "dataset_test": scenes, "dataset_train": scenes}.items():
        (root / f"{name}.json").write_text(json.dumps(content))
    return samples


class Oracle(Classifier):
    """A class's logit is what the parts are worth that look like its own, and its contributions are their pixels."""

    loss = "bce"

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.masks = torch.from_numpy(masks()).float()
        self.seen = 0

    def pixels(self, images: Tensor) -> Tensor:
        """N×C×S×S: what each pixel adds to each class."""
        red = 255 * images[:, 0]
        result = torch.zeros(len(images), len(CLASSES), *images.shape[2:])
        for label, variants in enumerate(CLASSES):
            for variant, mask, weight in zip(variants, self.masks, WEIGHTS, strict=True):
                result[:, label] += ((red - shade(variant)).abs() < 1) * mask * (weight / mask.sum())
        return result

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        logits = self.pixels(images).sum((2, 3))
        logits[:, -1] = 0.5
        return logits

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        columns = targets if targets.dim() == 2 else targets[:, None]
        every = self.pixels(images)
        maps = self.change(every[torch.arange(len(images))[:, None], columns])
        weights = torch.zeros(*maps.shape[:2], 6, *maps.shape[2:])
        weights[:, :, 4] = maps
        value = self(images).gather(1, columns)
        return Contributions(maps, weights, value, torch.zeros_like(value)).reshape(targets.shape)

    def change(self, maps: Tensor) -> Tensor:
        return maps


class Opposite(Oracle):
    """Says the opposite of what it does."""

    def change(self, maps: Tensor) -> Tensor:
        return -maps


class Noise(Oracle):
    """Explains by noise."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def change(self, maps: Tensor) -> Tensor:
        return torch.randn(maps.shape, generator=self.generator) + 0.2
