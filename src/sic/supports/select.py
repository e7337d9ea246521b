"""Choosing the cases: k-means per class on the latents, then the nearest image of that class to each centroid."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans


def select_class(latents: NDArray[np.float32], number: int, seed: int, pinned: Sequence[int] = ()) -> NDArray[np.intp]:
    """Positions of `number` distinct rows of `latents` (n×d), or of all rows where there are no more.

    Every centroid gets the nearest row; where two centroids share one, the distinct rows of least total distance.
    Rows that are `pinned` are always among them, each in the place of the centroid that it is nearest to.
    """
    if len(latents) <= number:
        return np.arange(len(latents))
    # Identical latents make fewer distinct points than centroids: duplicates are as good a support as any.
    points = np.unique(latents, axis=0)
    centroids = KMeans(min(number, len(points)), n_init=4, random_state=seed).fit(latents).cluster_centers_
    if len(centroids) < number:
        centroids = np.concatenate([centroids, centroids[np.arange(number - len(centroids)) % len(centroids)]])
    distances = np.linalg.norm(centroids[:, None].astype(np.float64) - latents[None].astype(np.float64), axis=2)
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
