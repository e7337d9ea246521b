"""What `Model` returns, in the precision and the ways that users get it, against the linearised network."""

import copy
import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from sic.evaluate.checks import Check, amount, largest
from sic.evaluate.reference import (
    ROUNDING,
    Compared,
    Reference,
    as_check,
    evidence,
    flat,
    part,
    score,
    score_above_average,
    shows,
    similarity,
)
from sic.explain import Explanation, SupportEvidence
from sic.methods import SIC, Contributions
from sic.model import Model

CASES = 6
"""Cases of a class whose maps are compared, at most."""
PICTURES = 16
"""Cases whose support contributions are compared, at most."""


class Pictures:
    """The pictures of cases and their linearised networks, one of which is kept.

    `asked`: cases whose support contributions will be asked; they are traced together with whatever is asked first.
    """

    def __init__(self, model: Model, double: SIC, asked: Collection[int] = ()) -> None:
        self.model, self.double, self.asked = model, double, asked
        self._references: dict[int, Reference] = {}
        self._last: int | None = None

    def picture(self, case: int) -> Tensor:
        """The kept picture of a case in double precision, 3×H×W."""
        pixels = self.model.supports[case].image
        assert pixels is not None
        picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return picture.to(self.model.sic.support_vectors.device, torch.float64) / 255

    def reference(self, case: int) -> Reference:
        """What it knows stays; the network itself is that of the picture that was asked for last."""
        if self._last is not None and self._last != case:
            self._references[self._last].release()
        self._last = case
        if case not in self._references:
            self._references[case] = Reference(self.double, self.picture(case))
            if case in self.asked:
                self._references[case].known(similarity, case)
        return self._references[case]


def two_best(model: Model, images: Tensor) -> list[list[str]]:
    """The classes with the highest scores of each image."""
    with torch.no_grad():
        best = model.classifier(images).argsort(dim=1, descending=True)[:, :2]
    return [[model.classes[label] for label in row] for row in best.tolist()]


class Returned:
    """What users get for images N×3×S×S: explanations of the answer and another class, asked in every way. The other
    class is the next best one, whose matches are checked, too, and for every second image a random one."""

    def __init__(self, model: Model, images: Tensor, generator: torch.Generator) -> None:
        self.model, self.images = model, images
        both = two_best(model, images)
        for names in both[1::2]:
            others = [name for name in model.classes if name != names[0]]
            if others:
                names[1] = others[int(torch.randint(len(others), (1,), generator=generator))]
        best = [names[:1] for names in both]
        self.found: list[list[tuple[str, Explanation]]] = [[] for _ in images]
        """For each image its explanations, and the way that each was asked for."""
        for own, image, names, one in zip(self.found, images, both, best, strict=True):
            own.append(("one image, its answer", model.explain(image)))
            own.append(("one image, one class", model.explain(image, one)))
            own.append(("one image, several classes", model.explain(image, names, specific=True)))
        for way, asked in (("several images, one class", best), ("several images, several classes", both)):
            for own, explanation in zip(self.found, model.explain_many(list(images), asked), strict=True):
                own.append((way, explanation))
        self.labels = [model.classes.index(name) for name in both[0]]
        self.plain = [found for _, found in model.contributions(list(images), both[0])]
        """Contributions of each image to the classes `labels`, without weights."""
        self._shown: dict[int, list[SupportEvidence]] = {}
        for own in self.found:
            for _, case in (each for _, explanation in own for each in _shown_cases(explanation)):
                self._shown.setdefault(case.index, []).append(case)
        self.chosen = [index for index in self._shown if model.supports[index].image is not None][:PICTURES]
        """The cases whose support contributions are compared."""

    def maps(self, place: int, reference: Reference) -> Check:
        """Of the image at one place, whose linearised network is `reference`."""
        items = [
            reference.compared("without weights", part(self.plain[place], n), *reference.known(score, label))
            for n, label in enumerate(self.labels)
        ]
        for way, explanation in self.found[place]:
            if not torch.equal(explanation.image, self.images[place]):
                items.append(Compared(way, math.inf))
            for one in explanation.classes:
                label = self.model.classes.index(one.name)
                known = reference.known(score, label)
                items.append(reference.compared(way, one.contributions, *known))
                items.append(reference.value(way, one.logit, *known))
                if one.specific is not None:
                    above = reference.known(score_above_average, label)
                    # Where classes hardly differ, the rounding of their scores is a large part of the difference.
                    share = float(amount(above[1].maps) / amount(known[1].maps))
                    if share > ROUNDING:
                        items.append(reference.compared("specific to a class", one.specific, *above, share=share))
        return as_check(
            "maps as returned",
            "maps, weights and constants that users get are those of the network",
            items,
            ("a uniform map", reference.flat(score)),
        )

    def cases(self, place: int, reference: Reference) -> Check:
        """As `maps`, for single cases."""
        items = []
        shown = [each for _, explanation in self.found[place] for each in _shown_cases(explanation)]
        asked = sorted({case.index for _, case in shown})
        for way, case in shown:
            quantity, right = reference.known(evidence, case.index)
            items.append(reference.value(way, case.evidence, quantity, right))
            if case.evidence_map is not None:
                whole = Contributions(
                    case.evidence_map, right.weights[:0], case.evidence_map.new_tensor(case.evidence), right.constant
                )
                items.append(reference.compared(way, whole, quantity, right))
        if asked:
            image = self.images[place][None]
            again = self.model.sic.explain_evidence(image, torch.tensor([asked], device=image.device))
            for n, index in enumerate(asked):
                known = reference.known(evidence, index)
                items.append(reference.compared("asked of the classifier", part(again, (0, n)), *known))
        return as_check(
            "cases as returned",
            "maps of single cases are those of the network",
            items,
            ("a uniform map", reference.flat(evidence)),
        )

    def supports(self, pictures: "Pictures") -> Check:
        """Of the cases that are shown; one alone, then the others together."""
        shown, chosen = self._shown, self.chosen
        alone = copy.copy(self.model)
        alone.__dict__.pop("_own", None)  # what it knows already
        asked = {**alone.support_contributions(chosen[:1]), **alone.support_contributions(chosen[1:])}
        items, wrong = [], 0.0
        for index in chosen:
            picture = pictures.picture(index)
            reference = pictures.reference(index)
            quantity, right = reference.known(similarity, index)
            items.append(reference.compared("support contributions", asked[index], quantity, right))
            for case in shown[index]:
                if case.own is None or case.image is None or _difference(case.image, picture) > ROUNDING:
                    items.append(Compared("in explanations", math.inf))
                else:
                    items.append(reference.compared("in explanations", case.own, quantity, right))
            wrong = max(wrong, flat(right) if shows(right) else 0.0)
        return as_check(
            "support contributions",
            "contributions to a case's own picture are those of the network",
            items,
            ("a uniform map", wrong),
        )


def _shown_cases(explanation: Explanation) -> Iterator[tuple[str, SupportEvidence]]:
    for place, one in enumerate(explanation.classes):
        for case in one.cases[:CASES]:
            yield "cases of the first class" if place == 0 else "cases of another class", case


def _difference(one: Tensor, other: Tensor) -> float:
    return largest((one - other).abs()) if one.shape == other.shape else math.inf
