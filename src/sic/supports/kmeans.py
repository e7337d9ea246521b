"""k-means of many classes at once, on the device where the classifier is: what scikit-learn does class by class."""

import math

import torch
from torch import Tensor

RESTARTS = 4
"""Of which the best counts."""
ITERATIONS, TOLERANCE = 300, 1e-4
"""As in scikit-learn: when to stop, the latter as a share of the points' variance."""


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
    """Lloyd's iterations of C×R×k×d; what has converged is left alone."""
    number = centres.shape[2]
    # Of the points that are there: rows that only fill up are zero, as is the mean.
    variance = points.square().sum(dim=1).mean(dim=1) / mask.sum(dim=1)
    done = torch.zeros(centres.shape[:2], dtype=torch.bool, device=points.device)
    for _ in range(ITERATIONS):
        distances, owners = _distances(points, centres).min(dim=2)
        sums, counts = _sums(points, mask, owners, number)
        moved = sums / counts.clamp_min(1)
        if (empty := counts == 0).any():  # a centroid that nobody is near to gets one of the farthest rows
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
    """Of the rows of each owner (C×R×n): C×R×k×d, and how many there are, C×R×k×1."""
    whose = torch.arange(number, device=points.device)[:, None]
    members = ((owners[:, :, None] == whose) & mask[:, None, None]).to(points.dtype)
    sums = members.flatten(1, 2) @ points
    return sums.unflatten(1, members.shape[1:3]), members.sum(dim=3)[..., None]


def _rows(points: Tensor, rows: Tensor) -> Tensor:
    """C×n×d at C×…: C×…×d."""
    found = points.take_along_dim(rows.flatten(1)[..., None], dim=1)
    return found.unflatten(1, rows.shape[1:])
