"""A plain-language reading of an explanation."""

from torch import Tensor

from sic.explain.contributions import negative_share
from sic.explain.explanation import ClassExplanation, Explanation

TOO_MUCH_NEGATIVE = 0.2
"""Share of negative mass in a support's own map above which the reader is warned."""


def read(explanation: Explanation) -> str:
    """One paragraph."""
    sentences = []
    first = explanation.classes[0]
    if not explanation.similar_case:
        sentences.append(
            f"No similar case: no class reaches a probability of 50 %, so this image looks like none of the training "
            f"images that the model compares with. The nearest class is {first.name} at {first.probability:.0%}; "
            "the following shows what little speaks for it."
        )
    elif explanation.labels:
        answers = " and ".join(
            f"{c.name} ({c.probability:.0%})" for c in explanation.classes if c.name in explanation.labels
        )
        sentences.append(f"The model answers {answers}.")
    for explained in explanation.classes:
        sentences += _class_sentences(explained, explanation.bias)
    sentences.append(f"Pixels, evidence and bias add up to the score with an error of {explanation.residual:.0e}.")
    return " ".join(sentences)


def _class_sentences(explained: ClassExplanation, bias: float) -> list[str]:
    ranked = sorted(explained.cases, key=lambda case: -case.evidence)
    parts = " + ".join(f"{case.evidence:.2f}" for case in ranked)
    sentences = [
        f"The score for {explained.name} is {explained.logit:.2f}: evidence of {parts} from its similarity to "
        f"{len(ranked)} training images, less a fixed {-bias:.2f} that every class has to overcome.",
        f"The most similar of them is {ranked[0].support.source}.",
        _where(explained.contributions.maps),
    ]
    for case in ranked:
        if case.own is not None and negative_share(case.own.maps).item() > TOO_MUCH_NEGATIVE:
            sentences.append(
                f"Caution: {negative_share(case.own.maps).item():.0%} of what {case.support.source} is made of counts "
                "negatively; a model trained with a larger temperature would explain itself better."
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
        f"Most of the evidence comes from the {place} of the image: a tenth of the pixels gives {share:.0%} of it"
    )
    return sentence + (f", and {against:.0%} of all contributions speak against it." if against >= 0.005 else ".")
