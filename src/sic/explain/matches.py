"""Matches: the evidence of a case, split into regions of the image and of the case that correspond to each other.

The evidence of a case with vector v is a sum over latent units, `e_k = evidence · f_k v_k / Σ_j f_j v_j`, and every
unit is traced to the pixels of the image and to those of the case. Units that look at the same places form a group; a
group is a match. All of it adds up: maps to the evidence of their match, matches and the rest to that of the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.explain.contributions import images_at_once, support_image
from sic.explain.regions import Polygon, centre, core, outlines
from sic.methods import SIC
from sic.methods.contract import Traced
from sic.methods.sic import AnsweredSIC
from sic.supports import Support

GROUPS = 5
"""The most matches of a case."""
UNITS = 32
"""The most latent units that are traced for a case, those with most evidence first."""
COVERED = 0.98
"""Share of a case's evidence after which no further units are traced."""
ALIKE = 0.7
"""Overlap of the maps of two groups of units from which on they count as one."""
SMALL = 0.04
"""Share of a case's evidence below which a group belongs to the rest."""
GRID = 16
"""Overlaps are measured on maps with so many cells on a side."""


@dataclass(frozen=True)
class Region:
    """One side of a match: where it is in a picture."""

    map: Tensor
    """H×W, signed contributions of the pixels to the evidence of the match."""
    constant: float
    """The part of the evidence that belongs to no pixel, such as a transformer's positional code."""

    @property
    def value(self) -> float:
        """The evidence that the map and the constant add up to."""
        return self.map.sum().item() + self.constant

    @cached_property
    def mask(self) -> Tensor:
        """H×W bool, the smallest set of pixels of the smoothed map that holds half of its positive contributions."""
        return core(self.map)

    @property
    def centre(self) -> tuple[float, float] | None:
        """The centre of the mask, (x, y) in pixels; None where it is empty."""
        return centre(self.mask)

    @cached_property
    def outline(self) -> list[Polygon]:
        """The border of the mask as closed polygons of points (x, y) in pixels; 0, 0 is the top left corner."""
        return outlines(self.mask)


@dataclass(frozen=True)
class Match:
    """A region of the image and the region of a case that a group of latent units responds to."""

    number: int
    """From 1, by evidence; 0 for the rest."""
    units: tuple[int, ...]
    evidence: float
    """The sum of the units' evidence."""
    share: float
    """`evidence` as a share of the evidence of the case; 0 if the case has none."""
    image: Region
    support: Region | None
    """None if the image of the case is not kept."""


@dataclass(frozen=True)
class Matches:
    """The evidence of one case, match by match."""

    groups: list[Match]
    """By evidence, strongest first."""
    rest: Match
    """All other units."""
    untraced: float
    """The share of the evidence in units that were not traced one by one; it is a part of the rest."""

    @property
    def parts(self) -> list[Match]:
        """The groups and the rest: they add up to the evidence of the case."""
        return [*self.groups, self.rest]


def unit_evidence(latents: Tensor, vectors: Tensor, evidence: Tensor) -> Tensor:
    """Split the evidence of cases into latent units.

    Args:
        latents: P×d, the latents `f⁺` of images.
        vectors: P×d, the vectors v of cases.
        evidence: P, `sim(f⁺, v) / T`.

    Returns:
        P×d; rows add up to `evidence`. Not negative if the latents are not.
    """
    products = latents * vectors
    total = products.sum(dim=1, keepdim=True)
    return torch.where(total == 0, 0, products * evidence[:, None] / torch.where(total == 0, 1, total))


def find_matches(
    answered: AnsweredSIC, supports: Sequence[Support], cases: Sequence[Sequence[int]], units: int = UNITS
) -> list[dict[int, Matches]]:
    """Find the matches between images and cases.

    This takes at most d backward passes for the images, and at most d for the cases that they are compared with.

    Args:
        answered: The images and the model's answers.
        supports: The model's cases.
        cases: For each image, the indices of the cases to compare it with.
        units: The most units to trace for each case; the others go to the rest.

    Returns:
        For each image, the matches by case.
    """
    vectors = answered.classifier.support_vectors
    pairs = [
        _Pair(n, i, answered.traced.features[n], vectors[i], answered.evidence[n, i], units)
        for n, row in enumerate(cases)
        for i in row
    ]
    seen = _sides(answered.traced, {pair: pair.row for pair in pairs}) if pairs else {}
    remembered = _in_supports(answered.classifier, supports, pairs)
    result: list[dict[int, Matches]] = [{} for _ in cases]
    for pair in pairs:
        result[pair.row][pair.case] = _matches(pair, seen[pair], remembered.get(pair))
    return result


class _Pair:
    """An image and a case: the evidence of every unit, and the units to trace one by one."""

    def __init__(self, row: int, case: int, latents: Tensor, vector: Tensor, evidence: Tensor, most: int) -> None:
        self.row, self.case = row, case
        self.evidence = unit_evidence(latents[None], vector[None], evidence[None])[0]
        size, order = self.evidence.abs().sort(descending=True)
        before = size.cumsum(0) - size
        self.units: list[int] = order[(size > 0) & (before < COVERED * size.sum())][:most].tolist()
        self.others = self.evidence != 0
        self.others[self.units] = False


@dataclass(frozen=True)
class _Side:
    """The maps of a pair in one of its pictures; with the constants they add up to the evidence."""

    maps: Tensor
    """(K + 1)×H×W: those of the K traced units, and of the rest."""
    constants: Tensor
    """K + 1."""

    def region(self, places: Sequence[int]) -> Region:
        return Region(self.maps[places].sum(dim=0), self.constants[places].sum().item())


def _in_supports(classifier: SIC, supports: Sequence[Support], pairs: Sequence[_Pair]) -> dict[_Pair, _Side]:
    """The side of each pair whose case keeps its image."""
    shown = sorted({pair.case for pair in pairs if supports[pair.case].image is not None})
    result: dict[_Pair, _Side] = {}
    like = classifier.support_vectors
    pictures = [image for case in shown if (image := support_image(supports[case], like)) is not None]
    number = images_at_once(classifier, pictures[0], like.shape[1]) if len(shown) > 1 else 1
    for start in range(0, len(shown), number):
        cases, batch = shown[start : start + number], torch.stack(pictures[start : start + number])
        result |= _sides(
            Traced(lambda batch=batch: classifier.encoder(batch)),  # type: ignore[misc]
            {pair: cases.index(pair.case) for pair in pairs if pair.case in cases},
        )
    return result


def _sides(traced: Traced, rows: Mapping[_Pair, int]) -> dict[_Pair, _Side]:
    """The side of each pair in its row of the traced pictures."""
    latents = traced.features
    scales: dict[_Pair, Tensor] = {}
    """What each latent is multiplied with to get the unit's evidence; 0 if the picture does not have the unit."""
    outputs: list[dict[int | _Pair, Tensor]] = [{} for _ in latents]
    """The outputs to trace, as weights of the latents: units, which pairs share, and the rest of each pair."""
    for pair, row in rows.items():
        scale = torch.where(latents[row] == 0, 0, pair.evidence / torch.where(latents[row] == 0, 1, latents[row]))
        scales[pair] = scale
        outputs[row] |= {unit: F.one_hot(torch.tensor(unit), len(scale)).to(scale) for unit in pair.units}
        outputs[row][pair] = scale * pair.others
    columns = max(map(len, outputs))
    empty = torch.zeros_like(latents[0])
    weights = torch.stack([torch.stack([*each.values(), *[empty] * (columns - len(each))]) for each in outputs])
    found = traced.contributions(lambda latents: torch.einsum("nd,nkd->nk", latents, weights.clone()), weights=False)
    result = {}
    for pair, row in rows.items():
        order = list(outputs[row])
        keys: list[int | _Pair] = [*pair.units, pair]
        places = [order.index(key) for key in keys]
        factor = torch.cat([scales[pair][pair.units], scales[pair].new_ones(1)])
        # Supports need not be images of the data (--inference-supports centroid): what a picture lacks has no place.
        lacking = torch.where(scales[pair] == 0, pair.evidence, 0)
        constants = factor * found.constant[row, places]
        constants += torch.cat([lacking[pair.units], (lacking * pair.others).sum()[None]])
        result[pair] = _Side(factor[:, None, None] * found.maps[row, places], constants)
    return result


def _matches(pair: _Pair, image: _Side, support: _Side | None) -> Matches:
    """Group the traced units."""
    total = pair.evidence.sum().item()
    values = torch.cat([pair.evidence[pair.units], (pair.evidence * pair.others).sum()[None]]).tolist()
    groups = grouped([side.maps[:-1] for side in (image, support) if side is not None], values[:-1])
    groups = sorted(groups, key=lambda group: -sum(values[place] for place in group))
    kept = [group for group in groups[:GROUPS] if sum(values[place] for place in group) >= SMALL * total > 0]
    inside = {place for group in kept for place in group}
    left = [place for place in range(len(values)) if place not in inside]

    def match(number: int, places: list[int]) -> Match:
        evidence = sum(values[place] for place in places)
        units = [pair.units[place] for place in places if place < len(pair.units)]
        if not number:
            units += pair.others.nonzero()[:, 0].tolist()
        return Match(
            number,
            tuple(sorted(units)),
            evidence,
            evidence / total if total else 0.0,
            image.region(places),
            None if support is None else support.region(places),
        )

    untraced = values[-1] / total if total else 0.0
    return Matches([match(number, group) for number, group in enumerate(kept, 1)], match(0, left), untraced)


def grouped(sides: Sequence[Tensor], evidence: Sequence[float]) -> list[list[int]]:
    """Group units that look at the same places: the two most similar groups are joined until none are `ALIKE`.

    Args:
        sides: For each picture, the maps of the K units, K×H×W.
        evidence: Of each unit.

    Returns:
        Groups of indices of units.
    """
    groups = [[place] for place in range(len(evidence))]
    profiles = [_profile(maps) * torch.tensor(evidence).abs().to(maps)[:, None] for maps in sides]
    while len(groups) > 1:
        overlap = torch.stack([_overlaps(each) for each in profiles]).amin(dim=0).fill_diagonal_(-1)
        best = int(overlap.argmax())
        if overlap.flatten()[best] < ALIKE:
            break
        one, other = sorted(divmod(best, len(groups)))
        groups[one] += groups.pop(other)
        for side, each in enumerate(profiles):
            joined = each[one] + each[other]
            profiles[side] = torch.cat([each[:one], joined[None], each[one + 1 : other], each[other + 1 :]])
    return groups


def _profile(maps: Tensor) -> Tensor:
    """The shares of the positive contributions in the cells of a grid: K×H×W → K×cells."""
    size = min(GRID, maps.shape[-2]), min(GRID, maps.shape[-1])
    cells = F.adaptive_avg_pool2d(maps.clamp(min=0)[:, None], size).flatten(1)
    return cells / cells.sum(dim=1, keepdim=True).clamp_min(1e-30)


def _overlaps(profiles: Tensor) -> Tensor:
    """The common share of every two profiles, K×cells → K×K: 1 for the same places, 0 for disjoint ones."""
    shares = profiles / profiles.sum(dim=1, keepdim=True).clamp_min(1e-30)
    return torch.minimum(shares[:, None], shares[None]).sum(dim=-1)
