"""An explanation in words."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sic.explain.contributions import negative_share
from sic.explain.explanation import ClassExplanation, Explanation, SupportEvidence
from sic.explain.render import VISIBLE, decimals, outside_pixels, points
from sic.methods import METHODS, Classifier, Contributions

HARDLY_ANY = 0.1
"""Evidence that is too small to be located."""
GATHERED = 0.6
"""Share of the evidence that a region must hold to be named."""
ONE_CASE = 0.98
"""Likeness between all cases of a class from which on they count as one."""
TOO_MUCH_NEGATIVE = 0.2
"""Share of negative mass in a support contribution that gives a warning."""


def percent(probability: float) -> str:
    """A probability, rounded, but never to 0 %, 100 % or (from below) 50 %.

    >>> percent(0.974), percent(0.9991), percent(0.002), percent(0.497)
    ('97 %', 'over 99 %', 'under 1 %', 'just under 50 %')
    """
    if 0.495 <= probability < 0.5:
        return "just under 50 %"
    if 0 < probability < 0.005:
        return "under 1 %"
    if 0.995 <= probability < 1:
        return "over 99 %"
    return f"{probability:.0%}".replace("%", " %")


def answer(explanation: Explanation) -> str:
    """The prediction in a few words."""
    if not explanation.similar_case:
        probability = explanation.probabilities[explanation.nearest]
        nothing = "no similar case" if METHODS[explanation.method].by_similarity else "no class reaches 50 %"
        return f"{nothing} (nearest: {explanation.nearest}, {percent(probability)})"
    return " and ".join(f"{name} ({percent(explanation.probabilities[name])})" for name in explanation.labels)


def read(explanation: Explanation) -> str:
    """One paragraph."""
    if explanation.similar_case:
        sentences = [f"The model predicts {answer(explanation)}."]
        others = [name for name in explanation.found if name not in explanation.labels]
        if others:
            named = " and ".join(f"{name} ({percent(explanation.probabilities[name])})" for name in others)
            sentences.append(f"Also above 50 %: {named}.")
    elif not METHODS[explanation.method].by_similarity:
        sentences = [f"The model is not sure: {answer(explanation)}."]
    else:
        probability = percent(explanation.probabilities[explanation.nearest])
        sentences = [
            "No similar case: no class reaches a probability of 50 %, so the image is not similar enough to any of the "
            f"training images that the model compares it with. The nearest class is {explanation.nearest} "
            f"({probability})."
        ]
    for explained in explanation.classes:
        if METHODS[explanation.method].by_similarity:
            sentences += _class_sentences(explanation, explained)
        else:
            sentences += [*_other_method(explained, METHODS[explanation.method]), _where(explained.contributions.maps)]
        if explained.specific is not None:
            sentences.append(_specific(explained, explained.specific))
    if explanation.calibration.images:
        sentences.append(_probability(explanation))
    sentences += _competition(explanation)
    sentences += _contrast_sentences(explanation)
    complete = METHODS[explanation.method].complete
    return " ".join([*sentences, _checked(explanation) if complete else _missing(explanation.residual)])


def _specific(explained: ClassExplanation, contributions: Contributions) -> str:
    """What the pictures show if they are `specific`."""
    more = contributions.value.item()
    return (
        f"The pictures show what is specific to {explained.name}: a red pixel adds more to its score than to the mean "
        f"score of all classes ({decimals(explained.logit - more)}), a blue one less; together, all pixels make the "
        f"difference of {decimals(more)}."
    )


def _probability(explanation: Explanation) -> str:
    """How the score of the first class becomes a probability."""
    nearest = explanation.classes[0].name == explanation.nearest
    formula = explanation.calibration.formula("ce" if explanation.exclusive else "bce", 2, nearest)
    whose = "A score" if nearest else "The score of a class that is not the nearest one"
    return f"{whose} becomes a probability by {formula.replace('logit', 'score')}, which was fitted on held-out images."


def within(residual: float) -> str | None:
    """A decimal bound for a residual; None if it is above 0.001.

    >>> within(3e-7), within(0.2)
    ('0.000001', None)
    """
    digits = next((digits for digits in range(7, 2, -1) if residual <= 10.0**-digits), None)
    return None if digits is None else f"{10.0**-digits:.{digits}f}"


def _checked(explanation: Explanation) -> str:
    """Whether the parts add up to the score."""
    apart = any(abs(outside_pixels(explanation, explained)) >= VISIBLE for explained in explanation.classes)
    parts = "pixels, positions and bias" if apart else "pixels and bias"
    residual = explanation.residual
    error = within(residual)
    if error is None:
        return f"Warning: {parts} do not add up to the score (residual {residual:.2g})."
    return f"The sum (not the answer) was checked: {parts} add up to the score to within {error}."


def _missing(residual: float) -> str:
    """For methods whose attributions need not add up."""
    return (
        f"This attribution is an approximation: its pixels do not add up to the score (residual {residual:.2g}), and "
        "nothing guarantees that it shows what the model used."
    )


def _other_method(explained: ClassExplanation, kind: type[Classifier]) -> list[str]:
    """The score of a class and the case that contributes most, if the method has cases."""
    sentences = [f"The {kind.score} of {explained.name} is {decimals(explained.logit)}."]
    if explained.cases:
        best = explained.cases[0]
        adds = f"it adds {decimals(best.evidence)} to {kind.evidence_for}"
        sentences.append(f"The {kind.support_noun} {_named(best)} contributes most: {adds}.")
    return sentences


def _competition(explanation: Explanation) -> list[str]:
    """How probabilities follow from scores, if these compete."""
    others = {name: p for name, p in explanation.probabilities.items() if name != explanation.nearest}
    if not explanation.exclusive or not others:
        return []
    second = max(others, key=lambda name: others[name])
    return [
        "Probabilities compare the scores of all classes (softmax), so no score alone is a yes: after "
        f"{explanation.nearest} comes {second} ({percent(others[second])})."
    ]


def _named(case: SupportEvidence) -> str:
    return f"{case.support.source} ({case.name})"


def _class_sentences(explanation: Explanation, explained: ClassExplanation) -> list[str]:
    ranked = sorted(explained.cases, key=lambda case: -case.evidence)
    parts = " + ".join(decimals(case.evidence) for case in ranked)
    images = "1 training image" if len(ranked) == 1 else f"{len(ranked)} training images"
    sentences = [
        f"The score for {explained.name} is {decimals(explained.logit)}: evidence of {parts} from the similarity to "
        f"{images}, minus {decimals(-explanation.bias)}, which is the same for every class.",
        f"The most similar {'of them ' if len(ranked) > 1 else ''}is {_named(ranked[0])}.",
        *_likeness_sentences(ranked, explained.alike),
        *([sentence] if (sentence := match_sentence(explained)) else []),
        _where(explained.contributions.maps),
    ]
    apart = outside_pixels(explanation, explained)
    if abs(apart) >= VISIBLE:
        share = percent(abs(apart) / max(sum(case.evidence for case in ranked), 1e-12))
        sentences.append(
            f"{decimals(apart)} of the evidence ({share}) comes from the transformer's positional encoding, not from "
            "pixels."
        )
    for case in ranked:
        negative = 0.0 if case.own is None else negative_share(case.own.maps).item()
        if negative > TOO_MUCH_NEGATIVE:
            sentences.append(
                f"Caution: {percent(negative)} of the contributions to {_named(case)} are negative, so its picture "
                "shows only a part of what counts."
            )
    return sentences


def _likeness_sentences(ranked: list[SupportEvidence], alike: float | None) -> list[str]:
    """What evidence is made of, and whether the cases count as one."""
    likeness = [percent(case.likeness) for case in ranked if case.likeness is not None]
    sentences = []
    if likeness and ranked[0].strength:
        sentences.append(
            f"Evidence is strength times likeness: the strength of this image is {decimals(ranked[0].strength)}, and "
            f"its likeness to the case{'s' if len(likeness) > 1 else ''} {_listed(likeness)}."
        )
    if alike is not None and alike >= ONE_CASE:
        sentences.append(
            f"To the model these {len(ranked)} training images are nearly the same ({percent(alike)} alike): they "
            "count as one case."
        )
    return sentences


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _contrast_sentences(explanation: Explanation) -> list[str]:
    """Why the first class and not the other, region by region."""
    if explanation.versus is None:
        return []
    first, other = explanation.classes[:2]
    parts = [
        f"{f'region {each.number}' if each.number else 'the rest'} {points(each.value)} "
        f"({decimals(each.evidence)} against {decimals(each.other)})"
        for each in explanation.contrast
        if each.number or max(abs(each.evidence), abs(each.other)) >= VISIBLE
    ]
    instead = [f"{first.name} is the best class itself, so it is compared with the next best."]
    return [
        *(instead if explanation.next_best else []),
        f"{first.name} against {other.name}: the scores differ by {points(first.logit - other.logit)}"
        f"{f', made of {_listed(parts)}' if parts else ''}.",
    ]


def match_sentence(explained: ClassExplanation) -> str | None:
    """The regions of the image that match regions of the cases, strongest first, with their shares of the evidence.

    None if matches were not requested, or if there is hardly any evidence.
    """
    matches = explained.matches
    if matches is None or sum(part.evidence for part in matches.parts) < HARDLY_ANY:
        return None
    if all(case.image is None for case in explained.cases):
        return "No regions can be matched, because the model does not keep the images of its cases."
    if not matches.groups:
        return "No region of the image has a counterpart in the training images."
    first, *others = sorted(matches.groups, key=lambda match: -match.share)
    sentence = f"The strongest match is region {first.number} with {percent(first.share)} of the evidence"
    if others:
        sentence += "; then " + ", ".join(f"region {each.number} with {percent(each.share)}" for each in others)
    if matches.rest.share >= VISIBLE:
        sentence += f"; {percent(matches.rest.share)} has no match"
    return sentence + "."


def _where(maps: Tensor) -> str:
    """Where the positive contributions are, how concentrated they are, and how many contributions are negative."""
    positive = maps.clamp(min=0)
    total = positive.sum().item()
    if total <= 0:
        return "No part of the image is evidence for it."
    if total < HARDLY_ANY:
        return "There is almost no evidence for it in the image."
    height, width = maps.shape
    mass = positive / total
    rows, columns = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    rows, columns = rows.to(mass), columns.to(mass)
    vertical, here_y = _third((mass * rows).sum().item(), rows, "upper", "lower")
    horizontal, here_x = _third((mass * columns).sum().item(), columns, "left", "right")
    place = f"{vertical} {horizontal}".strip() or "middle"
    place = f"{place} part" if place in ("upper", "lower") else place
    if not vertical and horizontal:
        here_y = torch.ones_like(here_y)
    if not horizontal and vertical:
        here_x = torch.ones_like(here_x)
    source = f"the {place} of the image" if mass[here_y & here_x].sum() >= GATHERED else "several places in the image"
    densest = mass.flatten().sort(descending=True).values
    share = densest[: max(1, len(densest) // 10)].sum().item()
    against = negative_share(maps).item()
    sentence = f"Most of the evidence comes from {source}: a tenth of the pixels contributes {percent(share)} of it"
    return sentence + (f", and {percent(against)} of all contributions are negative." if against >= VISIBLE else ".")


def _third(mean: float, position: Tensor, low: str, high: str) -> tuple[str, Tensor]:
    """The side that a mean position (0 to 1) is on and the pixels there; without a side, the middle half."""
    if mean < 0.4:
        return low, position < 0.5
    if mean > 0.6:
        return high, position > 0.5
    return "", (position >= 0.25) & (position <= 0.75)
