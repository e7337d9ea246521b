"""A quick check of explanations: remove the part with the highest contribution, and see whether the logit drops."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.drawing import masks
from sic.data.images import Preprocessing, read_image
from sic.data.layouts.funnybirds import part_map, without_parts
from sic.data.loading import view_batches
from sic.evaluate.outputs import logits
from sic.methods import Classifier


@dataclass(frozen=True)
class PartRemoval:
    """The share of test images for which removing the strongest part lowers the logit of the true class."""

    lowered: float
    random_lowered: float
    """The same for a random part: the baseline."""
    mean_drop: float
    random_mean_drop: float
    images: int


def part_importance(maps: Tensor, part_masks: Tensor) -> Tensor:
    """Sums N×P of signed maps N×H×W inside masks N×P×H×W, each dilated by a 5×5 maximum."""
    dilated = F.max_pool2d(part_masks.to(maps.dtype), 5, 1, 2)
    return (maps[:, None] * dilated).sum(dim=(2, 3))


def _masks(path: Path, preprocessing: Preprocessing) -> Tensor:
    """The masks of the parts in the model's view, P×S×S, resized with nearest-neighbour interpolation."""
    found = masks(preprocessing(read_image(path), Image.Resampling.NEAREST))
    return torch.from_numpy(np.stack([found[part] for part in PARTS]))


def part_removal(
    classifier: Classifier, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing, seed: int = 0
) -> PartRemoval:
    """Measure on test images of a FunnyBirds folder with interventions."""
    paths = [sample.path for sample in samples]
    labels = torch.tensor([sample.labels[0] for sample in samples])
    rng = np.random.default_rng(seed)
    top, other, before, done = [], [], [], 0
    for batch in view_batches(paths, preprocessing):
        rows = slice(done, done + len(batch))
        contributions = classifier.explain(batch, labels[rows])
        part_masks = torch.stack([_masks(part_map(root, s), preprocessing) for s in samples[rows]])
        importance = part_importance(contributions.maps, part_masks)
        top += importance.argmax(dim=1).tolist()
        other += rng.integers(len(PARTS), size=len(batch)).tolist()
        before.append(contributions.value)
        done += len(batch)
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
