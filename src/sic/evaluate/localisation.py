"""Localisation: the share of the contributions on the object, in grids of images and in bounding boxes.

The published protocol (Böhle et al. 2022): n×n grids of confidently classified images of different classes, each image
in one grid only, 500 grids if there are enough images; maps raw, and smoothed by a box of 15×15 pixels.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.data.dataset import Box, Sample, Watch, nobody
from sic.data.images import Preprocessing, image_size
from sic.data.loading import view_batches
from sic.errors import SicError
from sic.methods import Classifier, device_of

CONFIDENT = 0.5
"""Probability of its class that an image needs to be in a grid."""
GRIDS = 500
SMOOTHING = 15
"""Side of the box filter, in pixels of the map."""
KINDS = ("raw", "smoothed")
AT_ONCE = {"cuda": 1 << 20}
"""Pixels of the grids that are explained together, by the kind of device; others take one grid at a time. A ResNet50
needs some 3 GB for a million of them."""

Explain = Callable[[Tensor, Tensor], Tensor]
"""Images N×3×H×W and targets N×K → maps N×K×H×W."""


def smoothed(maps: Tensor) -> Tensor:
    """Maps …×H×W averaged over 15×15 pixels; outside of the image there is nothing."""
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    return F.avg_pool2d(flat, SMOOTHING, 1, SMOOTHING // 2).view_as(maps)


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


def confident(probabilities: Tensor, labels: Tensor) -> Tensor:
    """N: whether an image is classified correctly and with a probability of at least 50 %; a label of -1 is never."""
    best = probabilities.max(dim=1)
    return (best.indices == labels) & (best.values >= CONFIDENT)


def draw_grids(labels: Tensor, usable: Tensor, side: int, number: int = GRIDS, seed: int = 0) -> list[list[int]]:
    """At most `number` rows of n² positions of distinct classes, each position in one row only.

    `labels`: N; `usable`: N, whether an image may be in a grid. Empty if there are too few classes.
    """
    rng = np.random.default_rng(seed)
    pools: dict[int, list[int]] = {int(label): [] for label in labels.unique()}
    for position in rng.permutation(usable.nonzero().flatten().numpy()).tolist():
        pools[int(labels[position])].append(position)
    rows: list[list[int]] = []
    while len(rows) < number:
        # Classes with the most images left first, so that as many grids as possible can be filled.
        left = sorted((label for label in pools if pools[label]), key=lambda c: (-len(pools[c]), rng.random()))
        if len(left) < side**2:
            break
        rows.append([pools[label].pop() for label in left[: side**2]])
    return rows


def point_in_grids(
    explain: Explain,
    grids: Iterable[Tensor],
    targets: Sequence[Sequence[int]],
    size: int | None = None,
    watch: Watch = nobody,
) -> dict[str, dict[str, float | None]]:
    """The mean share of the positive contributions to a class in the cell of that class, for each of the `KINDS`.

    Args:
        explain: Returns the maps.
        grids: The n² images of each grid, n²×3×S×S, on the device of the network.
        targets: The classes of these images.
        size: Side of the grid in pixels, if it must be resized.
        watch: Called with the number of finished grids.

    Returns:
        `share` and its `standard_error` over the grids, by kind.
    """
    side = math.isqrt(len(targets[0]))
    shares: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    finished = itertools.count(1)
    for some in _together(zip(grids, targets, strict=True)):
        views = torch.stack([composite(cells) for cells, _ in some])
        if size is not None and size != views.shape[-1]:
            views = F.interpolate(views, (size, size), mode="bilinear", antialias=True)
        maps = explain(views, torch.tensor([classes for _, classes in some], device=views.device))
        for kind, each in zip(KINDS, (maps, smoothed(maps)), strict=True):
            shares[kind].append(cell_shares(each, side).diagonal(dim1=-2, dim2=-1).mean(dim=-1).cpu())
        for _ in some:
            watch(f"grids {side}×{side}", next(finished), len(targets))
    return {kind: mean_and_error(torch.cat(found)) for kind, found in shares.items()}


def _together(grids: Iterable[tuple[Tensor, Sequence[int]]]) -> Iterator[list[tuple[Tensor, Sequence[int]]]]:
    """Grids in groups that their device explains together."""
    some = []
    for grid in grids:
        some.append(grid)
        cells = grid[0]
        if (len(some) + 1) * cells.shape[0] * cells.shape[-1] ** 2 > AT_ONCE.get(cells.device.type, 0):
            yield some
            some = []
    if some:
        yield some


def mean_and_error(values: Tensor) -> dict[str, float | None]:
    """Mean and standard error of n values; None for the error of a single one."""
    error = (values.std() / len(values) ** 0.5).item() if len(values) > 1 else None
    return {"share": values.mean().item(), "standard_error": error}


def grid_pointing_game(
    classifier: Classifier,
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    probabilities: Tensor,
    side: int,
    grids: int = GRIDS,
    seed: int = 0,
    watch: Watch = nobody,
    specific: bool = False,
) -> dict[str, Any] | None:
    """`point_in_grids` on images that the classifier answers with confidence (`probabilities`, N×C): `share` and
    `standard_error` of raw maps, and the same for those that are `smoothed`.

    The network sees the whole grid, n·S pixels wide (as in Böhle et al.), or reduced to S pixels if it has a fixed size
    (a transformer with fixed positions). None if fewer than n² classes have an image classified with confidence.

    `specific`: of the maps of `Classifier.explain_specific`.
    """
    labels = torch.tensor([sample.labels[0] if len(sample.labels) == 1 else -1 for sample in samples])
    rows = draw_grids(labels, confident(probabilities.cpu(), labels), side, grids, seed)
    if not rows:
        return None
    device = device_of(classifier)
    paths = [samples[position].path for row in rows for position in row]
    first = next(iter(view_batches(paths[:1], preprocessing, 1, device)))
    size = preprocessing.size if one_size_only(classifier, first, side) else side * preprocessing.size
    explain = classifier.explain_specific if specific else classifier.explain
    found = point_in_grids(
        lambda images, targets: explain(images, targets).maps,
        view_batches(paths, preprocessing, side**2, device),
        [labels[row].tolist() for row in rows],
        size,
        watch,
    )
    return {"grids": len(rows), "chance": 1 / side**2, "pixels": size, **found["raw"], "smoothed": found["smoothed"]}


def one_size_only(classifier: Classifier, view: Tensor, side: int) -> bool:
    """Whether the network takes a view, 1×3×S×S, but no grid of n×n of them."""
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
    """`pointing` for every class with boxes in an image, by raw and smoothed maps.

    For `all` classes with boxes, and for those that the model `found` (n×C): the number of `maps`, the `area` (the
    share of the image inside the boxes, which is the result of random maps), the means of raw maps and those of
    `smoothed` ones. Difficult boxes are part of the mask of their class. None without boxes.
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
    results: list[Tensor] = []  # of each batch: n×2×3, raw and smoothed
    views = view_batches([samples[position].path for position, _, _ in rows], preprocessing, 16, device_of(classifier))
    for images, batch in zip(views, _batched(rows, 16), strict=True):
        targets = torch.tensor([label for _, label, _ in batch], device=images.device)
        masks = torch.stack([mask for _, _, mask in batch]).to(images.device)
        maps = classifier.explain(images, targets).maps
        results.append(torch.stack([pointing(each, masks).cpu() for each in (maps, smoothed(maps))], dim=1))
        watch("boxes", sum(map(len, results)), len(rows))
    figures = torch.cat(results)
    area = torch.tensor([mask.float().mean().item() for _, _, mask in rows])
    seen = torch.tensor([bool(found[position, label]) for position, label, _ in rows])
    return {"all": _summary(figures, area), "found": _summary(figures[seen], area[seen])}


def _batched(rows: list[tuple[int, int, Tensor]], size: int) -> Iterator[list[tuple[int, int, Tensor]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _summary(figures: Tensor, area: Tensor) -> dict[str, Any]:
    """Means of n×2×3 figures of `pointing`, of raw and smoothed maps; None without maps."""
    means = figures.mean(dim=0).tolist() if len(figures) else [[None] * 3] * 2
    raw, smooth = (dict(zip(("energy", "hit", "overlap"), each, strict=True)) for each in means)
    return {"maps": len(figures), **raw, "area": area.mean().item() if len(area) else None, "smoothed": smooth}
