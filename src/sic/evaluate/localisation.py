"""Localisation: the share of the contributions on the object, in grids of images and in bounding boxes."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.data.dataset import Box, Sample
from sic.data.images import Preprocessing, image_size
from sic.data.loading import view_batches
from sic.errors import SicError
from sic.evaluate.outputs import Watch, device_of, nobody
from sic.methods import Classifier

CONFIDENT = 0.5
"""Probability of its class that an image needs to be in a grid."""
PER_CLASS = 10
"""The most images per class in the grids; the most confident ones are used."""


def cell_shares(maps: Tensor, side: int) -> Tensor:
    """The share of the positive contributions in each cell of a grid, row by row: …×H×W → …×side²; 0 without any."""
    rows, columns = (
        F.one_hot(torch.arange(length, device=maps.device) * side // length, side).to(maps)
        for length in maps.shape[-2:]
    )
    sums = torch.einsum("...hw,ha,wb->...ab", maps.clamp(min=0), rows, columns).flatten(-2)
    return sums / sums.sum(dim=-1, keepdim=True).clamp_min(1e-12)


def composite(cells: Tensor) -> Tensor:
    """n² images, n²×3×S×S, as one grid 3×nS×nS, row by row."""
    side = math.isqrt(len(cells))
    rows = cells.unflatten(0, (side, side))
    return rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)


def draw_grids(
    samples: Sequence[Sample], probabilities: Tensor, side: int, grids: int, seed: int = 0
) -> list[list[int]]:
    """Lists of n² samples (indices) of distinct classes, classified with confidence; empty if there are too few."""
    pools: dict[int, list[int]] = defaultdict(list)
    best = probabilities.argmax(1).tolist()
    for position in probabilities.amax(1).argsort(descending=True).tolist():
        label = best[position]
        right = samples[position].labels == (label,) and probabilities[position, label] >= CONFIDENT
        if right and len(pools[label]) < PER_CLASS:
            pools[label].append(position)
    classes = sorted(label for label, pool in pools.items() if pool)
    if len(classes) < side**2:
        return []
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(classes)[: side**2].tolist() for _ in range(grids)]
    return [[int(rng.choice(pools[label])) for label in row] for row in rows]


def grid_pointing_game(
    classifier: Classifier,
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    probabilities: Tensor,
    side: int,
    grids: int = 32,
    seed: int = 0,
    watch: Watch = nobody,
) -> dict[str, Any] | None:
    """The mean share of the positive contributions to a class that lie in the cell of that class in an n×n grid.

    The network sees the whole grid, n·S pixels wide (as in Böhle et al.), or reduced to S pixels if it has a fixed size
    (a transformer with fixed positions). None if fewer than n² classes have an image classified with confidence.
    """
    chosen = draw_grids(samples, probabilities, side, grids, seed)
    if not chosen:
        return None
    used = sorted({position for row in chosen for position in row})
    views = torch.cat(list(view_batches([samples[position].path for position in used], preprocessing)))
    place = {position: row for row, position in enumerate(used)}
    device = device_of(classifier)
    size = preprocessing.size if _only(classifier, views[:1].to(device), side) else side * preprocessing.size
    shares: list[Tensor] = []
    batch = max(1, (2 if device.type == "cpu" else 16) // side**2)
    for start in range(0, len(chosen), batch):
        rows = chosen[start : start + batch]
        images = torch.stack([composite(views[[place[position] for position in row]]) for row in rows]).to(device)
        if size != images.shape[-1]:
            images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
        targets = torch.tensor([[samples[position].labels[0] for position in row] for row in rows], device=device)
        own = cell_shares(classifier.explain(images, targets).maps, side).diagonal(dim1=1, dim2=2)
        shares.append(own.cpu())
        watch(f"grids {side}×{side}", min(start + batch, len(chosen)), len(chosen))
    found = torch.cat(shares)
    return {
        "share": found.mean().item(),
        "spread": found.mean(dim=1).std(correction=0).item(),
        "chance": 1 / side**2,
        "grids": len(chosen),
        "pixels": size,
    }


def _only(classifier: Classifier, view: Tensor, side: int) -> bool:
    """Whether the network accepts one image size only."""
    try:
        with torch.no_grad():
            classifier(view.repeat(1, 1, side, side))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AssertionError, SicError):
        return True
    return False


def box_mask(boxes: Sequence[Box], size: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
    """S×S bool: the pixels of the model's view whose centre is in one of the boxes of an image of (width, height)."""
    mask = torch.zeros(preprocessing.size, preprocessing.size, dtype=torch.bool)
    centres = torch.arange(preprocessing.size) + 0.5
    for box in boxes:
        seen = preprocessing.box(box, size)
        if seen is not None:
            rows = (seen.top <= centres) & (centres < seen.bottom)
            columns = (seen.left <= centres) & (centres < seen.right)
            mask |= rows[:, None] & columns
    return mask


def pointing(maps: Tensor, masks: Tensor) -> Tensor:
    """Energy, hit and overlap of maps and non-empty masks, N×H×W → N×3.

    Energy: the share of the positive contributions inside. Hit: 1 if the maximum is inside. Overlap: the share inside
    of the strongest pixels, as many as the mask has.
    """
    flat, inside = maps.flatten(1), masks.flatten(1)
    positive = flat.clamp(min=0)
    energy = (positive * inside).sum(1) / positive.sum(1).clamp_min(1e-12)
    order = flat.argsort(dim=1, descending=True)
    ranked = inside.gather(1, order).to(maps)
    count = inside.sum(1)
    top = torch.arange(flat.shape[1], device=maps.device) < count[:, None]
    return torch.stack([energy, ranked[:, 0], (ranked * top).sum(1) / count], dim=1)


def box_pointing_game(
    classifier: Classifier,
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    found: Tensor,
    watch: Watch = nobody,
) -> dict[str, Any] | None:
    """`pointing` for every class with boxes in an image: for `all` of them, and for those that the model `found` (n×C).

    `area`: the share of the image inside the boxes, which is the result of random maps. Difficult boxes are part of the
    mask of their class. None without boxes.
    """
    rows: list[tuple[int, int, Tensor]] = []
    for position, sample in enumerate(samples):
        for label in sorted({box.label for box in sample.boxes} & set(sample.labels)):
            boxes = [box for box in sample.boxes if box.label == label]
            mask = box_mask(boxes, image_size(sample.path), preprocessing)
            if mask.any():
                rows.append((position, label, mask))
    if not rows:
        return None
    results: list[Tensor] = []
    views = view_batches([samples[position].path for position, _, _ in rows], preprocessing, 16, device_of(classifier))
    for images, batch in zip(views, _batched(rows, 16), strict=True):
        targets = torch.tensor([label for _, label, _ in batch], device=images.device)
        masks = torch.stack([mask for _, _, mask in batch]).to(images.device)
        results.append(pointing(classifier.explain(images, targets).maps, masks).cpu())
        watch("boxes", sum(map(len, results)), len(rows))
    figures = torch.cat(results)
    area = torch.tensor([mask.float().mean().item() for _, _, mask in rows])
    seen = torch.tensor([bool(found[position, label]) for position, label, _ in rows])
    return {"all": _summary(figures, area), "found": _summary(figures[seen], area[seen])}


def _batched(rows: list[tuple[int, int, Tensor]], size: int) -> Iterator[list[tuple[int, int, Tensor]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _summary(figures: Tensor, area: Tensor) -> dict[str, Any]:
    means = figures.mean(dim=0).tolist() if len(figures) else [None] * 3
    names = dict(zip(("energy", "hit", "overlap"), means, strict=True))
    return {"maps": len(figures), **names, "area": area.mean().item() if len(area) else None}
