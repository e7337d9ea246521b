"""Test birds without some parts or background objects: their importance in explanations, and the model's logits."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.drawing import LABELS
from sic.data.images import Preprocessing, read_image
from sic.data.layouts.funnybirds import object_counts, part_map, without_object, without_parts
from sic.data.loading import FileViews, decoders, loader
from sic.evaluate.outputs import Watch, device_of, logits, nobody
from sic.methods import Classifier, Contributions, opacity

Floats = NDArray[np.float64]

ALL = 2 ** len(PARTS) - 1
"""The code of the set of all parts. A code has bit p set if part p is in the set."""
COLOURS = [(number, colour) for number, part in enumerate(PARTS) for colour in LABELS[part]]
"""(part, colour in the part map): two for eyes, feet and wings."""
OBJECT, OBJECTS = 204, 50
"""The colour of background object i is (204, 204, 204 + i), i < 50."""


def colour_numbers(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """H×W×3 → H×W: 1 … 8 for the `COLOURS`, 9 + i for background object i, 0 elsewhere."""
    red, green, blue = (picture[..., channel].astype(np.int32) for channel in range(3))
    code = red << 16 | green << 8 | blue
    numbers = np.zeros(code.shape, np.uint8)
    for number, (_, (r, g, b)) in enumerate(COLOURS, 1):
        numbers[code == (r << 16 | g << 8 | b)] = number
    index = code - (OBJECT << 16 | OBJECT << 8 | OBJECT)
    seen = (index >= 0) & (index < OBJECTS)
    numbers[seen] = index[seen] + 1 + len(COLOURS)
    return numbers


def importance(maps: Tensor, numbers: Tensor, objects: int) -> tuple[Tensor, Tensor]:
    """Sums of maps N×K×H×W in parts, N×K×P, and in the first `objects` background objects, N×K×O.

    `numbers`: N×H×W from `colour_numbers`. The mask of each colour is dilated by a 5×5 maximum. The two eyes,
    feet and wings are dilated separately and summed, so pixels between them count twice.
    """
    colours = torch.arange(1, 1 + len(COLOURS) + objects, device=maps.device)
    masks = (numbers[:, None] == colours[:, None, None]).to(maps.dtype)
    sums = maps.flatten(2) @ F.max_pool2d(masks, 5, 1, 2).flatten(2).transpose(1, 2)
    owners = torch.tensor([part for part, _ in COLOURS], device=maps.device)
    parts = maps.new_zeros(*maps.shape[:2], len(PARTS)).index_add(2, owners, sums[..., : len(COLOURS)])
    return parts, sums[..., len(COLOURS) :]


def explained(contributions: Contributions) -> dict[str, Tensor]:
    """The maps to score, by kind (`KINDS`); methods without dynamic weights have no alpha."""
    maps, weights = contributions.maps, contributions.weights
    if not weights.shape[-3]:
        return {"contributions": maps}
    return {"contributions": maps, "alpha": opacity(weights.norm(dim=-3) * (maps > 0))}


@dataclass(frozen=True)
class Importance:
    """The importance of parts and objects in explanations of K classes, for N images."""

    parts: Floats
    """N×K×P."""
    objects: Floats
    """N×K×O; 0 for objects that are hidden or missing."""
    total: Floats
    """N×K, the sum of the whole map."""


class _PartMaps(Dataset[tuple[Tensor, Tensor]]):
    """The view of an image and its part map, which is resized with nearest-neighbour interpolation."""

    def __init__(self, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing) -> None:
        self.views = FileViews([sample.path for sample in samples], preprocessing)
        self.maps = [part_map(root, sample) for sample in samples]

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.views.preprocessing(read_image(self.maps[index]), Image.Resampling.NEAREST)
        return self.views[index], torch.from_numpy(colour_numbers(picture))


class TestBirds:
    """The test images of a FunnyBirds folder and what a classifier predicts for them; each file is read once."""

    __test__ = False  # not a test, whatever its name suggests to pytest

    def __init__(
        self,
        classifier: Classifier,
        root: Path,
        samples: Sequence[Sample],
        preprocessing: Preprocessing,
        watch: Watch | None = None,
    ) -> None:
        self.classifier, self.root, self.samples, self.preprocessing = classifier, root, list(samples), preprocessing
        self.watch = watch or nobody
        self.labels = np.array([sample.labels[0] for sample in samples])
        self.objects = object_counts(root, samples)
        """How many background objects each image has."""
        self.logits = self._logits("complete birds", [sample.path for sample in samples])
        """N×C, for the complete images."""
        self.kept = np.full((len(samples), ALL + 1, self.logits.shape[1]), np.nan)
        """N×32×C: logits with only the parts of a code left; NaN before `intervene`."""
        self.kept[:, ALL] = self.logits
        self.without: list[Floats] = []
        """For each image: the logit of its class without each of its background objects."""

    def _logits(self, task: str, paths: Sequence[Path]) -> Floats:
        found = logits(self.classifier, paths, self.preprocessing, lambda *count: self.watch(task, *count))
        return found.double().numpy()

    def intervene(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Predict for these interventions (image, code of the parts that are left) and for all images without each of
        their objects."""
        codes = sorted({(image, code) for image, code in wanted if code != ALL})
        things = [(image, number) for image, count in enumerate(self.objects) for number in range(count)]
        paths = [self._without_parts(image, code) for image, code in codes]
        paths += [without_object(self.root, self.samples[image], number) for image, number in things]
        if paths:
            found = self._logits("interventions", paths)
            images, left = np.array(codes, dtype=np.int64).reshape(-1, 2).T
            self.kept[images, left] = found[: len(codes)]
            own = found[len(codes) :][np.arange(len(things)), np.repeat(self.labels, self.objects)]
        self.without = np.split(own if paths else np.zeros(0), np.cumsum(self.objects)[:-1])

    def _without_parts(self, image: int, code: int) -> Path:
        removed = {part for number, part in enumerate(PARTS) if not code >> number & 1}
        return without_parts(self.root, self.samples[image], removed)

    def explain(self, targets: NDArray[np.int64]) -> dict[str, Importance]:
        """Importances by kind of map, for N×K classes."""
        device = device_of(self.classifier)
        most = max(self.objects, default=0)
        collected: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        pictures = _PartMaps(self.root, self.samples, self.preprocessing)
        done = 0
        for images, numbers in loader(pictures, 8 if device.type == "cpu" else 16, decoders(len(pictures))):
            rows = torch.from_numpy(targets[done : done + len(images)]).to(device)
            contributions = self.classifier.explain(images.to(device).float() / 255, rows)
            for kind, maps in explained(contributions).items():
                parts, objects = importance(maps, numbers.to(device), most)
                collected[kind].append((parts, objects, maps.sum(dim=(2, 3))))
            done += len(images)
            self.watch("explanations", done, len(pictures))
        return {
            kind: Importance(*(torch.cat(column).double().cpu().numpy() for column in zip(*batches, strict=True)))
            for kind, batches in collected.items()
        }
