"""A plain-language reading of an explanation."""

import torch
from torch import Tensor

from sic.explain.contributions import negative_share
from sic.explain.explanation import ClassExplanation, Explanation
from sic.methods import METHODS

CASES = {"nwhead": ("training image", "the probability"), "protopnet": ("part of a training image from", "the score")}
"""What the cases of other methods are, and what they add to."""
HARDLY_ANY = 0.1
"""Evidence below which it makes no sense to ask where it comes from."""
GATHERED = 0.6
"""Share of the evidence that must lie in a place for it to be named."""
TOO_MUCH_NEGATIVE = 0.2
"""Share of negative mass in a support's own map above which the reader is warned."""


def percent(probability: float) -> str:
    """For people: no 0 % and no 100 % that are not exactly that, and no 50 % that is not yet a yes.

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
    """What the model says, in a few words."""
    if not explanation.similar_case:
        probability = explanation.probabilities[explanation.nearest]
        nothing = "no similar case" if explanation.method == "sic" else "no class reaches 50 %"
        return f"{nothing} (nearest: {explanation.nearest}, {percent(probability)})"
    return " and ".join(f"{name} ({percent(explanation.probabilities[name])})" for name in explanation.labels)


def read(explanation: Explanation) -> str:
    """One paragraph."""
    if explanation.similar_case:
        sentences = [f"The model answers {answer(explanation)}."]
        others = [n for n, p in explanation.probabilities.items() if p >= 0.5 and n not in explanation.labels]
        if others:
            named = " and ".join(f"{name} ({percent(explanation.probabilities[name])})" for name in others)
            sentences.append(f"Beside it, {named} would be a yes, too.")
    elif explanation.method != "sic":
        sentences = [f"The model is not sure: {answer(explanation)}."]
    else:
        probability = percent(explanation.probabilities[explanation.nearest])
        sentences = [
            "No similar case: no class reaches a probability of 50 %, so this image looks like none of the training "
            f"images that the model compares with. The nearest class is {explanation.nearest} at {probability}."
        ]
    for explained in explanation.classes:
        if explanation.method == "sic":
            sentences += _class_sentences(explained, explanation.bias)
        else:
            sentences += [*_other_method(explained, explanation.method), _where(explained.contributions.maps)]
    complete = METHODS[explanation.method].complete
    return " ".join([*sentences, _checked(explanation) if complete else _missing(explanation.residual)])


def within(residual: float) -> str | None:
    """The decimal that a residual stays below, None from 0.001 on.

    >>> within(3e-7), within(0.2)
    ('0.000001', None)
    """
    digits = next((digits for digits in range(7, 2, -1) if residual <= 10.0**-digits), None)
    return None if digits is None else f"{10.0**-digits:.{digits}f}"


def _checked(explanation: Explanation) -> str:
    """Whether the parts add up."""
    apart = any(abs(_elsewhere(explained, explanation.bias)) >= VISIBLE for explained in explanation.classes)
    parts = "pixels, positions and bias" if apart else "pixels and bias"
    residual = explanation.residual
    error = within(residual)
    if error is None:
        return f"Warning: {parts} do not add up to the score (they miss it by {residual:.2g})."
    return f"The arithmetic (not the answer) was checked: {parts} add up to the score to within {error}."


def _missing(residual: float) -> str:
    """Of methods that promise no sum."""
    return (
        f"This picture is an approximation: its pixels miss the score by {residual:.2g}, and nothing guarantees that "
        "they show what the model used."
    )


def _other_method(explained: ClassExplanation, method: str) -> list[str]:
    """The score of a class, and which cases it comes from where there are any."""
    score = "log-probability" if method == "nwhead" else "score"
    sentences = [f"The {score} of {explained.name} is {explained.logit:.2f}."]
    if explained.cases:
        best = explained.cases[0]
        what, adds = CASES[method]
        sentences.append(f"The {what} {best.support.source} speaks for it most: it adds {best.evidence:.2f} to {adds}.")
    return sentences


VISIBLE = 0.005
"""What two decimals show."""


def _elsewhere(explained: ClassExplanation, bias: float) -> float:
    """The part of the evidence that no pixel has: a transformer's positional code."""
    return explained.contributions.constant.item() - bias


def _class_sentences(explained: ClassExplanation, bias: float) -> list[str]:
    ranked = sorted(explained.cases, key=lambda case: -case.evidence)
    parts = " + ".join(f"{case.evidence:.2f}" for case in ranked)
    images = "1 training image" if len(ranked) == 1 else f"{len(ranked)} training images"
    sentences = [
        f"The score for {explained.name} is {explained.logit:.2f}: evidence of {parts} from its similarity to "
        f"{images}, less a fixed {-bias:.2f} that every class has to overcome.",
        f"The most similar {'of them ' if len(ranked) > 1 else ''}is {ranked[0].support.source}.",
        _where(explained.contributions.maps),
    ]
    elsewhere = _elsewhere(explained, bias)
    if abs(elsewhere) >= VISIBLE:
        share = percent(abs(elsewhere) / max(sum(case.evidence for case in ranked), 1e-12))
        sentences.append(
            f"{elsewhere:.2f} of the evidence ({share}) has no pixel: it comes from the transformer's positions."
        )
    for case in ranked:
        negative = 0.0 if case.own is None else negative_share(case.own.maps).item()
        if negative > TOO_MUCH_NEGATIVE:
            sentences.append(
                f"Caution: {percent(negative)} of what {case.support.source} is made of counts negatively; "
                "a model trained with a larger temperature would explain itself better."
            )
    return sentences


def _where(maps: Tensor) -> str:
    """Where the positive contributions lie, how concentrated they are, and how much speaks against."""
    positive = maps.clamp(min=0)
    total = positive.sum().item()
    if total <= 0:
        return "No part of the image speaks for it."
    if total < HARDLY_ANY:
        return "There is hardly any evidence for it anywhere in the image."
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
    sentence = f"Most of the evidence comes from {source}: a tenth of the pixels gives {percent(share)} of it"
    return sentence + (f", and {percent(against)} of all contributions speak against it." if against >= 0.005 else ".")


def _third(mean: float, position: Tensor, low: str, high: str) -> tuple[str, Tensor]:
    """The name of the side that a mean position (0 to 1) lies on, and which pixels are there; or the middle half."""
    if mean < 0.4:
        return low, position < 0.5
    if mean > 0.6:
        return high, position > 0.5
    return "", (position >= 0.25) & (position <= 0.75)
