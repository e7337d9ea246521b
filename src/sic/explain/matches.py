"""Matches: the evidence of a case, split into regions of the image and of the case that correspond to each other.

The evidence of a case has a map in the image and a map in the case, and both add up to it exactly. Places in all
pictures with similar features form a group; a group is a match. So amounts are exact: matches and the rest add up to
the evidence on either side. Which region corresponds to which is decided by the similarity of features:
`sic evaluate --only matches` measures how often that is right.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.errors import SicError
from sic.explain.contributions import images_at_once, support_image
from sic.explain.regions import Polygon, centre, core, outlines
from sic.methods import SIC
from sic.methods.contract import Traced
from sic.methods.sic import AnsweredSIC
from sic.supports import Support

GROUPS = 5
"""The most regions of an image."""
SMALL = 0.04
"""Share of a case's evidence that a match needs on both sides; what is below it belongs to the rest."""
WEAK = 0.05
"""Evidence below which a case has no matches."""
ROUNDS = 20
"""Of k-means."""
GRID = 16
"""Cells along a side of the maps of units, which describe places if the backbone has no feature maps."""


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
    """All that has no partner, or too little evidence on one of the sides."""

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

    return Matches([added(number) for number in numbers], added(0))


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

    This takes one forward pass of each case for all images together, a backward pass for each case of an image and one
    for each image of a case, but never more than d.

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
    rows, columns = (torch.tensor(each, device=answered.images.device) for each in zip(*pairs, strict=True))
    features, vectors = answered.traced.features[rows], classifier.support_vectors[columns]
    split = dict(zip(pairs, unit_evidence(features, vectors, answered.evidence[rows, columns]), strict=True))
    seen = _traced(answered.traced, {pair: (pair[0], each) for pair, each in split.items()})
    places = dict(enumerate(descriptors(classifier, answered.images, answered.traced)))
    remembered, theirs = _in_supports(classifier, supports, split)
    result: list[dict[int, Matches]] = []
    for n, row in enumerate(cases):
        if not row:
            result.append({})
            continue
        here = {i: seen[n, i] for i in row}
        there = {i: remembered[n, i] for i in row if (n, i) in remembered}
        result.append(_matches(here, there, places[n], theirs))
    return result


def _in_supports(
    classifier: SIC, supports: Sequence[Support], split: Mapping[tuple[int, int], Tensor]
) -> tuple[dict[tuple[int, int], Region], dict[int, Tensor]]:
    """The evidence of each pair in the image of its case, and descriptors of these images by case."""
    # A batch takes as many passes as its most frequent case: cases that are about as frequent go together.
    frequency = Counter(case for _, case in split if supports[case].image is not None)
    shown = sorted(frequency, key=lambda case: (frequency[case], case))
    like = classifier.support_vectors
    regions: dict[tuple[int, int], Region] = {}
    places: dict[int, Tensor] = {}
    pictures = [image for case in shown if (image := support_image(supports[case], like)) is not None]
    number = images_at_once(classifier, pictures[0]) if len(shown) > 1 else 1
    for start in range(0, len(shown), number):
        cases, batch = shown[start : start + number], torch.stack(pictures[start : start + number])
        traced = Traced(lambda batch=batch: classifier.encoder(batch))  # type: ignore[misc]
        own = {pair: (cases.index(pair[1]), each) for pair, each in split.items() if pair[1] in cases}
        regions |= _traced(traced, own)
        places |= dict(zip(cases, descriptors(classifier, batch, traced), strict=True))
    return regions, places


def _traced(traced: Traced, wanted: Mapping[tuple[int, int], tuple[int, Tensor]]) -> dict[tuple[int, int], Region]:
    """Trace evidence back to the pixels of pictures; `wanted`: by pair, the row of the picture and `unit_evidence`."""
    latents = traced.features
    outputs: list[dict[tuple[int, int], Tensor]] = [{} for _ in latents]
    """For each picture, the weights of its latents that give the evidence of each pair."""
    for pair, (row, evidence) in wanted.items():
        outputs[row][pair] = torch.where(latents[row] == 0, 0, evidence / latents[row])
    longest = max(map(len, outputs))
    empty = torch.zeros_like(latents[0])
    weights = torch.stack([torch.stack([*each.values(), *[empty] * (longest - len(each))]) for each in outputs])
    found = traced.contributions(lambda each: torch.einsum("nd,nkd->nk", each, weights.clone()), weights=False)
    result = {}
    for pair, (row, evidence) in wanted.items():
        place = list(outputs[row]).index(pair)
        # A support need not be an image (--inference-supports centroid): units that its picture lacks have no place.
        lacking = evidence[latents[row] == 0].sum()
        result[pair] = Region(found.maps[row, place], (found.constant[row, place] + lacking).item())
    return result


@torch.no_grad()
def descriptors(classifier: SIC, images: Tensor, traced: Traced) -> Tensor:
    """What the network finds at each place of images, N×F×h×w.

    The last feature maps of the backbone; without these (transformers), the maps of the latent units.
    """
    backbone = classifier.backbone
    try:
        return backbone.feature_maps(backbone.prepared(images))
    except SicError:
        maps = traced.contributions(lambda latents: latents, weights=False).maps
        return F.adaptive_avg_pool2d(maps, (min(GRID, maps.shape[-2]), min(GRID, maps.shape[-1])))


def _matches(
    image: Mapping[int, Region], supports: Mapping[int, Region], places: Tensor, theirs: Mapping[int, Tensor]
) -> dict[int, Matches]:
    """The matches of one image with its cases.

    Args:
        image: The evidence of each case in the image.
        supports: The evidence of each case in its own image, if that is kept.
        places: Descriptors of the image.
        theirs: Descriptors of the images of the cases.
    """
    together = torch.stack([each.map for each in image.values()]).sum(dim=0)
    ours, *others = corresponding(
        [places, *(theirs[case] for case in supports)], [together, *(each.map for each in supports.values())]
    )
    areas = dict(zip(supports, others, strict=True))
    kept: dict[int, list[int]] = {case: [] for case in image}
    matched = [0.0] * GROUPS
    for case, there in supports.items():
        needed = SMALL * image[case].value
        for group in range(GROUPS if image[case].value >= WEAK else 0):
            here = image[case].map[ours == group].sum().item()
            if min(here, there.map[areas[case] == group].sum().item()) >= needed:
                kept[case].append(group)
                matched[group] += here
    order = sorted(range(GROUPS), key=lambda group: -matched[group])
    numbers = {group: number for number, group in enumerate(order, 1)}
    result = {}
    for case, whole in image.items():
        groups = sorted(kept[case], key=numbers.__getitem__)
        sides = _divided(whole, ours, groups)
        partners: list[Region] | list[None] = [None] * len(sides)
        if case in supports:
            partners = _divided(supports[case], areas[case], groups)
        *matches, rest = (
            Match(number, side.value, side.value / whole.value if whole.value else 0.0, side, partner)
            for number, side, partner in zip([*(numbers[group] for group in groups), 0], sides, partners, strict=True)
        )
        result[case] = Matches(matches, rest)
    return result


def _divided(whole: Region, areas: Tensor, groups: Sequence[int]) -> list[Region]:
    """The regions of the groups, and last the rest, with all that belongs to no pixel."""
    inside = [torch.where(areas == group, whole.map, 0) for group in groups]
    outside = torch.isin(areas, torch.tensor(groups, device=areas.device), invert=True)
    return [*map(Region, inside), Region(torch.where(outside, whole.map, 0), whole.constant)]


def corresponding(places: Sequence[Tensor], maps: Sequence[Tensor]) -> list[Tensor]:
    """Divide pictures into regions with similar descriptors: k-means over the places of all pictures.

    Places count by their positive contributions, the first picture as much as all others. Angles between descriptors
    are compared.

    Args:
        places: For each picture, its descriptors F×h×w.
        maps: For each picture, its contributions H×W.

    Returns:
        For each picture, H×W, the number of each pixel's region, from 0 to `GROUPS` - 1.
    """
    directions = [F.normalize(each.flatten(1).T, dim=1) for each in places]
    masses = [
        F.adaptive_avg_pool2d(map_.clamp(min=0)[None], (each.shape[1], each.shape[2])).flatten()
        for each, map_ in zip(places, maps, strict=True)
    ]
    masses = [mass / mass.sum().clamp_min(1e-30) for mass in masses]
    weights = torch.cat([masses[0] * max(len(masses) - 1, 1), *masses[1:]])
    centroids = _centroids(torch.cat(directions), weights)
    result = []
    for each, direction, map_ in zip(places, directions, maps, strict=True):
        similarities = (centroids @ direction.T).view(1, GROUPS, *each.shape[1:])
        wide = F.interpolate(similarities, (map_.shape[0], map_.shape[1]), mode="bilinear", align_corners=False)
        result.append(wide[0].argmax(dim=0))
    return result


def _centroids(points: Tensor, weights: Tensor) -> Tensor:
    """`GROUPS` directions, GROUPS×F, from unit vectors P×F with weights P. Deterministic: it starts with the heaviest
    point, and then with those that are heavy and far from the others."""
    chosen = [int(weights.argmax())]
    for _ in range(GROUPS - 1):
        nearest = (points @ points[chosen].T).amax(dim=1)
        chosen.append(int((weights * (1 - nearest)).argmax()))
    centroids = points[chosen]
    for _ in range(ROUNDS):
        own = F.one_hot((points @ centroids.T).argmax(dim=1), GROUPS).to(points)
        sums = (own * weights[:, None]).T @ points
        moved = sums.norm(dim=1, keepdim=True) > 0
        centroids = torch.where(moved, F.normalize(sums, dim=1), centroids)
    return centroids
