"""Faithfulness of maps: remove pixels, add noise to the image, randomise the weights, blank the frame."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from torch import Tensor, nn

from sic.data.dataset import Watch, nobody
from sic.methods import Classifier, device_of

STEPS = 20
CELLS = 32
"""The number of cells along a side: pixels are removed in cells, because removing single pixels adds noise."""
SHAKE = 0.01
"""Standard deviation of the noise that should not change an explanation; one grey level is 0.004."""
SURVIVES = 0.5
"""Mean similarity above which a map does not depend on the weights of its network."""
FRAME = 0.1
"""Width of the frame, as a share of the picture's side."""
BATCH = 8


def _batches(images: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(images.split(BATCH), targets.split(BATCH), strict=True)


def cell_order(maps: Tensor, cell: int) -> Tensor:
    """The rank of each pixel's cell (cell×cell pixels) as a share of all, 0 for the highest sum: N×H×W → N×H×W."""
    sums = F.avg_pool2d(maps[:, None].double(), cell, ceil_mode=True, divisor_override=1)[:, 0]
    ranks = sums.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).view_as(sums) / sums[0].numel()
    wide = ranks.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    return wide[:, : maps.shape[1], : maps.shape[2]]


def blurred(images: Tensor) -> Tensor:
    """The images without details: box-filtered twice over a quarter of the width."""
    reach = max(1, images.shape[-1] // 8)
    for _ in range(2):
        padded = F.pad(images, (reach,) * 4, mode="reflect")
        images = F.avg_pool2d(padded, 2 * reach + 1, 1)
    return images


@torch.no_grad()
def removal_curves(classifier: Classifier, start: Tensor, end: Tensor, order: Tensor, targets: Tensor) -> Tensor:
    """2×N×(STEPS + 1) while `start` turns into `end`, cells with the lowest `order` first: whether the target is
    still predicted (0 or 1), and its probability."""
    found = []
    for share in torch.linspace(0, 1, STEPS + 1).tolist():
        logits = classifier(torch.where((order < share)[:, None], end, start))
        probability = classifier.probabilities(logits.double()).gather(1, targets[:, None])[:, 0]
        found.append(torch.stack([(logits.argmax(1) == targets).double(), probability]))
    return torch.stack(found, 2).cpu()


def deletion_insertion(
    classifier: Classifier, images: Tensor, targets: Tensor, seed: int = 0, watch: Watch = nobody
) -> dict[str, Any]:
    """How the predictions `targets` (N) change when the strongest pixels are removed first, or restored first.

    Deletion replaces pixels by the image's mean colour; insertion restores pixels of a blurred image. `curve`: the
    share of images with the same prediction; `probability_curve`: the mean probability of that class, which can stay
    high on an empty image if the classes do not compete. `area`: the mean of a curve (for deletion, lower is better);
    `random_…`: the same in random order; `beats_random`: the share of images for which the order of the explanation is
    better than the random one.
    """
    generator = torch.Generator().manual_seed(seed)
    device = device_of(classifier)
    cell = max(1, images.shape[-1] // CELLS)
    found: dict[str, list[Tensor]] = {"deletion": [], "insertion": []}
    for batch, wanted in _batches(images.to(device), targets.to(device)):
        maps = classifier.explain(batch, wanted).maps
        orders = cell_order(maps, cell), cell_order(torch.rand(maps.shape, generator=generator).to(device), cell)
        grey, soft = batch.mean((2, 3), keepdim=True).expand_as(batch), blurred(batch)
        for name, start, end in (("deletion", batch, grey), ("insertion", soft, batch)):
            curves = [removal_curves(classifier, start, end, order, wanted) for order in orders]
            found[name].append(torch.stack(curves))
        watch("deletion", sum(curves.shape[2] for curves in found["deletion"]), len(images))
    result: dict[str, Any] = {"images": len(images), "cell": cell}
    return result | {name: _curve_figures(torch.cat(curves, 2), name) for name, curves in found.items()}


def _curve_figures(curves: Tensor, name: str) -> dict[str, Any]:
    """Metrics of curves: 2 (explanation, random) × 2 (prediction, probability) × N × steps."""
    areas = torch.trapezoid(curves, dx=1 / STEPS, dim=3)
    gain = areas[0, 0] - areas[1, 0] if name == "insertion" else areas[1, 0] - areas[0, 0]
    figures: dict[str, Any] = {"beats_random": (gain > 0).double().mean().item()}
    for order, before in enumerate(("", "random_")):
        for kind, middle in enumerate(("", "probability_")):
            figures[f"{before}{middle}area"] = areas[order, kind].mean().item()
            figures[f"{before}{middle}curve"] = curves[order, kind].mean(0).tolist()
    return figures


def rank_correlations(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's ρ of pairs of maps N×H×W: N; 0 if a map is constant."""
    ranks = [torch.from_numpy(rankdata(maps.flatten(1).cpu().numpy(), axis=1)) for maps in (one, other)]
    centred = [r - r.mean(1, keepdim=True) for r in ranks]
    norms = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    return (centred[0] * centred[1]).sum(1) / norms.clamp_min(1e-12)


def structural_similarities(one: Tensor, other: Tensor) -> Tensor:
    """SSIM of pairs of maps N×H×W, each divided by its largest value: N; 0 if a map is zero."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    tops = [maps.abs().amax((1, 2), keepdim=True) for maps in (one, other)]
    first, second = ((maps / top.clamp_min(1e-30))[:, None] for maps, top in zip((one, other), tops, strict=True))
    found = structural_similarity_index_measure(first, second, data_range=2.0, reduction="none")
    assert isinstance(found, Tensor)
    return torch.where((tops[0] * tops[1])[:, 0, 0] > 0, found.view(-1), 0).cpu()


def stability(
    classifier: Classifier, images: Tensor, targets: Tensor, repeats: int = 3, seed: int = 0, watch: Watch = nobody
) -> dict[str, Any]:
    """How much maps change when invisible noise (`SHAKE`) is added to the images.

    `rank_correlation` and `worst` of it; `relative_change`, ‖φ' - φ‖ / ‖φ‖; `logit_change`, |s' - s|.
    """
    generator = torch.Generator().manual_seed(seed)
    device = device_of(classifier)
    correlations, changes, logits = [], [], []
    for batch, wanted in _batches(images.to(device), targets.to(device)):
        before = classifier.explain(batch, wanted)
        for _ in range(repeats):
            shaken = batch + SHAKE * torch.randn(batch.shape, generator=generator).to(batch)
            after = classifier.explain(shaken.clamp(0, 1), wanted)
            correlations.append(rank_correlations(before.maps, after.maps))
            norms = before.maps.flatten(1).norm(dim=1).clamp_min(1e-12)
            changes.append(((after.maps - before.maps).flatten(1).norm(dim=1) / norms).cpu())
            logits.append((after.value - before.value).abs().cpu())
        watch("stability", min(sum(map(len, logits)) // repeats, len(images)), len(images))
    found = torch.cat(correlations)
    return {
        "images": len(images),
        "noise": SHAKE,
        "rank_correlation": found.mean().item(),
        "worst": found.min().item(),
        "relative_change": torch.cat(changes).mean().item(),
        "logit_change": torch.cat(logits).mean().item(),
    }


def randomised(network: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """A copy of the network in which a share of the parameters, starting at the output, is random with the same mean
    and standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(network)
    parameters = list(twin.parameters())[::-1]
    with torch.no_grad():
        for value in parameters[: math.ceil(share * len(parameters))]:
            spread = value.std(correction=0)
            fresh = torch.randn(value.shape, generator=generator).to(value)
            value.copy_(value.mean() + spread * fresh)
    return twin


def randomisation(
    classifier: Classifier, images: Tensor, targets: Tensor, seed: int = 0, watch: Watch = nobody
) -> dict[str, Any]:
    """The sanity check of Adebayo et al.: maps before and after randomising the network, starting at the output.

    A map that stays the same after randomisation explains the image and not the model: it fails the check.
    """
    assert isinstance(classifier, nn.Module)
    device = device_of(classifier)
    shares = (0.25, 0.5, 0.75, 1.0)
    twins: list[Any] = [randomised(classifier, share, seed) for share in shares]
    ranks, structures = np.zeros((len(shares), len(images))), np.zeros((len(shares), len(images)))
    done = 0
    for batch, wanted in _batches(images.to(device), targets.to(device)):
        before = classifier.explain(batch, wanted).maps
        rows = slice(done, done + len(batch))
        for number, twin in enumerate(twins):
            after = twin.explain(batch, wanted).maps
            ranks[number, rows] = rank_correlations(before, after)
            structures[number, rows] = structural_similarities(before, after)
        done += len(batch)
        watch("randomisation", done, len(images))
    stages = [
        {"randomised": share, "rank_correlation": float(r.mean()), "ssim": float(s.mean())}
        for share, r, s in zip(shares, ranks, structures, strict=True)
    ]
    last = stages[-1]
    survives = max(abs(last["rank_correlation"]), last["ssim"]) >= SURVIVES
    return {"images": len(images), "passed": not survives, "limit": SURVIVES, "stages": stages}


def frame_mask(height: int, width: int) -> Tensor:
    """H×W bool: the pixels of the frame."""
    rows, columns = math.ceil(FRAME * height), math.ceil(FRAME * width)
    mask = torch.ones(height, width, dtype=torch.bool)
    mask[rows : height - rows, columns : width - columns] = False
    return mask


def mass_shares(maps: Tensor, mask: Tensor) -> Tensor:
    """N: the share of the absolute contributions of maps N×H×W inside a mask H×W."""
    mass = maps.abs()
    return (mass * mask).sum((1, 2)) / mass.sum((1, 2)).clamp_min(1e-12)


@torch.no_grad()
def effects(classifier: Classifier, images: Tensor, targets: Tensor, mask: Tensor, fill: Tensor) -> Tensor:
    """N×2: the absolute change of the score if `fill` replaces the pixels inside the mask, and those outside it."""
    scores = classifier(images)
    changes = [scores - classifier(torch.where(where, fill, images)) for where in (mask, ~mask)]
    return torch.stack([change.gather(1, targets[:, None])[:, 0].abs() for change in changes], dim=1)


def frame(classifier: Classifier, images: Tensor, targets: Tensor, watch: Watch = nobody) -> dict[str, Any]:
    """Compare the share of the frame in maps of `targets` (N) with its effect on their scores, for images N×3×S×S.

    A map that gives the frame much more than its effect shows the padding of the network or the borders of the images.

    Returns:
        `mass`, the mean share of the absolute contributions in the frame; `effect`, the change of the score without the
        frame as a share of the changes without the frame and without the rest, which get the mean colour of the
        picture; `area`, the share of the picture; `times`, mass / effect: about 1 for maps that give the frame what it
        deserves. `effect_of_another`: as `effect`, but with the pixels of the next image, which are no blank.
    """
    device = device_of(classifier)
    mask = frame_mask(*images.shape[-2:]).to(device)
    shares: list[Tensor] = []
    changes: list[Tensor] = []
    swapped: list[Tensor] = []
    others = images.roll(1, dims=0).split(BATCH)
    for (batch, wanted), other in zip(_batches(images.to(device), targets.to(device)), others, strict=True):
        shares.append(mass_shares(classifier.explain(batch, wanted).maps, mask).cpu())
        mean = batch.mean(dim=(2, 3), keepdim=True)
        changes.append(effects(classifier, batch, wanted, mask, mean).double().cpu())
        swapped.append(effects(classifier, batch, wanted, mask, other.to(device)).double().cpu())
        watch("frame", sum(map(len, shares)), len(images))
    mass = torch.cat(shares).mean().item()
    (inside, outside), of_another = (torch.cat(each).mean(dim=0).tolist() for each in (changes, swapped))
    effect = inside / max(inside + outside, 1e-12)
    return {
        "images": len(images),
        "width": FRAME,
        "area": mask.double().mean().item(),
        "mass": mass,
        "effect": effect,
        "times": mass / max(effect, 1e-12),
        "score_change": inside,
        "score_change_of_the_rest": outside,
        "effect_of_another": of_another[0] / max(sum(of_another), 1e-12),
    }
