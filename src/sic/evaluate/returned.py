"""What `Model` returns, in the precision and the ways that users get it, against the linearised network."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sic.evaluate.axioms import Check, largest, some_classes
from sic.evaluate.reference import (
    ROUNDING,
    Compared,
    Reference,
    evidence,
    flat,
    merged,
    part,
    score,
    shows,
    similarity,
    worst_by_way,
)
from sic.explain import Explanation, SupportEvidence
from sic.methods import SIC, Classifier, Contributions
from sic.model import Model

CASES = 6
"""Cases of a class whose maps are compared, at most."""
PICTURES = 16
"""Cases whose support contributions are compared, at most."""

Found = list[list[tuple[str, Explanation]]]
"""For each image its explanations, and the way that each was asked for."""


def explanations(model: Model, images: Tensor, generator: torch.Generator) -> Found:
    """Explain the answer and another class of each image: one image or several at once, one class or several."""
    picked = some_classes(model.classifier, images, generator)[:, :2]
    both = [[model.classes[label] for label in row] for row in picked.tolist()]
    best = [names[:1] for names in both]
    found: Found = [[] for _ in images]
    for own, image, names, one in zip(found, images, both, best, strict=True):
        own.append(("one image, its answer", model.explain(image)))
        own.append(("one image, one class", model.explain(image, one)))
        own.append(("one image, several classes", model.explain(image, names)))
    for way, asked in (("several images, one class", best), ("several images, several classes", both)):
        for own, explanation in zip(found, model.explain_many(list(images), asked), strict=True):
            own.append((way, explanation))
    return found


def returned(model: Model, double: Classifier, images: Tensor, generator: torch.Generator) -> list[Check]:
    """Compare what `Model` returns for images N×3×S×S with the linearised network of `double`."""
    found = explanations(model, images, generator)
    names = list(dict.fromkeys(one.name for one in found[0][2][1].classes))
    plain = [contributions for _, contributions in model.contributions(list(images), names)]
    labels = [model.classes.index(name) for name in names]
    checks = [_maps(model, double, images, found, plain, labels)]
    if isinstance(double, SIC):
        checks += [_cases(model, double, images, found), _supports(model, double, found)]
    return checks


def _check(name: str, statement: str, found: Sequence[dict[str, float]], number: int, wrong: float) -> Check:
    worst = merged(found)
    return Check(
        name,
        statement,
        max(worst.values(), default=0.0),
        ROUNDING,
        number,
        ("a uniform map", wrong),
        worst,
        decided=bool(worst),
    )


def _maps(
    model: Model,
    double: Classifier,
    images: Tensor,
    found: Found,
    plain: Sequence[Contributions],
    labels: Sequence[int],
) -> Check:
    """`plain`: contributions of each image to the classes `labels`, without weights."""
    worst, number, wrong = [], 0, 0.0
    for image, own, without in zip(images, found, plain, strict=True):
        reference = Reference(double, image)
        items = [
            reference.compared("without weights", part(without, place), *reference.known(score, label))
            for place, label in enumerate(labels)
        ]
        for way, explanation in own:
            if not torch.equal(explanation.image, image):
                items.append(Compared(way, math.inf))
            for one in explanation.classes:
                known = reference.known(score, model.classes.index(one.name))
                items.append(reference.compared(way, one.contributions, *known))
                items.append(reference.value(way, one.logit, *known))
        worst.append(worst_by_way(items))
        wrong = max(wrong, reference.flat)
        number += len(items)
    return _check(
        "maps as returned", "maps, weights and constants that users get are those of the network", worst, number, wrong
    )


def _shown_cases(explanation: Explanation) -> Iterator[tuple[str, SupportEvidence]]:
    for place, one in enumerate(explanation.classes):
        for case in one.cases[:CASES]:
            yield "cases of the first class" if place == 0 else "cases of another class", case


def _cases(model: Model, double: SIC, images: Tensor, found: Found) -> Check:
    worst, number, wrong = [], 0, 0.0
    for image, own in zip(images, found, strict=True):
        reference = Reference(double, image)
        items = []
        shown = [each for _, explanation in own for each in _shown_cases(explanation)]
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
            again = model.sic.explain_evidence(image[None], torch.tensor([asked], device=image.device))
            for place, index in enumerate(asked):
                known = reference.known(evidence, index)
                items.append(reference.compared("asked of the classifier", part(again, (0, place)), *known))
        worst.append(worst_by_way(items))
        wrong = max(wrong, reference.flat)
        number += len(items)
    return _check("cases as returned", "maps of single cases are those of the network", worst, number, wrong)


def picture_of(model: Model, index: int) -> Tensor:
    """The kept picture of a case in double precision, 3×H×W."""
    pixels = model.supports[index].image
    assert pixels is not None
    picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    return picture.to(model.sic.support_vectors.device, torch.float64) / 255


def _supports(model: Model, double: SIC, found: Found) -> Check:
    """Of the cases that are shown; one alone, then the others together."""
    shown: dict[int, list[SupportEvidence]] = {}
    for own in found:
        for _, explanation in own:
            for _, case in _shown_cases(explanation):
                shown.setdefault(case.index, []).append(case)
    chosen = [index for index in shown if model.supports[index].image is not None][:PICTURES]
    alone = copy.copy(model)
    alone.__dict__.pop("_own", None)  # what it knows already
    asked = {**alone.support_contributions(chosen[:1]), **alone.support_contributions(chosen[1:])}
    worst, number, wrong = [], 0, 0.0
    for index in chosen:
        picture = picture_of(model, index)
        reference, quantity = Reference(double, picture), similarity(double, index)
        right = reference.of(quantity)
        items = [reference.compared("support contributions", asked[index], quantity, right)]
        for case in shown[index]:
            if case.own is None or case.image is None or _difference(case.image, picture) > ROUNDING:
                items.append(Compared("in explanations", math.inf))
            else:
                items.append(reference.compared("in explanations", case.own, quantity, right))
        worst.append(worst_by_way(items))
        wrong = max(wrong, flat(right) if shows(right) else 0.0)
        number += len(items)
    return _check(
        "support contributions",
        "contributions to a case's own picture are those of the network",
        worst,
        number,
        wrong,
    )


def _difference(one: Tensor, other: Tensor) -> float:
    return largest((one - other).abs()) if one.shape == other.shape else math.inf
