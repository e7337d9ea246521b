"""What SIC's own loss does not ask for: cases of a class that differ, and evidence that lies on images of its class."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.data.labels import split_targets
from sic.methods import SIC

ALIKE = 0.6
"""Likeness of two images of a class up to which there is no penalty."""
CHOSEN_FOR = 37
"""The most classes that the recipe without competition and the weights of the penalties were tried on."""
GRIDS = 64
"""Grids of images in a step."""
IN_A_GRID = 9
"""Most images in a grid."""


def base_rate_loss(classes: int) -> float:
    """Binary cross-entropy, the mean over all classes, of an answer that knows no more than how rare a class is."""
    rate = 1 / max(classes, 2)
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


def penalty_scale(classes: int) -> float:
    """Factor of the weights of the penalties, which were chosen for `CHOSEN_FOR` classes or fewer.

    With many classes nearly all answers are no, so the loss is small, and penalties as large as for a few classes would
    be most of what is minimised: a fit of 200 classes ended without any evidence.

    >>> round(penalty_scale(12), 2), round(penalty_scale(120), 2), round(penalty_scale(200), 2)
    (1.0, 0.39, 0.25)
    """
    return min(1.0, base_rate_loss(classes) / base_rate_loss(CHOSEN_FOR))


def competition_scale(classes: int) -> float:
    """Softmax cross-entropy of an answer that knows nothing, in the unit of `penalty_scale`: penalties with this factor
    are in proportion to that loss.

    >>> round(competition_scale(120))
    39
    """
    return math.log(classes) / base_rate_loss(CHOSEN_FOR)


def sameness(latents: Tensor, classes: Tensor, b: float) -> Tensor:
    """How much more alike than `ALIKE` two images of a class are, on average.

    Args:
        latents: S×d.
        classes: The classes of the images, S.
        b: The exponent of the likeness, `|cos|^B`.

    Returns:
        A number from 0 to 1 - `ALIKE`; 0 where every class has one image.
    """
    directions = F.normalize(latents, dim=1)
    likeness = (directions @ directions.T).abs() ** b
    pairs = (classes[:, None] == classes).triu(1)
    return ((likeness - ALIKE).relu() * pairs).sum() / pairs.sum().clamp_min(1)


def random_grids(
    groups: Sequence[np.ndarray], rng: np.random.Generator, number: int = GRIDS, images: int = IN_A_GRID
) -> Tensor:
    """Random images for some grids, at most one of a group in each grid.

    Args:
        groups: The images of each group, such as a class.
        rng: Source of randomness.
        number: The number of grids.
        images: Images in a grid, if there are so many groups.

    Returns:
        The images of each grid, number×images.
    """
    chosen = rng.random((number, len(groups))).argsort(axis=1)[:, :images]
    counts = np.array([len(each) for each in groups])
    first = np.concatenate([[0], counts.cumsum()[:-1]])
    places = first[chosen] + (rng.random(chosen.shape) * counts[chosen]).astype(int)
    return torch.from_numpy(np.concatenate(groups)[places])


def query_grids(targets: Tensor, multi_label: bool, rng: np.random.Generator) -> Tensor:
    """Random grids of the images of a step with the targets N×C: the places of these images in the step, G×n.

    A grid shows a class once, or with several labels per image an image once.
    """
    truth, _ = split_targets(targets)
    groups = np.arange(len(targets)) if multi_label else truth.argmax(dim=1).numpy()
    return random_grids([np.flatnonzero(groups == group) for group in np.unique(groups)], rng)


def misplaced_evidence(classifier: SIC, parts: Tensor, targets: Tensor, vectors: Tensor, classes: Tensor) -> Tensor:
    """Share of the evidence for a class that lies on images of a grid without that class.

    Args:
        classifier: Its projection, B and T are used.
        parts: Pooled features of the n images of N grids, N×n×F, or with local units latents (`Encoder.additive`).
        targets: Their targets, N×n×C.
        vectors: Latents of the supports, S×d.
        classes: The classes of the supports, S.

    Returns:
        A number from 0 to 1, the mean over the classes that each grid shows.
    """
    evidence = classifier.evidence_by_part(parts, vectors).flatten(0, 1)
    return misplaced_share(classifier.by_class(evidence, classes).view_as(targets), targets)


def misplaced_share(evidence: Tensor, targets: Tensor) -> Tensor:
    """`misplaced_evidence` of the evidence for every class on each of n images, N×n×C. Only what is positive counts."""
    truth, counts = split_targets(targets)
    found, shown = evidence.relu() * counts, truth.amax(dim=1)
    elsewhere = 1 - (found * truth).sum(dim=1) / found.sum(dim=1).clamp_min(1e-12)
    return (elsewhere * shown).sum() / shown.sum().clamp_min(1)
