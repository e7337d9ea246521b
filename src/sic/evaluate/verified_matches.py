"""Checks of matches: their amounts, regions and numbers, and whether partners belong together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.evaluate.checks import Check, amount
from sic.evaluate.reference import (
    Compared,
    Quantity,
    Reference,
    as_check,
    by_units,
    distance,
    evidence,
    flat,
    score,
    shows,
)
from sic.evaluate.returned import Pictures, two_best
from sic.explain import Explanation
from sic.explain.matches import Matches, Region
from sic.methods import Contributions
from sic.model import Model

CASES = 4
"""Cases of a class, at most: each case is traced in its own picture."""


class Matching:
    """The matches that users get of the two best classes of images N×3×S×S.

    How regions are formed is not prescribed. Whatever they are, the maps of a case must add up to its evidence as the
    linearised network has it, in the image and in the picture of the case; shares, numbers and contrasts follow from
    them; and the pixels of a region must excite the units that its partner excites.
    """

    def __init__(self, model: Model, pictures: Pictures, images: Tensor) -> None:
        self.model, self.pictures, self.images = model, pictures, images
        self.names = two_best(model, images)
        self.several = list(model.explain_many(list(images), self.names, matches=True))
        self.fits: list[tuple[float, float]] = []

    def check(self, place: int, reference: Reference) -> Check:
        """Of the image at one place, whose linearised network is `reference`."""
        image, own = self.images[place], self.names[place]
        one = _Checked(self.model, reference, self.pictures)
        contrasting = len(own) > 1 and all(support.image is not None for support in self.model.supports)
        alone = (
            self.model.explain(image, own[:1], versus=own[1])
            if contrasting
            else self.model.explain(image, own, matches=True)
        )
        items = [*one.explanations([alone, self.several[place]]), *(one.contrast(alone) if contrasting else ())]
        self.fits += one.fits
        check = as_check(
            "matches",
            "matched regions add up to the evidence of their case in both pictures; shares, numbers and contrasts fit",
            items,
            ("a uniform map in the case", one.wrong),
        )
        return replace(check, decided="image" in check.details or any(check.details.values()))

    def partners(self) -> Check:
        """Right partners excite the same units. It fails if they do so less than regions that are paired at random, and
        is undecided if there is no difference: by the mean fit of cases, whose standard deviation is 1 for random
        pairs."""
        found = self.fits
        number = max(len(found), 1)
        reach = 1.96 / number**0.5
        right, exchanged = (sum(each) / number for each in (zip(*found, strict=True) if found else ((), ())))
        return Check(
            "partners",
            "regions excite the units that their partners excite, more than regions that are paired at random",
            reach - right,
            0.0,
            len(found),
            ("partners exchanged", reach - exchanged),
            {"fit": right, "interval": [right - reach, right + reach]},
            decided=abs(right) > reach,
        )


class _Checked:
    """The matches of one image."""

    def __init__(self, model: Model, reference: Reference, pictures: Pictures) -> None:
        self.model, self.double = model, pictures.double
        self.reference, self.pictures = reference, pictures
        self.wrong = 0.0
        self.fits: list[tuple[float, float]] = []
        """For each case how well partners fit; the same if every region had the partner of the next one."""
        self._right: dict[int, tuple[Quantity, Contributions]] = {}

    def in_picture(self, case: int) -> tuple[Reference, Quantity, Contributions]:
        """Right contributions of the pixels of a case's picture to its evidence."""
        reference = self.pictures.reference(case)
        if case not in self._right:
            quantity = by_units(self.units(case))
            right = reference.of(quantity)
            self._right[case] = quantity, right
            self.wrong = max(self.wrong, flat(right) if shows(right) else 0.0)
        return reference, *self._right[case]

    @torch.no_grad()
    def units(self, case: int) -> Tensor:
        """The evidence of each latent unit for a case, d."""
        products = self.reference.features[0] * self.double.support_vectors[case]
        total = products.sum()
        return products * (self.reference.known(evidence, case)[1].value / total if total != 0 else 0)

    def explanations(self, found: Sequence[Explanation]) -> Iterator[Compared]:
        """The matches of all cases together, and those of every case: case by case, because each has a picture. The
        partners of the last explanation count."""
        cases: dict[int, list[Matches]] = {}
        for explanation in found:
            areas = [each.areas for each in explanation.matches.values()]
            yield _holds("numbers", all(torch.equal(each, areas[0]) for each in areas))
            for one in explanation.classes:
                for case in one.cases[:CASES]:
                    if case.matches is None:
                        yield _holds("image", False)
                    else:
                        cases.setdefault(case.index, []).append(case.matches)
                if (whole := one.matches) is not None:
                    quantity, right = self.reference.known(score, self.model.classes.index(one.name))
                    added = _added([part.image for part in whole.parts], self.double.bias)
                    yield self.reference.compared("all cases", added, quantity, right)
                    total = sum(part.evidence for part in whole.parts) + self.double.bias
                    yield self.reference.value("all cases", total, quantity, right)
        for index, each in cases.items():
            for matches in each:
                yield from self.case(index, matches)
            self.fits += self.partners(index, each[-1])

    def case(self, case: int, found: Matches) -> Iterator[Compared]:
        quantity, right = self.reference.known(evidence, case)
        parts = found.parts
        numbers = [match.number for match in found.groups]
        yield _holds("numbers", len({*numbers}) == len(numbers) and min(numbers, default=1) > 0)
        yield _holds("numbers", found.rest.number == 0)
        yield _holds("numbers", all((found.areas[m.image.map != 0] == m.number).all() for m in found.groups))
        yield _holds("regions", _disjoint([match.image for match in parts]))
        yield self.reference.compared("image", _added([match.image for match in parts]), quantity, right)
        yield self.reference.value("image", sum(match.evidence for match in parts), quantity, right)
        scale, total = float(amount(right.maps) + right.constant.abs()), float(right.value)

        def moved(right: Contributions = right) -> float:
            return self.reference.moved(quantity, right)

        for match in parts if shows(right) else []:
            yield Compared("image", abs(match.evidence - match.image.value) / scale)
            yield Compared("shares", abs(match.share * total - match.evidence) / scale, moved)
        sides = [match.support for match in parts if match.support is not None]
        if self.model.supports[case].image is None:
            yield _holds("picture of the case", not sides)
            return
        yield _holds("picture of the case", len(sides) == len(parts))
        if sides and shows(right):
            yield _holds("regions", _disjoint(sides))
            reference, in_picture, right = self.in_picture(case)
            error = distance(_added(sides), right)
            yield Compared("picture of the case", error, lambda: moved() + reference.moved(in_picture, right))

    def contrast(self, explanation: Explanation) -> Iterator[Compared]:
        """Regions add up to the difference of two scores; the evidence of each is that of its pixels."""
        regions = explanation.contrast
        known = [self.reference.known(score, self.model.classes.index(one.name)) for one in explanation.classes[:2]]
        sides = [right for _, right in known]
        scale = max(float(amount(side.maps) + side.constant.abs()) for side in sides)
        if not any(map(shows, sides)):
            return

        def moved() -> float:
            return max(self.reference.moved(*each) for each in known)

        yield _holds("contrast", len({each.number for each in regions}) == len(regions))
        gap = float(sides[0].value - sides[1].value)
        yield Compared("contrast", abs(sum(each.value for each in regions) - gap) / scale, moved)
        areas = next(iter(explanation.matches.values())).areas
        for each in regions:
            yield Compared("contrast", abs(each.evidence - each.other - each.value) / scale)
            if each.number:
                inside = [float(side.maps[areas == each.number].sum()) for side in sides]
                yield Compared("contrast", abs(each.evidence - inside[0]) / scale, moved)
                yield Compared("contrast", abs(each.other - inside[1]) / scale, moved)

    def partners(self, case: int, found: Matches) -> Iterator[tuple[float, float]]:
        """How well the partners of a case fit; nothing for fewer than two."""
        sides = [(match.image, match.support) for match in found.groups if match.support is not None]
        if len(sides) > 1:
            ours = _excited(self.reference, [image for image, _ in sides])
            theirs = _excited(self.pictures.reference(case), [support for _, support in sides])
            alike = ours @ theirs.T
            yield _fit(alike), _fit(alike.roll(1, dims=1))


def _fit(alike: Tensor) -> float:
    """How well partners fit: the sum of the diagonal of K×K likenesses, as a number of standard deviations beyond its
    mean over all ways to pair the regions."""
    centred = alike - alike.mean(dim=0) - alike.mean(dim=1, keepdim=True) + alike.mean()
    deviation = float(centred.square().sum() / (len(alike) - 1)) ** 0.5
    return float(centred.diag().sum()) / deviation if deviation > 0 else 0.0


def _excited(reference: Reference, regions: Sequence[Region]) -> Tensor:
    """Directions K×d: what the pixels of regions add to each latent unit, beyond what they have in common."""
    added = torch.stack([reference.seen(region.map != 0) for region in regions])
    whole = F.normalize(reference.features, dim=1)
    return F.normalize(added - (added @ whole.T) * whole, dim=1)


def _holds(way: str, right: bool) -> Compared:
    return Compared(way, 0.0 if right else math.inf)


def _disjoint(regions: Sequence[Region]) -> bool:
    return bool((torch.stack([region.map != 0 for region in regions]).sum(dim=0) <= 1).all())


def _added(regions: Sequence[Region], bias: float = 0.0) -> Contributions:
    """Regions as one, without weights."""
    maps = torch.stack([region.map for region in regions]).sum(dim=0)
    constant = sum(region.constant for region in regions) + bias
    value = sum(region.value for region in regions) + bias
    return Contributions(maps, maps.new_zeros(0, *maps.shape), maps.new_tensor(value), maps.new_tensor(constant))
