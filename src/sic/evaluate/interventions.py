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
from sic.data.dataset import Progress, Sample, Watch, nobody
from sic.data.drawing import LABELS
from sic.data.images import Preprocessing, read_image
from sic.data.layouts.funnybirds import object_counts, part_map, without_object, without_parts
from sic.data.loading import decoders, loader, view, view_batches
from sic.evaluate.metrics import BASELINES
from sic.methods import Classifier, Contributions, device_of, opacity

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


def part_masks(picture: Image.Image, objects: int, preprocessing: Preprocessing) -> Tensor:
    """The masks of the `COLOURS` and of the first `objects` background objects in the model's view, uint8, M×S×S.

    A mask is dilated by a 5×5 maximum in the pixels of the part map, as the framework does, and then reduced to the
    view: a value is the share of a pixel that it covers, 255 for all of it. So importances hardly depend on the size of
    the view.
    """
    numbers = torch.from_numpy(colour_numbers(np.asarray(picture)))
    result = torch.zeros(len(COLOURS) + objects, preprocessing.size, preprocessing.size, dtype=torch.uint8)
    for number in numbers.unique().tolist():
        if 0 < number <= len(result):
            mask = F.max_pool2d((numbers == number)[None].float(), 5, 1, 2)[0]
            reduced = preprocessing(Image.fromarray(255 * mask.byte().numpy()), Image.Resampling.BOX)
            result[number - 1] = torch.from_numpy(reduced)
    return result


def importance(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of maps N×K×H×W in parts, N×K×P, and in background objects, N×K×O.

    `masks`: N×M×H×W from `part_masks`. The two eyes, feet and wings are summed, so pixels between them count twice.
    """
    sums = maps.flatten(2) @ (masks.to(maps.dtype) / 255).flatten(2).transpose(1, 2)
    owners = torch.tensor([part for part, _ in COLOURS], device=maps.device)
    parts = maps.new_zeros(*maps.shape[:2], len(PARTS)).index_add(2, owners, sums[..., : len(COLOURS)])
    return parts, sums[..., len(COLOURS) :]


def explained(contributions: Contributions) -> dict[str, Tensor]:
    """The maps to score, by kind (`KINDS`); methods without dynamic weights have no alpha."""
    maps, weights = contributions.maps, contributions.weights
    if not weights.shape[-3]:
        return {"contributions": maps}
    return {"contributions": maps, "alpha": opacity(weights.norm(dim=-3) * (maps > 0))}


def baselines(images: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """Maps N×1×H×W that ask no model, by name (`BASELINES`): the parts of the bird, the edges, the middle."""
    size = images.shape[-1]
    grey = F.pad(images.mean(dim=1, keepdim=True), (1,) * 4, mode="replicate")
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(images)
    slopes = F.conv2d(grey, torch.stack([sobel, sobel.T])[:, None])
    distance = torch.arange(size).to(images) - (size - 1) / 2
    bell = torch.exp(-((distance / (size / 4)) ** 2) / 2)
    maps = (
        masks[:, : len(COLOURS)].amax(dim=1, keepdim=True).to(images) / 255,
        slopes.norm(dim=1, keepdim=True),
        (bell[:, None] * bell).expand(len(images), 1, -1, -1),
    )
    return dict(zip(BASELINES, maps, strict=True))


@torch.no_grad()
def logits(
    classifier: Classifier, paths: Sequence[Path], preprocessing: Preprocessing, progress: Progress | None = None
) -> Tensor:
    """Logits n×C on the CPU, computed on the classifier's device."""
    device = device_of(classifier)
    result: list[Tensor] = []
    for batch in view_batches(paths, preprocessing, 64 if device.type == "cpu" else 256, device):
        result.append(classifier(batch).cpu())
        if progress is not None:
            progress(sum(map(len, result)), len(paths))
    return torch.cat(result)


@dataclass(frozen=True)
class Importance:
    """The importance of parts and objects in explanations of K classes, for N images."""

    parts: Floats
    """N×K×P."""
    objects: Floats
    """N×K×O; 0 for objects that are hidden or missing."""
    total: Floats
    """N×K, the sum of the whole map."""
    absolute: Floats
    """N×K, the sum of its absolute values."""


class _PartMaps(Dataset[tuple[Tensor, Tensor]]):
    """The view of an image and the masks of its parts and objects."""

    def __init__(self, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing, objects: int = 0) -> None:
        self.files = [(sample.path, part_map(root, sample)) for sample in samples]
        self.preprocessing, self.objects = preprocessing, objects

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, parts = map(read_image, self.files[index])
        return view(self.preprocessing, image), part_masks(parts, self.objects, self.preprocessing)


class TestBirds:
    """The test images of a FunnyBirds folder and the predictions of a classifier; each file is read once."""

    __test__ = False  # pytest takes it for a test because of its name

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
        """Importances for N×K classes by kind of map, those of the `BASELINES` included."""
        device = device_of(self.classifier)
        most = max(self.objects, default=0)
        collected: dict[str, list[tuple[Tensor, ...]]] = defaultdict(list)
        pictures = _PartMaps(self.root, self.samples, self.preprocessing, most)
        done = 0
        for images, masks in loader(pictures, 8 if device.type == "cpu" else 16, decoders(len(pictures))):
            rows = torch.from_numpy(targets[done : done + len(images)]).to(device)
            images, masks = images.to(device).float() / 255, masks.to(device)
            scored = explained(self.classifier.explain(images, rows))
            scored |= {name: maps.expand(-1, rows.shape[1], -1, -1) for name, maps in baselines(images, masks).items()}
            for kind, maps in scored.items():
                collected[kind].append((*importance(maps, masks), maps.sum(dim=(2, 3)), maps.abs().sum(dim=(2, 3))))
            done += len(images)
            self.watch("explanations", done, len(pictures))
        return {
            kind: Importance(*(torch.cat(column).double().cpu().numpy() for column in zip(*batches, strict=True)))
            for kind, batches in collected.items()
        }


@dataclass(frozen=True)
class PartRemoval:
    """The share of test images for which removing the strongest part lowers the logit of the true class."""

    lowered: float
    random_lowered: float
    """The same for a random part: the baseline."""
    mean_drop: float
    random_mean_drop: float
    images: int


def part_removal(
    classifier: Classifier, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing, seed: int = 0
) -> PartRemoval:
    """A quick check of explanations on test images with interventions: remove the part with the highest contribution,
    and see whether the logit drops."""
    labels = torch.tensor([sample.labels[0] for sample in samples])
    rng = np.random.default_rng(seed)
    top, other, before, done = [], [], [], 0
    pictures = _PartMaps(root, samples, preprocessing)
    for images, masks in loader(pictures, 64, decoders(len(pictures))):
        contributions = classifier.explain(images.float() / 255, labels[done : done + len(images)])
        top += importance(contributions.maps[:, None], masks)[0][:, 0].argmax(dim=1).tolist()
        other += rng.integers(len(PARTS), size=len(images)).tolist()
        before.append(contributions.value)
        done += len(images)
    value = torch.cat(before)

    def drops(chosen: list[int]) -> Tensor:
        removed = [without_parts(root, s, {PARTS[c]}) for s, c in zip(samples, chosen, strict=True)]
        return value - logits(classifier, removed, preprocessing).gather(1, labels[:, None])[:, 0]

    drop, random_drop = drops(top), drops(other)
    return PartRemoval(
        (drop > 0).float().mean().item(),
        (random_drop > 0).float().mean().item(),
        drop.mean().item(),
        random_drop.mean().item(),
        len(samples),
    )
