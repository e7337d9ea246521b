"""A plain-language reading of an explanation."""

from torch import Tensor

from sic.explain.contributions import negative_share
from sic.explain.explanation import ClassExplanation, Explanation

TOO_MUCH_NEGATIVE = 0.2
"""Share of negative mass in a support's own map above which the reader is warned."""


def percent(probability: float) -> str:
    """For people: no 0 % and no 100 % that are not exactly that.

    >>> percent(0.974), percent(0.9991), percent(0.002)
    ('97 %', 'over 99 %', 'under 1 %')
    """
    if 0 < probability < 0.005:
        return "under 1 %"
    if 0.995 <= probability < 1:
        return "over 99 %"
    return f"{probability:.0%}".replace("%", " %")


def answer(explanation: Explanation) -> str:
    """What the model says, in a few words."""
    if not explanation.similar_case:
        probability = explanation.probabilities[explanation.nearest]
        return f"no similar case (nearest: {explanation.nearest}, {percent(probability)})"
    return " and ".join(f"{name} ({percent(explanation.probabilities[name])})" for name in explanation.labels)


def read(explanation: Explanation) -> str:
    """One paragraph."""
    if explanation.similar_case:
        sentences = [f"The model answers {answer(explanation)}."]
    else:
        probability = percent(explanation.probabilities[explanation.nearest])
        sentences = [
            "No similar case: no class reaches a probability of 50 %, so this image looks like none of the training "
            f"images that the model compares with. The nearest class is {explanation.nearest} at {probability}."
        ]
    for explained in explanation.classes:
        sentences += _class_sentences(explained, explanation.bias)
    return " ".join([*sentences, _checked(explanation.residual)])


def _checked(residual: float) -> str:
    """Whether the parts add up; a residual of 3e-7 is within 0.000001."""
    digits = next((digits for digits in range(7, 2, -1) if residual <= 10.0**-digits), None)
    if digits is None:
        return f"Warning: pixels and bias do not add up to the score (they miss it by {residual:.2g})."
    return f"Checked: pixels and bias add up to the score to within {10.0**-digits:.{digits}f}."


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
    height, width = maps.shape
    mass = positive / total
    rows, columns = mass.sum(1), mass.sum(0)
    y = sum(i * m for i, m in enumerate(rows.tolist())) / max(height - 1, 1)
    x = sum(i * m for i, m in enumerate(columns.tolist())) / max(width - 1, 1)
    vertical = "upper " if y < 0.4 else "lower " if y > 0.6 else ""
    horizontal = "left" if x < 0.4 else "right" if x > 0.6 else ""
    place = (vertical + horizontal).strip() or "middle"
    place = f"{place} part" if place in ("upper", "lower") else place
    densest = mass.flatten().sort(descending=True).values
    share = densest[: max(1, len(densest) // 10)].sum().item()
    against = negative_share(maps).item()
    sentence = (
        f"Most of the evidence comes from the {place} of the image: a tenth of the pixels gives {percent(share)} of it"
    )
    return sentence + (f", and {percent(against)} of all contributions speak against it." if against >= 0.005 else ".")
