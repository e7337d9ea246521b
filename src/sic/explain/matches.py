"""Matches: the evidence of a case, split into regions of the image and of the case that correspond to each other.

The evidence of a case has a map in the image and a map in the case, and both add up to it exactly. Places in all
pictures with similar features form a group; a group is a match. So amounts are exact: matches and the rest add up to
the evidence on either side. Which region corresponds to which is decided by the similarity of features:
`sic evaluate --only matches` measures how often that is right.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.explain.contributions import images_at_once, support_image
from sic.explain.correspondence import GROUPS, corresponding, descriptors
from sic.explain.regions import Polygon, centre, core, outlines
from sic.methods import SIC
from sic.methods.contract import Traced
from sic.methods.sic import AnsweredSIC
from sic.supports import Support

SMALL = 0.08
"""Share of what the pixels of a picture add to a case's evidence that a match needs, on both sides; what is below it
belongs to the rest."""
ALIKE = 0.35
"""Cosine of the mean descriptors of its two sides that a match needs."""
WEAK = 0.05
"""Evidence below which a case has no matches."""
AT_ONCE = 4
"""The most images that are traced back in one copy of a case's picture; else rare cases wait for frequent ones."""


@dataclass(frozen=True)
class Region:
    """One side of a match: where it is in a picture."""

    map: Tensor
    """H×W, signed contributions of the pixels to the evidence of the case; 0 outside the region."""
    constant: float = 0.0
    """The part of the evidence that belongs to no pixel, such as a transformer's positional code."""

    @property
    def value(self) -> float:
        """The evidence of the region: the sum of the map and the constant."""
        return self.map.sum().item() + self.constant

    @cached_property
    def mask(self) -> Tensor:
        """H×W bool, the core of the region (see `sic.explain.regions.core`)."""
        return core(self.map)

    @property
    def centre(self) -> tuple[float, float] | None:
        """The place in the core nearest to its mean, (x, y) in pixels; None without positive contributions."""
        return centre(self.mask)

    @cached_property
    def outline(self) -> list[Polygon]:
        """The border of the core as closed polygons of points (x, y) in pixels; 0, 0 is the top left corner."""
        return outlines(self.mask)


@dataclass(frozen=True)
class Match:
    """A region of the image and the region of a case that corresponds to it."""

    number: int
    """From 1, by evidence. All cases of an explanation share the numbers and the regions of the image. 0: the rest."""
    evidence: float
    """What the region of the image adds to the score by the similarity to this case."""
    share: float
    """`evidence` as a share of the evidence of the case; 0 if the case has none."""
    image: Region
    support: Region | None
    """Its regions add up to the evidence of the case, too. None if the image of the case is not kept."""


@dataclass(frozen=True)
class Matches:
    """The evidence of one case, match by match."""

    groups: list[Match]
    """The matches, by number; none if the image of the case is not kept."""
    rest: Match
    """All that has no partner, one that is not similar, or too little evidence on one of the sides."""
    areas: Tensor
    """H×W, the number of each pixel's region in the image, the same for all cases of an explanation; 0: of none."""

    @property
    def parts(self) -> list[Match]:
        """The groups and the rest: they add up to the evidence of the case, on either side."""
        return [*self.groups, self.rest]

    @property
    def evidence_map(self) -> Tensor:
        """H×W, the contributions of the image's pixels to the evidence of the case."""
        return torch.stack([part.image.map for part in self.parts]).sum(dim=0)


def combined(matches: Sequence[Matches]) -> Matches:
    """The matches of several cases of one explanation, added up; `support` of the result is None."""
    numbers = sorted({match.number for each in matches for match in each.groups})
    total = sum(part.evidence for each in matches for part in each.parts)

    def added(number: int) -> Match:
        own = [part for each in matches for part in each.parts if part.number == number]
        region = Region(torch.stack([part.image.map for part in own]).sum(dim=0), sum(p.image.constant for p in own))
        return Match(number, region.value, region.value / total if total else 0.0, region, None)

    return Matches([added(number) for number in numbers], added(0), matches[0].areas)


def unit_evidence(latents: Tensor, vectors: Tensor, evidence: Tensor) -> Tensor:
    """Split the evidence of cases into latent units, `e_k = f_k · v_k / ‖v‖ · |cos|^(B - 1) / T`.

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
    answered: AnsweredSIC, supports: Sequence[Support], cases: Sequence[Sequence[int]]
) -> list[dict[int, Matches]]:
    """Find the matches between images and cases.

    This takes a backward pass for each case of an image, but never more than d, and one for each image of a case. A
    case takes a forward pass for every `AT_ONCE` images.

    Args:
        answered: The images and the model's answers.
        supports: The model's cases.
        cases: For each image, the indices of the cases to compare it with.

    Returns:
        For each image, the matches by case.
    """
    classifier = answered.classifier
    pairs = [(n, i) for n, row in enumerate(cases) for i in row]
    if not pairs:
        return [{} for _ in cases]
    rows, columns = (list(each) for each in zip(*pairs, strict=True))
    features, vectors = answered.traced.features[rows], classifier.support_vectors[columns]
    split = unit_evidence(features, vectors, answered.evidence[rows, columns])
    here = _traced(answered.traced, rows, split)
    places = descriptors(classifier, answered.images, answered.traced)
    shown = [pair for pair, case in enumerate(columns) if supports[case].image is not None]
    there, theirs = _Evidence(here.maps[:0], here.constants[:0]), places[:0]
    if shown:
        there, theirs = _in_supports(classifier, supports, [columns[pair] for pair in shown], split[shown])
    found = _matches(here, there, rows, shown, places, theirs)
    result: list[dict[int, Matches]] = [{} for _ in cases]
    for (n, case), each in zip(pairs, found, strict=True):
        result[n][case] = each
    return result


@dataclass(frozen=True)
class _Evidence:
    """The evidence of P pairs of an image and a case in one of the two pictures."""

    maps: Tensor
    """P×H×W."""
    constants: Tensor
    """P, what belongs to no pixel."""


def _in_supports(
    classifier: SIC, supports: Sequence[Support], columns: Sequence[int], split: Tensor
) -> tuple[_Evidence, Tensor]:
    """The evidence P×d of pairs in the pictures of their cases (`columns`), and descriptors of these, P×F×h×w."""
    pairs: dict[int, list[int]] = {}
    for pair, case in enumerate(columns):
        pairs.setdefault(case, []).append(pair)
    # A batch takes as many passes as its picture with most pairs: those with about as many go together.
    loads = [own[start : start + AT_ONCE] for own in pairs.values() for start in range(0, len(own), AT_ONCE)]
    loads.sort(key=len)
    like = classifier.support_vectors
    pictures = {case: image for case in pairs if (image := support_image(supports[case], like)) is not None}
    number = images_at_once(classifier, pictures[columns[0]], len(loads[-1])) if len(loads) > 1 else 1
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    order: list[int] = []
    for start in range(0, len(loads), number):
        some = loads[start : start + number]
        batch = torch.stack([pictures[columns[own[0]]] for own in some])
        traced = Traced(lambda batch=batch: classifier.encoder(batch))  # type: ignore[misc]
        rows = [row for row, own in enumerate(some) for _ in own]
        evidence = _traced(traced, rows, split[[pair for own in some for pair in own]])
        found.append((evidence.maps, evidence.constants, descriptors(classifier, batch, traced)[rows]))
        order += [pair for own in some for pair in own]
    back = torch.tensor(order).argsort().to(like.device)
    maps, constants, places = (torch.cat(each)[back] for each in zip(*found, strict=True))
    return _Evidence(maps, constants), places


def _traced(traced: Traced, rows: Sequence[int], evidence: Tensor) -> _Evidence:
    """Trace evidence back to the pixels of pictures; for each pair, the row of its picture and `unit_evidence`."""
    latents = traced.features
    seen = Counter[int]()
    turns = []
    for row in rows:
        turns.append(seen[row])
        seen[row] += 1
    own = latents[list(rows)]
    # The weights of the latents of each picture that give the evidence of its pairs.
    weights = latents.new_zeros(len(latents), max(seen.values()), latents.shape[1])
    weights[list(rows), turns] = torch.where(own == 0, 0, evidence / own)
    found = traced.contributions(lambda each: torch.einsum("nd,nkd->nk", each, weights.clone()), weights=False)
    # A support need not be an image (--inference-supports centroid): units that its picture lacks have no place.
    lacking = torch.where(own == 0, evidence, 0).sum(dim=1)
    return _Evidence(found.maps[list(rows), turns], found.constant[list(rows), turns] + lacking)


def _matches(
    here: _Evidence, there: _Evidence, rows: Sequence[int], shown: Sequence[int], places: Tensor, theirs: Tensor
) -> list[Matches]:
    """The matches of P pairs of an image and a case, of which S have a picture of the case.

    Args:
        here: The evidence in the images.
        there: The evidence in the pictures of the cases, of S pairs.
        rows: For each pair its image.
        shown: The S pairs.
        places: Descriptors of the N images.
        theirs: Descriptors of the pictures of the cases, of S pairs.
    """
    owners, among = torch.tensor(rows, device=places.device), torch.tensor(shown, device=places.device).long()
    ours, others, alike = _areas(here, there, owners, among, places, theirs)
    values, whole = _sums(here.maps, ours), here.maps.sum(dim=(1, 2)) + here.constants
    kept = _large(values, here.maps) & (whole >= WEAK)[:, None]
    kept &= torch.zeros_like(kept).index_copy(
        0, among, _large(_sums(there.maps, others), there.maps) & (alike >= ALIKE)
    )
    matched = values.new_zeros(len(places), GROUPS).index_add(0, owners, torch.where(kept, values, 0))
    numbers = 1 + matched.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    areas = _at(torch.where(matched > 0, numbers, 0)[owners], ours)
    sides = _divided(here, ours, kept)
    opposite = dict(zip(shown, _divided(there, others, kept[among]), strict=True))
    rests = torch.where(_at(kept, ours), 0, here.maps).sum(dim=(1, 2)) + here.constants
    result = []
    for pair, (amounts, names, groups, rest, total) in enumerate(
        zip(*(each.tolist() for each in (values, numbers[owners], kept, rests, whole)), strict=True)
    ):
        found = []
        for number, evidence, group in [
            *sorted((names[g], amounts[g], g) for g in range(GROUPS) if groups[g]),
            (0, rest, GROUPS),
        ]:
            partner = opposite[pair][group] if pair in opposite else None
            found.append(Match(number, evidence, evidence / total if total else 0.0, sides[pair][group], partner))
        result.append(Matches(found[:-1], found[-1], areas[pair]))
    return result


def _large(values: Tensor, maps: Tensor) -> Tensor:
    """Which of the regions P×`GROUPS` of maps P×H×W hold enough of what the pixels add; `values`: their sums."""
    return (values > 0) & (values >= SMALL * maps.sum(dim=(1, 2))[:, None])


def _areas(
    here: _Evidence, there: _Evidence, owners: Tensor, among: Tensor, places: Tensor, theirs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The number of each pixel's region in the images of P pairs and in the pictures of S of their cases, and how
    similar both sides of a region are, S×`GROUPS`; arguments as in `_matches`."""
    pictures: list[list[int]] = [[n] for n in range(len(places))]
    turns = []
    for place, n in enumerate(owners[among].tolist()):
        turns.append(len(pictures[n]))
        pictures[n].append(len(places) + place)
    together = here.maps.new_zeros(len(places), *here.maps.shape[1:]).index_add(0, owners, here.maps)
    # Images with fewer cases than others also get pictures without evidence, which count for nothing.
    maps = torch.cat([together, there.maps, torch.zeros_like(together[:1])])
    longest = max(map(len, pictures))
    index = torch.tensor([row + [len(maps) - 1] * (longest - len(row)) for row in pictures], device=places.device)
    areas, alike = corresponding(torch.cat([places, theirs, places[:1]])[index], maps[index])
    cases = owners[among], turns
    return areas[owners, 0], areas[cases], alike[cases]


def _at(values: Tensor, areas: Tensor) -> Tensor:
    """The value P×`GROUPS` of each pixel's group, P×H×W; 0 for pixels of none."""
    return F.pad(values, (0, 1)).gather(1, areas.flatten(1)).view_as(areas)


def _sums(maps: Tensor, areas: Tensor) -> Tensor:
    """Sums of maps P×H×W over the region of each group, P×`GROUPS`."""
    return torch.stack([torch.where(areas == group, maps, 0).sum(dim=(1, 2)) for group in range(GROUPS)], dim=1)


def _divided(whole: _Evidence, areas: Tensor, kept: Tensor) -> list[list[Region]]:
    """For each pair the region of each group, and last the rest: all groups but those `kept`, and no pixel at all."""
    groups = [torch.where(areas == group, whole.maps, 0) for group in range(GROUPS)]
    rest = torch.where(_at(kept, areas), 0, whole.maps)
    return [
        [*(Region(maps[pair]) for maps in groups), Region(rest[pair], constant)]
        for pair, constant in enumerate(whole.constants.tolist())
    ]
