"""Check matches: do both sides lie on the same part, and does blanking a region cost the claimed evidence?"""

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from sic.data.dataset import ImageData, Sample, Watch, nobody
from sic.data.images import Preprocessing, UnreadableImage, read_image
from sic.data.loading import view_batches
from sic.evaluate.parts import Masks, part_places
from sic.explain.matches import Matches, find_matches
from sic.methods import SIC, ProtoPNet, device_of
from sic.methods.protopnet import BOX
from sic.model import Model
from sic.supports import Support

BATCH = 16
RESAMPLED = 1000
"""Bootstrap samples of an interval."""
SAME = 4.0
"""Mean difference of the values of pixels, of 255, up to which two pictures are the same."""
NO_PART = ""
"""The part of a region without any contributions on parts."""


@dataclass(frozen=True)
class Pair:
    """A region of an image and its counterpart in a case, as maps H×W."""

    image: Tensor
    support: Tensor
    evidence: float


def matches(
    model: Model, data: ImageData, samples: Sequence[Sample], seed: int = 0, watch: Watch = nobody
) -> dict[str, Any] | str:
    """Measure the matches of the predicted class of every image; or the reason why that cannot be done.

    `part_agreement`: how often both sides of a match lie on the same part of the bird, weighted by evidence, on images
    whose parts are known (`chance`: sides of random matches; `whole_maps`: both maps as a whole; `same_place`: the
    part at the same place of the case). `causality`, for SIC: see there. `matched_share`: the share of the evidence
    that has a match. `images_per_s`: explained with matches. `images`: how many were measured.
    """
    if not isinstance(model.classifier, SIC | ProtoPNet):
        return "only SIC and ProtoPNet match regions of an image with regions of training images"
    if any(support.image is None for support in model.supports):
        return "the model does not keep the images of its cases"
    measured = _Measured(model, data, samples, seed, watch)
    return measured.result() or "the parts of these images and of the training images are not known"


class _Measured:
    """One pass over the images."""

    def __init__(self, model: Model, data: ImageData, samples: Sequence[Sample], seed: int, watch: Watch) -> None:
        self.model, self.seed, self.watch = model, seed, watch
        self.samples = list(samples)
        known = {sample.id: sample for own in (*data.splits.values(), samples) for sample in own}
        self.parts = functools.cache(functools.partial(part_places, data, preprocessing=model.config.preprocessing))
        """Where the parts of an image are."""
        self.cases = [_found(support, known, self.parts, model.config.preprocessing) for support in model.supports]
        """The images of the cases, if they and their parts are known."""
        self.agreement: dict[str, list[tuple[int, float, str, str]]] = {}
        """By kind: image, evidence, and the parts that both sides lie on."""
        self.drops: list[Drop] = []
        self.evidence = self.matched = 0.0
        """Of all cases, and of their matches."""
        self.seconds = 0.0

    def result(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed)
        device = device_of(self.model.classifier)
        done = 0
        for batch in view_batches([s.path for s in self.samples], self.model.config.preprocessing, BATCH, device):
            rows = range(done, done + len(batch))
            if isinstance(self.model.classifier, SIC):
                self._sic(batch, rows, generator)
            else:
                self._protopnet(batch, rows)
            done += len(batch)
            self.watch("matches", done, len(self.samples))
        found: dict[str, Any] = {}
        if self.agreement:
            found["part_agreement"] = {kind: agreement(each, self.seed) for kind, each in self.agreement.items()}
        if self.drops:
            found["causality"] = causality(self.drops, self.seed)
        if isinstance(self.model.classifier, SIC):
            found["matched_share"] = self.matched / self.evidence if self.evidence else 0.0
            found["images_per_s"] = done / self.seconds
        return {"images": done, **found} if found else {}

    def _sic(self, images: Tensor, rows: range, generator: torch.Generator) -> None:
        classifier = self.model.sic
        owners = classifier.support_classes.tolist()
        start = time.perf_counter()
        answered = classifier.answered(images)
        best = answered.logits.argmax(dim=1).tolist()
        cases = [[case for case, owner in enumerate(owners) if owner == label] for label in best]
        found = find_matches(answered, self.model.supports, cases)
        self.seconds += time.perf_counter() - start
        second = answered.logits.topk(min(2, answered.logits.shape[1]), dim=1).indices[:, -1]
        others = answered.explain(second, weights=False).maps
        for image, row, each, other in zip(images, rows, found, others, strict=True):
            for case, matched in each.items():
                pairs = [
                    Pair(match.image.map, match.support.map, match.evidence)
                    for match in matched.groups
                    if match.support is not None
                ]
                self._record("matches", row, case, pairs)
                whole = _whole(matched)
                self.evidence += whole.evidence
                self.matched += sum(pair.evidence for pair in pairs)
                self._record("whole_maps", row, case, [whole])
                same = [Pair(pair.image, whole.support * (pair.image != 0), pair.evidence) for pair in pairs]
                self._record("same_place", row, case, same)
            self.drops += drops(classifier, image, row, each, other, generator)

    def _protopnet(self, images: Tensor, rows: range) -> None:
        classifier = copy.deepcopy(self.model.classifier)
        assert isinstance(classifier, ProtoPNet)
        classifier.explain_with(BOX)
        with torch.no_grad():
            logits, evidence = classifier.answer(images)
        owners = classifier.prototype_classes
        for image, row, label, values in zip(images, rows, logits.argmax(dim=1).tolist(), evidence, strict=True):
            own = (owners == label).nonzero()[:, 0]
            maps = classifier.explain_evidence(image[None], own[None]).maps[0]
            for case, map_ in zip(own.tolist(), maps, strict=True):
                if (box := self.model.supports[case].box) is not None and values[case] > 0:
                    left, top, right, bottom = box
                    patch = torch.zeros_like(map_)
                    patch[top:bottom, left:right] = 1
                    self._record("matches", row, case, [Pair(map_, patch, values[case].item())])

    def _record(self, kind: str, row: int, case: int, pairs: Sequence[Pair]) -> None:
        """The parts that both sides of pairs lie on, where they are known."""
        sample = self.cases[case]
        image, support = self.parts(self.samples[row]), None if sample is None else self.parts(sample)
        if image is None or support is None:
            return
        for pair in pairs:
            parts = _part(pair.image, image), _part(pair.support, support)
            self.agreement.setdefault(kind, []).append((row, pair.evidence, *parts))


def _whole(matched: Matches) -> Pair:
    """The maps of a case as a whole."""
    support = torch.stack([part.support.map for part in matched.parts if part.support is not None]).sum(dim=0)
    return Pair(matched.evidence_map, support, sum(part.evidence for part in matched.parts))


def _found(
    support: Support,
    known: Mapping[str, Sample],
    parts: Callable[[Sample], Masks | None],
    preprocessing: Preprocessing,
) -> Sample | None:
    """The image of a support among those known by their ids; None if it is not there or cannot be read, if its parts
    are not known, or if another image has its id."""
    sample = known.get(support.source)
    if sample is None or support.image is None:
        return None
    try:
        if parts(sample) is None:
            return None
        view, own = (np.asarray(image, np.float32) for image in (preprocessing(read_image(sample.path)), support.image))
    except UnreadableImage:
        return None
    return sample if view.shape == own.shape and np.abs(view - own).mean() <= SAME else None


def _part(map_: Tensor, masks: Masks) -> str:
    """The part with most of the positive contributions."""
    positive = map_.clamp(min=0).cpu()
    sums = {part: (positive * mask).sum().item() for part, mask in masks.items()}
    most = max(sums.values(), default=0.0)
    return next(part for part in sums if sums[part] == most) if most > 0 else NO_PART


def agreement(rows: Sequence[tuple[int, float, str, str]], seed: int = 0) -> dict[str, Any]:
    """How often both sides lie on the same part, weighted by evidence.

    Args:
        rows: For each match its image, its evidence, and the part of either side (`NO_PART`: none).
        seed: Of the bootstrap over images.

    Returns:
        `agreement` with its 95 % `interval`; `chance`, if one side is replaced by that of a random match; `parts`, the
        share of the evidence on each part of the images; the number of `matches`.
    """
    images, evidence, ours, theirs = (np.array(column) for column in zip(*rows, strict=True))
    same = (ours == theirs) & (ours != NO_PART)
    parts = sorted({*ours.tolist(), *theirs.tolist()} - {NO_PART})
    mine, other = (
        np.array([evidence[side == part].sum() for part in parts]) / evidence.sum() for side in (ours, theirs)
    )

    def share(weights: NDArray[np.float64]) -> float:
        return float((weights * same).sum() / weights.sum())

    return {
        "agreement": share(evidence),
        "interval": _interval([share(evidence * counts) for counts in _resampled(images, seed)]),
        "chance": float((mine * other).sum()),
        "parts": dict(zip(parts, mine.tolist(), strict=True)),
        "matches": len(rows),
    }


@dataclass(frozen=True)
class Drop:
    """The effect of blanking a region on the evidence of a case."""

    image: int
    claimed: float
    """The contributions of the blanked pixels."""
    measured: float
    random: float
    """The effect of blanking a region of the same shape somewhere else."""
    other_class: float
    """The claim if the evidence of the case were where that of another class is."""
    uniform: float
    """The claim if it were everywhere."""


@torch.no_grad()
def drops(
    classifier: SIC, image: Tensor, row: int, matched: dict[int, Matches], other: Tensor, generator: torch.Generator
) -> Iterator[Drop]:
    """Blank the core of every region with the mean colour of the image, and cores shifted to random places.

    Args:
        classifier: The model.
        image: 3×H×W.
        row: The number of the image.
        matched: Its matches by case.
        other: H×W, its contributions to another class.
        generator: Draws the random places.
    """
    regions = [(case, match.image) for case, each in matched.items() for match in each.groups]
    if not regions:
        return
    height, width = image.shape[-2:]
    masks = torch.stack([region.mask for _, region in regions])
    places = torch.stack([torch.randint(side, (len(masks),), generator=generator) for side in (height, width)], dim=1)
    moved = torch.stack([mask.roll(tuple(by), (0, 1)) for mask, by in zip(masks, places.tolist(), strict=True)])
    grey = image.mean(dim=(1, 2), keepdim=True)
    blanked = torch.where(torch.cat([masks, moved])[:, None], grey, image)
    elsewhere = other.clamp(min=0) / other.clamp(min=0).sum().clamp_min(1e-30)
    before = classifier.answer(image[None])[1][0]
    after = torch.cat([classifier.answer(each)[1] for each in blanked.split(2 * BATCH)])
    for number, (case, region) in enumerate(regions):
        claimed = region.map[region.mask].sum().item()
        lower = [(before[case] - after[place, case]).item() for place in (number, number + len(regions))]
        shares = [elsewhere[region.mask].sum().item(), region.mask.double().mean().item()]
        yield Drop(row, claimed, *lower, *(share * before[case].item() for share in shares))


def causality(found: Sequence[Drop], seed: int = 0) -> dict[str, Any]:
    """Whether blanking a region lowers the evidence of its case as claimed.

    Returns:
        Means of the `claimed` and the `measured` drop and of that of equal regions at `random` places; `beats_random`,
        the share of regions whose drop is larger; `spearman`, the rank correlation of claimed and measured drops,
        with its 95 % `interval` by a bootstrap over images; the same for claims by the map of the second best class
        (`spearman_other_class`) and by a uniform map (`spearman_uniform`), and the interval of the difference to the
        former (`above_other_class`); the number of `regions`.
    """
    images = np.array([drop.image for drop in found])
    claimed, measured, random, other, uniform = (
        np.array([getattr(drop, name) for drop in found])
        for name in ("claimed", "measured", "random", "other_class", "uniform")
    )

    def correlation(counts: NDArray[np.float64], claims: NDArray[np.float64] = claimed) -> float:
        rows = np.repeat(np.arange(len(found)), counts.astype(int))
        return float(spearmanr(claims[rows], measured[rows]).statistic)

    return {
        "claimed": float(claimed.mean()),
        "measured": float(measured.mean()),
        "random": float(random.mean()),
        "beats_random": float((measured > random).mean()),
        "spearman": correlation(np.ones(len(found))),
        "interval": _interval([correlation(counts) for counts in _resampled(images, seed)]),
        "spearman_other_class": correlation(np.ones(len(found)), other),
        "above_other_class": _interval(
            [correlation(counts) - correlation(counts, other) for counts in _resampled(images, seed)]
        ),
        "spearman_uniform": correlation(np.ones(len(found)), uniform),
        "regions": len(found),
    }


def _resampled(images: NDArray[np.int64], seed: int) -> Iterator[NDArray[np.float64]]:
    """For each bootstrap sample of the images, how often each row counts."""
    rng = np.random.default_rng(seed)
    names, own = np.unique(images, return_inverse=True)
    for _ in range(RESAMPLED):
        yield rng.multinomial(len(names), np.full(len(names), 1 / len(names)))[own].astype(np.float64)


def _interval(values: Sequence[float]) -> list[float]:
    """The middle 95 %."""
    return [float(end) for end in np.nanquantile(values, (0.025, 0.975))]
