"""Maps against the model they explain: take away what they name, shake the image, randomise the weights."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from torch import Tensor, nn

from sic.evaluate.outputs import Watch, device_of, nobody, probabilities
from sic.methods import Classifier

STEPS = 20
CELLS = 32
"""Cells along a side that pixels are taken away in: single pixels here and there are noise, which says little."""
SHAKE = 0.01
"""Standard deviation of the noise that should not change an explanation; a grey level is 0.004."""
SURVIVES = 0.5
"""Mean similarity from which a map has survived that its network was randomised."""


def _batches(images: Tensor, targets: Tensor, size: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(images.split(size), targets.split(size), strict=True)


def cell_order(maps: Tensor, cell: int) -> Tensor:
    """N×H×W → N×H×W: the rank of each pixel's cell (cell×cell pixels), 0 for the highest sum, as a share of all."""
    sums = F.avg_pool2d(maps[:, None].double(), cell, ceil_mode=True, divisor_override=1)[:, 0]
    ranks = sums.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).view_as(sums) / sums[0].numel()
    wide = ranks.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    return wide[:, : maps.shape[1], : maps.shape[2]]


def blurred(images: Tensor) -> Tensor:
    """Without details: averaged over a quarter of the width, twice."""
    reach = max(1, images.shape[-1] // 8)
    for _ in range(2):
        padded = F.pad(images, (reach,) * 4, mode="reflect")
        images = F.avg_pool2d(padded, 2 * reach + 1, 1)
    return images


@torch.no_grad()
def removal_curve(classifier: Classifier, start: Tensor, end: Tensor, order: Tensor, targets: Tensor) -> Tensor:
    """N×(STEPS + 1): the target's probability while `start` turns into `end`, cells of the lowest `order` first."""
    found = []
    for share in torch.linspace(0, 1, STEPS + 1).tolist():
        views = torch.where((order < share)[:, None], end, start)
        found.append(probabilities(classifier, classifier(views)).gather(1, targets[:, None])[:, 0])
    return torch.stack(found, 1).cpu()


def deletion_insertion(
    classifier: Classifier, images: Tensor, targets: Tensor, seed: int = 0, watch: Watch = nobody
) -> dict[str, Any]:
    """What happens to the probability of `targets` (N) when the most contributing pixels go, or come, first?

    deletion: pixels become the image's mean colour; insertion: a blurred image becomes sharp again. `area` is the mean
    of a curve (deletion: the lower the better), `random_area` that in random order; `beats_random` is the share of
    images in which the explanation's order is the better one.
    """
    generator = torch.Generator().manual_seed(seed)
    device = device_of(classifier)
    cell = max(1, images.shape[-1] // CELLS)
    names = ("deletion", "deletion_random", "insertion", "insertion_random")
    curves: dict[str, list[Tensor]] = {name: [] for name in names}
    for batch, wanted in _batches(images.to(device), targets.to(device)):
        maps = classifier.explain(batch, wanted).maps
        order = cell_order(maps, cell)
        chance = cell_order(torch.rand(maps.shape, generator=generator).to(device), cell)
        grey, soft = batch.mean((2, 3), keepdim=True).expand_as(batch), blurred(batch)
        for name, (start, end), by in zip(
            names, [(batch, grey)] * 2 + [(soft, batch)] * 2, [order, chance] * 2, strict=True
        ):
            curves[name].append(removal_curve(classifier, start, end, by, wanted))
        watch("deletion", sum(map(len, curves["deletion"])), len(images))
    whole = {name: torch.cat(parts) for name, parts in curves.items()}
    areas = {name: torch.trapezoid(curve, dx=1 / STEPS, dim=1) for name, curve in whole.items()}
    better = {
        "deletion": areas["deletion"] < areas["deletion_random"],
        "insertion": areas["insertion"] > areas["insertion_random"],
    }
    return {"images": len(images), "cell": cell} | {
        name: {
            "area": areas[name].mean().item(),
            "random_area": areas[f"{name}_random"].mean().item(),
            "beats_random": better[name].double().mean().item(),
            "curve": whole[name].mean(0).tolist(),
            "random_curve": whole[f"{name}_random"].mean(0).tolist(),
        }
        for name in better
    }


def rank_correlations(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's ρ of N×H×W maps, N; 0 where a map is the same everywhere."""
    ranks = [torch.from_numpy(rankdata(maps.flatten(1).cpu().numpy(), axis=1)) for maps in (one, other)]
    centred = [r - r.mean(1, keepdim=True) for r in ranks]
    norms = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    return (centred[0] * centred[1]).sum(1) / norms.clamp_min(1e-12)


def structural_similarities(one: Tensor, other: Tensor) -> Tensor:
    """SSIM of N×H×W maps, each by its own largest value, N; 0 where a map is zero everywhere."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    tops = [maps.abs().amax((1, 2), keepdim=True) for maps in (one, other)]
    scaled = [(maps / top.clamp_min(1e-30))[:, None] for maps, top in zip((one, other), tops, strict=True)]
    found = structural_similarity_index_measure(*scaled, data_range=2.0, reduction="none")
    assert isinstance(found, Tensor)
    return torch.where((tops[0] * tops[1])[:, 0, 0] > 0, found.view(-1), 0).cpu()


def stability(
    classifier: Classifier, images: Tensor, targets: Tensor, repeats: int = 3, seed: int = 0, watch: Watch = nobody
) -> dict[str, Any]:
    """How much maps change when noise that nobody sees (`SHAKE`) is added to the images.

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
    """A copy in which a share of the parameters, from the output back, is noise of the same mean and spread."""
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
    """Adebayo et al.'s sanity check: maps before and after randomising the network, from the output back.

    A map that looks the same when nothing is left of what was learned explains the image, not the model: it fails.
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
