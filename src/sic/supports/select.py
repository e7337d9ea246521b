"""Choosing the cases: k-means per class on the latents, then the nearest image of that class to each centroid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

How = Literal["nearest", "centroid", "random", "full"]
HOW: tuple[How, ...] = get_args(How)
"""nearest: the images nearest to k-means' centroids. centroid: these themselves, which are no images. random: images
drawn once. full: all images."""


@dataclass(frozen=True)
class Selection:
    """Supports in order of class."""

    rows: NDArray[np.intp]
    """Positions among the training images; -1: it is none of them."""
    vectors: NDArray[np.float32]
    classes: NDArray[np.intp]


def centroids(latents: NDArray[np.float32], number: int, seed: int) -> NDArray[np.float64]:
    """`number`×d by k-means; some repeat where there are fewer distinct rows."""
    from sklearn.cluster import KMeans  # takes seconds to load, and predicting does not need it

    # Identical latents make fewer distinct points than centroids: duplicates are as good a support as any.
    points = np.unique(latents, axis=0)
    found = KMeans(min(number, len(points)), n_init=4, random_state=seed).fit(latents).cluster_centers_
    return found[np.arange(number) % len(found)].astype(np.float64)


def select_class(latents: NDArray[np.float32], number: int, seed: int, pinned: Sequence[int] = ()) -> NDArray[np.intp]:
    """Positions of `number` distinct rows of `latents` (n×d), or of all rows where there are no more.

    Every centroid gets the nearest row; where two centroids share one, the distinct rows of least total distance.
    Rows that are `pinned` are always among them, each in the place of the centroid that it is nearest to.
    """
    from scipy.optimize import linear_sum_assignment

    if len(latents) <= number:
        return np.arange(len(latents))
    means = centroids(latents, number, seed)
    distances = np.linalg.norm(means[:, None] - latents[None].astype(np.float64), axis=2)
    fixed = np.asarray(pinned, dtype=np.intp)
    taken = linear_sum_assignment(distances[:, fixed])[0]
    distances = np.delete(distances, taken, axis=0)
    distances[:, fixed] = distances.max(initial=0) * (len(distances) + 1) + 1  # dearer than any other choice
    return np.sort(np.concatenate([fixed, linear_sum_assignment(distances)[1]]))


def select(
    latents: NDArray[np.float32], candidates: Mapping[int, Sequence[int]], number: int, seed: int = 0
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """`candidates`: rows of `latents` per class. Returns rows and classes of the supports, in order of class."""
    rows, classes = [], []
    for label in sorted(candidates):
        members = np.asarray(candidates[label], dtype=np.intp)
        chosen = members[select_class(latents[members], number, seed)]
        rows.append(chosen)
        classes.append(np.full(len(chosen), label, dtype=np.intp))
    return np.concatenate(rows), np.concatenate(classes)


def select_how(
    how: How, latents: NDArray[np.float32], candidates: Mapping[int, Sequence[int]], number: int, seed: int = 0
) -> Selection:
    """Supports for inference: `number` per class, or as many as it has."""
    if how == "nearest":
        rows, classes = select(latents, candidates, number, seed)
        return Selection(rows, latents[rows], classes)
    rng = np.random.default_rng(seed)
    picked, vectors, labels = [], [], []
    for label in sorted(candidates):
        members = np.asarray(candidates[label], dtype=np.intp)
        if how == "random":
            members = np.sort(rng.permutation(members)[:number])
        elif how == "centroid":
            vectors.append(centroids(latents[members], min(number, len(members)), seed).astype(np.float32))
            members = np.full(len(vectors[-1]), -1, dtype=np.intp)
        if how != "centroid":
            vectors.append(latents[members])
        picked.append(members)
        labels.append(np.full(len(members), label, dtype=np.intp))
    return Selection(np.concatenate(picked), np.concatenate(vectors), np.concatenate(labels))
