"""Choosing the supports: k-means per class on the latents, then the nearest image of that class to each centroid.

On a CPU scikit-learn does the k-means, class by class. On a GPU `kmeans` does it for many classes at once, from the
same starting points.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.settings import How

RESTARTS = 4
"""Runs of k-means; the best one is used."""
ITERATIONS, TOLERANCE = 300, 1e-4
"""Stopping rules as in scikit-learn; the tolerance is a share of the points' variance."""


@torch.no_grad()
def kmeans(points: Tensor, sizes: Tensor, number: int, seed: int) -> Tensor:
    """`points` C×n×d, of which each class has as many rows as `sizes` (C) says → its centroids C×number×d, in double
    precision. Greedy k-means++ and Lloyd's iterations; a class's result does not depend on the others."""
    points, mask, middle = _centred(points, sizes)
    centres = _iterated(points, mask, _rows(points, _start(points, mask, sizes, number, seed)))
    distances, owners = _distances(points, centres).min(dim=2)
    best = (distances * mask[:, None]).sum(dim=2).argmin(dim=1)
    classes = torch.arange(len(points), device=points.device)
    centres, owners = centres[classes, best].double(), owners[classes, best]
    sums, counts = _sums(points.double(), mask, owners[:, None], number)
    return torch.where(counts[:, 0] > 0, sums[:, 0] / counts[:, 0].clamp_min(1), centres) + middle


@torch.no_grad()
def starting_rows(points: Tensor, number: int, seed: int) -> Tensor:
    """R×`number` rows of one class (n×d) that `kmeans` starts from, to start another implementation from the same."""
    points, sizes = points[None], torch.tensor([len(points)])
    centred, mask, _ = _centred(points, sizes)
    return _start(centred, mask, sizes, number, seed)[0]


def _centred(points: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every class's points without their mean, which of them are there (C×n), and the mean (C×1×d)."""
    mask = torch.arange(points.shape[1], device=points.device) < sizes[:, None]
    middle = (points.double() * mask[..., None]).sum(dim=1, keepdim=True) / sizes[:, None, None]
    return (points - middle).to(points.dtype) * mask[..., None], mask, middle  # small numbers lose fewer digits


def _start(points: Tensor, mask: Tensor, sizes: Tensor, number: int, seed: int) -> Tensor:
    """C×R×k rows that are far from each other, each the best of a few drawn by their squared distance."""
    trials = 2 + int(math.log(number))
    # The same draws for every class and on every device.
    draws = torch.rand(number, RESTARTS, trials, generator=torch.Generator().manual_seed(seed)).to(points.device)
    chosen = [(draws[0, :, 0] * sizes[:, None]).long()]
    closest = _distances(points, _rows(points, chosen[0])[:, :, None])[:, :, 0] * mask[:, None]
    for draw in draws[1:]:
        sums = closest.double().cumsum(dim=2)
        rows = torch.searchsorted(sums, draw * sums[..., -1:], right=True).minimum(sizes[:, None, None] - 1)
        closer = torch.minimum(closest[:, :, None], _distances(points, _rows(points, rows)) * mask[:, None, None])
        best = closer.sum(dim=3).argmin(dim=2, keepdim=True)
        closest = closer.take_along_dim(best[..., None], dim=2)[:, :, 0]
        chosen.append(rows.take_along_dim(best, dim=2)[:, :, 0])
    return torch.stack(chosen, dim=2)


def _iterated(points: Tensor, mask: Tensor, centres: Tensor) -> Tensor:
    """Lloyd's iterations of C×R×k×d centroids; those that have converged do not change any more."""
    number = centres.shape[2]
    # Of the points that are there: rows that only fill up are zero, as is the mean.
    variance = points.square().sum(dim=1).mean(dim=1) / mask.sum(dim=1)
    done = torch.zeros(centres.shape[:2], dtype=torch.bool, device=points.device)
    for _ in range(ITERATIONS):
        distances, owners = _distances(points, centres).min(dim=2)
        sums, counts = _sums(points, mask, owners, number)
        moved = sums / counts.clamp_min(1)
        if (empty := counts == 0).any():  # a centroid without rows moves to one of the farthest rows
            farthest = (distances * mask[:, None]).topk(number, dim=2).indices
            moved = torch.where(empty, _rows(points, farthest), moved)
        shift = (moved - centres).square().sum(dim=(2, 3))
        centres = torch.where(done[..., None, None], centres, moved)
        done |= shift <= TOLERANCE * variance[:, None]
        if done.all():
            break
    return centres


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared, of C×n×d from C×R×k×d: C×R×k×n."""
    flat = centres.flatten(1, 2)
    lengths = points.square().sum(dim=2)[:, None] + flat.square().sum(dim=2)[:, :, None]
    return torch.baddbmm(lengths, flat, points.transpose(1, 2), alpha=-2).relu().unflatten(1, centres.shape[1:3])


def _sums(points: Tensor, mask: Tensor, owners: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Sums over the rows of each owner (C×R×n), C×R×k×d, and their numbers, C×R×k×1."""
    whose = torch.arange(number, device=points.device)[:, None]
    members = ((owners[:, :, None] == whose) & mask[:, None, None]).to(points.dtype)
    sums = members.flatten(1, 2) @ points
    return sums.unflatten(1, members.shape[1:3]), members.sum(dim=3)[..., None]


def _rows(points: Tensor, rows: Tensor) -> Tensor:
    """C×n×d at C×…: C×…×d."""
    found = points.take_along_dim(rows.flatten(1)[..., None], dim=1)
    return found.unflatten(1, rows.shape[1:])


Candidates = Mapping[int, Sequence[int]]
"""Rows of the latents per class."""
TIE = 1e-5
"""Distances that differ by less than this share of the largest one are ties, as in a cluster of two images."""
TYPICAL = 0.5
"""How much an image must resemble its class to be a varied support, relative to the median image of the class."""
IN_MEMORY = 4 << 30
"""The most bytes of latents in memory; larger arrays are in a memory-mapped file."""
AT_ONCE = 256 << 20
"""The most bytes of latents on the device."""


@dataclass(frozen=True)
class Selection:
    """Supports in order of class."""

    rows: NDArray[np.intp]
    """Positions among the training images; -1 for vectors that are no image."""
    vectors: NDArray[np.float32]
    classes: NDArray[np.intp]


def centroids(latents: NDArray[np.float32], number: int, seed: int) -> NDArray[np.float64]:
    """`number`×d by k-means; some repeat if there are fewer distinct rows."""
    from sklearn.cluster import KMeans  # takes seconds to load, and predicting does not need it

    # Identical latents can give fewer distinct points than centroids; duplicates are then supports, too.
    number_found = min(number, len(np.unique(latents, axis=0)))
    starts = starting_rows(torch.from_numpy(latents), number_found, seed).numpy()
    fits = [KMeans(number_found, init=latents[rows], n_init=1).fit(latents) for rows in starts]
    found = min(fits, key=lambda fit: fit.inertia_).cluster_centers_
    return found[np.arange(number) % number_found].astype(np.float64)


def directions(latents: NDArray[np.float32]) -> NDArray[np.float32]:
    """n×d unit vectors; a latent of zero stays zero."""
    return latents / np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)


def typical(units: NDArray[np.float32], number: int) -> NDArray[np.intp]:
    """Positions of the images of a class, unit vectors n×d, that resemble the others at least `TYPICAL` as much as the
    median image does; at least `number`. k-means gives an image that resembles no other a cluster of its own."""
    if len(units) <= number:
        return np.arange(len(units))
    likeness = (len(units) * (units @ units.mean(axis=0)) - 1) / (len(units) - 1)  # mean cosine with the others
    return np.flatnonzero(likeness >= min(TYPICAL * np.median(likeness), np.sort(likeness)[-number]))


def select_varied(latents: NDArray[np.float32], number: int, seed: int, pinned: Sequence[int] = ()) -> NDArray[np.intp]:
    """`select_class` by the directions of the latents of typical images."""
    units = directions(latents)
    rows = np.union1d(typical(units, number), np.asarray(pinned, dtype=np.intp))
    return rows[select_class(units[rows], number, seed, np.searchsorted(rows, pinned).tolist())]


def select_class(latents: NDArray[np.float32], number: int, seed: int, pinned: Sequence[int] = ()) -> NDArray[np.intp]:
    """Positions of `number` distinct rows of `latents` (n×d), or of all rows if there are fewer.

    Every centroid gets its nearest row; if two centroids share one, the distinct rows of least total distance. The rows
    in `pinned` are always among them and replace the nearest centroids.
    """
    from scipy.optimize import linear_sum_assignment

    if len(latents) <= number:
        return np.arange(len(latents))
    means = centroids(latents, number, seed)
    distances = np.linalg.norm(means[:, None] - latents[None].astype(np.float64), axis=2)
    distances += TIE * distances.max() * np.linspace(0, 1, len(latents))  # the first of equally near images
    fixed = np.asarray(pinned, dtype=np.intp)
    taken = linear_sum_assignment(distances[:, fixed])[0]
    distances = np.delete(distances, taken, axis=0)
    distances[:, fixed] = distances.max(initial=0) * (len(distances) + 1) + 1  # more expensive than any other choice
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
    """`select_class` for every class that has more images than supports."""
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
    """`centroids` for every class that has more images than supports."""
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
    if how in ("nearest", "varied"):
        points = latents
        if how == "varied":
            points = directions(latents)
            candidates = {
                label: np.asarray(rows, np.intp)[typical(points[list(rows)], number)].tolist()
                for label, rows in candidates.items()
            }
        rows, classes = select(points, candidates, number, seed, device)
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
    """An uninitialised array, rows×columns; a large one is in a temporary file, which is deleted with the array."""
    if rows * columns * np.dtype(np.float32).itemsize <= IN_MEMORY:
        return np.empty((rows, columns), np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=(rows, columns))
