"""Choosing the supports: k-means per class on the latents, then the nearest image of that class to each centroid.

With scikit-learn, class by class; where a GPU is given, many classes at once on it, from the same starting points.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.settings import How
from sic.supports.kmeans import kmeans, starting_rows

Candidates = Mapping[int, Sequence[int]]
"""Rows of the latents per class."""
TIE = 1e-5
"""Of the largest distance: what is nearer by less than that is as near. Both images of a cluster of two are."""
IN_MEMORY = 4 << 30
"""Bytes of the latents of a training set up to which they stay in memory; more are in a file that is mapped into it."""
AT_ONCE = 256 << 20
"""Bytes of latents that are on the device at a time."""


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
    number_found = min(number, len(np.unique(latents, axis=0)))
    starts = starting_rows(torch.from_numpy(latents), number_found, seed).numpy()
    fits = [KMeans(number_found, init=latents[rows], n_init=1).fit(latents) for rows in starts]
    found = min(fits, key=lambda fit: fit.inertia_).cluster_centers_
    return found[np.arange(number) % number_found].astype(np.float64)


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
    distances += TIE * distances.max() * np.linspace(0, 1, len(latents))  # of images that are as near, the first
    fixed = np.asarray(pinned, dtype=np.intp)
    taken = linear_sum_assignment(distances[:, fixed])[0]
    distances = np.delete(distances, taken, axis=0)
    distances[:, fixed] = distances.max(initial=0) * (len(distances) + 1) + 1  # dearer than any other choice
    return np.sort(np.concatenate([fixed, linear_sum_assignment(distances)[1]]))


def select(
    latents: NDArray[np.float32], candidates: Candidates, number: int, seed: int = 0, device: torch.device | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and classes of the supports, in order of class. `device`: where to compute, if not with scikit-learn."""
    chosen = {} if device is None else _select_on(device, latents, candidates, number, seed)
    rows, classes = [], []
    for label in sorted(candidates):
        members = np.asarray(candidates[label], dtype=np.intp)
        own = chosen[label] if label in chosen else select_class(latents[members], number, seed)
        rows.append(members[own])
        classes.append(np.full(len(own), label, dtype=np.intp))
    return np.concatenate(rows), np.concatenate(classes)


def _select_on(
    device: torch.device, latents: NDArray[np.float32], candidates: Candidates, number: int, seed: int
) -> dict[int, NDArray[np.intp]]:
    """As `select_class`, of every class that has more images than supports."""
    from scipy.optimize import linear_sum_assignment

    result = {}
    for labels, points, sizes in _batches(device, latents, candidates, number):
        means = kmeans(points, sizes, number, seed)
        distances = torch.cdist(means, points.double(), compute_mode="donot_use_mm_for_euclid_dist")
        rows = torch.arange(points.shape[1], device=device)
        outside = rows >= sizes[:, None, None]
        largest = distances.masked_fill(outside, 0).amax(dim=(1, 2), keepdim=True)
        distances += TIE * largest * rows / (sizes[:, None, None] - 1)
        distances.masked_fill_(outside, torch.inf)
        # The others take at most number - 1 of the rows that are nearest to a centroid.
        nearest = distances.topk(number, dim=2, largest=False)
        for label, near, costs in zip(labels, nearest.indices.cpu().numpy(), distances.cpu().numpy(), strict=True):
            columns = np.unique(near)
            result[label] = np.sort(columns[linear_sum_assignment(costs[:, columns])[1]])
    return result


def _centroids_on(
    device: torch.device, latents: NDArray[np.float32], candidates: Candidates, number: int, seed: int
) -> dict[int, NDArray[np.float64]]:
    """As `centroids`, of every class that has more images than supports."""
    return {
        label: means
        for labels, points, sizes in _batches(device, latents, candidates, number)
        for label, means in zip(labels, kmeans(points, sizes, number, seed).cpu().numpy(), strict=True)
    }


def _batches(
    device: torch.device, latents: NDArray[np.float32], candidates: Candidates, number: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Classes that have more than `number` rows, those of similar size together: labels, points C×n×d and sizes C."""
    waiting = sorted(
        (label for label in candidates if len(candidates[label]) > number), key=lambda c: len(candidates[c])
    )
    while waiting:
        longest = len(candidates[waiting[-1]])
        count = max(1, AT_ONCE // (longest * latents.shape[1] * latents.itemsize))
        waiting, labels = waiting[:-count], waiting[-count:]
        sizes = [len(candidates[label]) for label in labels]
        points = np.zeros((len(labels), longest, latents.shape[1]), latents.dtype)
        for place, label in enumerate(labels):
            points[place, : sizes[place]] = latents[np.asarray(candidates[label], dtype=np.intp)]
        yield labels, torch.from_numpy(points).to(device), torch.tensor(sizes, device=device)


def select_how(
    how: How,
    latents: NDArray[np.float32],
    candidates: Candidates,
    number: int,
    seed: int = 0,
    device: torch.device | None = None,
) -> Selection:
    """Supports for inference: `number` per class, or as many as it has; `device` as in `select`."""
    if how == "nearest":
        rows, classes = select(latents, candidates, number, seed, device)
        return Selection(rows, latents[rows], classes)
    rng = np.random.default_rng(seed)
    known: dict[int, NDArray[np.float64]] = {}
    if how == "centroid" and device is not None:
        known = _centroids_on(device, latents, candidates, number, seed)
    picked, vectors, labels = [], [], []
    for label in sorted(candidates):
        members = np.asarray(candidates[label], dtype=np.intp)
        if how == "random":
            members = np.sort(rng.permutation(members)[:number])
        elif how == "centroid":
            means = known.get(label)
            if means is None:
                means = centroids(latents[members], min(number, len(members)), seed)
            vectors.append(means.astype(np.float32))
            members = np.full(len(vectors[-1]), -1, dtype=np.intp)
        if how != "centroid":
            vectors.append(latents[members])
        picked.append(members)
        labels.append(np.full(len(members), label, dtype=np.intp))
    return Selection(np.concatenate(picked), np.concatenate(vectors), np.concatenate(labels))


def room_for(rows: int, columns: int) -> NDArray[np.float32]:
    """Uninitialised, rows×columns; a file behind it has no name and goes when the array does."""
    if rows * columns * np.dtype(np.float32).itemsize <= IN_MEMORY:
        return np.empty((rows, columns), np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=(rows, columns))
