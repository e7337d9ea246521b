"""What every rendering of an explanation shows: names, the sum behind a score, the verdict, and the JSON shape.

The figure, the report, the shared page, the viewer and the command line all draw from here.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from sic.explain.explanation import ClassExplanation, Explanation, SupportEvidence
from sic.explain.matches import Matches, Region
from sic.explain.picture import colour_picture, png
from sic.methods import METHODS, Contributions

VISIBLE = 0.005
"""The smallest value that two decimals show."""


@dataclass(frozen=True)
class Step:
    """One bar of the sum that leads to a score."""

    label: str
    value: float
    start: float
    """Where the bar begins: the sum of the steps before it."""
    kind: Literal["start", "for", "against", "score"]
    case: SupportEvidence | None = None

    @property
    def low(self) -> float:
        """The left end of the bar."""
        return min(self.start, self.start + self.value)

    @property
    def high(self) -> float:
        """The right end of the bar."""
        return max(self.start, self.start + self.value)


def steps(explanation: Explanation, explained: ClassExplanation) -> list[Step]:
    """The sum behind a score, and the score as the last step; the score alone if the method has no such sum."""
    result: list[Step] = []
    total = 0.0
    for label, value, case in _summands(explanation, explained):
        kind: Literal["start", "for", "against"] = "for" if value >= 0 else "against"
        result.append(Step(label, value, total, kind if result else "start", case))
        total += value
    return [*result, Step("score", explained.logit, 0.0, "score")]


def _summands(
    explanation: Explanation, explained: ClassExplanation
) -> Sequence[tuple[str, float, SupportEvidence | None]]:
    cases = [(f"like {case.name}", case.evidence, case) for case in explained.cases]
    kind = METHODS[explanation.method]
    if kind.besides_supports is not None:
        others = explained.logit - sum(case.evidence for case in explained.cases)
        return [(kind.besides_supports, explanation.bias if kind.complete else others, None), *cases]
    if kind.complete:
        contributions = explained.contributions
        return [
            ("without pixels", contributions.constant.item(), None),
            ("pixels", contributions.maps.sum().item(), None),
        ]
    return []


def span(bars: Sequence[Step]) -> tuple[float, float]:
    """The lowest and the highest value that an axis under the bars must show; 0 is always inside."""
    return min(0.0, *(bar.low for bar in bars)), max(0.5, *(bar.high for bar in bars))


def decimals(value: float) -> str:
    """A number with two decimals and a typographic minus."""
    return f"{value:.2f}".replace("-", "−")


def points(value: float) -> str:
    """The same with a plus, if it is not negative.

    >>> decimals(-3.886), points(-3.886), points(4)
    ('−3.89', '−3.89', '+4.00')
    """
    return f"{value:+.2f}".replace("-", "−")


def verdict(explanation: Explanation, explained: ClassExplanation) -> str:
    """Whether a class is a yes, and by which limit."""
    # With a softmax, no score has a probability of 50 % whatever the others are.
    exact = explanation.limit(explained)
    by_score = METHODS[explanation.method].by_similarity and explained.yes == (explained.logit >= exact)
    rounded = round(exact, 2)
    score = "0" if rounded == 0 else decimals(rounded)
    what, limit = ("", score) if by_score else ("probability ", "50 %")
    return f"{what}above {limit}: yes" if explained.yes else f"{what}below {limit}: no"


def outside_pixels(explanation: Explanation, explained: ClassExplanation) -> float:
    """The part of the evidence that belongs to no pixel: a transformer's positional code."""
    return explained.contributions.constant.item() - explanation.bias


def as_json(explanation: Explanation, *, maps: bool = False, pictures: bool = False) -> dict[str, Any]:
    """An explanation as JSON, for `sic explain --json` and the HTTP API (`sic.serve.schemas` documents the fields).

    Args:
        explanation: What to write.
        maps: Include the raw contribution maps: base64 of little-endian float32, row by row.
        pictures: Include the image and the colour pictures: base64 of PNG files.
    """
    image = {"image": _text(png(explanation.image))} if pictures else {}
    return {
        "name": explanation.title,
        "labels": explanation.labels,
        "similar_case": explanation.similar_case,
        "promised": explanation.promised,
        "nearest": explanation.nearest,
        "probabilities": explanation.probabilities,
        "bias": explanation.bias,
        "truth": explanation.truth,
        "text": explanation.text,
        "residual": explanation.residual,
        "size": list(explanation.image.shape[-2:]),
        **({"contrast": _contrast_json(explanation)} if explanation.versus is not None else {}),
        **image,
        "classes": [_class_json(explanation, explained, maps, pictures) for explained in explanation.classes],
    }


def _class_json(explanation: Explanation, explained: ClassExplanation, maps: bool, pictures: bool) -> dict[str, Any]:
    contributions = explained.contributions
    return {
        "name": explained.name,
        "logit": explained.logit,
        "probability": explained.probability,
        "verdict": verdict(explanation, explained),
        "limit": explanation.limit(explained),
        "pixels": contributions.maps.sum().item(),
        "constant": contributions.constant.item(),
        "residual": contributions.residual.item(),
        "steps": [
            {"label": step.label, "value": step.value, "kind": step.kind} for step in steps(explanation, explained)
        ],
        **({"map": _text(float32(contributions.maps))} if maps else {}),
        **({"picture": _text(png(colour_picture(contributions)))} if pictures else {}),
        **({"specific": _specific_json(explained.specific, maps)} if explained.specific is not None else {}),
        **({"regions": _parts_json(explained.matches)} if explained.matches is not None else {}),
        "cases": [_case_json(case, maps) for case in explained.cases],
    }


def _specific_json(contributions: Contributions, maps: bool) -> dict[str, Any]:
    """How much a logit exceeds the mean logit of all classes, and what makes it do so."""
    return {
        "value": contributions.value.item(),
        "pixels": contributions.maps.sum().item(),
        "constant": contributions.constant.item(),
        "residual": contributions.residual.item(),
        **({"map": _text(float32(contributions.maps))} if maps else {}),
    }


def _case_json(case: SupportEvidence, maps: bool) -> dict[str, Any]:
    found = {
        "support": case.index,
        "name": case.name,
        "source": case.support.source,
        "evidence": case.evidence,
        "shown": case.image is not None,
        "strength": case.strength,
        "likeness": case.likeness,
    }
    if case.evidence_map is not None:
        found["pixels"] = case.evidence_map.sum().item()
        if maps:
            found["map"] = _text(float32(case.evidence_map))
    if case.matches is not None:
        found["regions"] = _parts_json(case.matches)
    return found


def _contrast_json(explanation: Explanation) -> dict[str, Any]:
    """Two classes, region by region; the differences add up to the difference of the scores. Number 0 is the rest."""
    first, other = explanation.classes[:2]
    return {
        "class": first.name,
        "versus": other.name,
        "difference": first.logit - other.logit,
        "regions": [
            {"number": each.number, "evidence": each.evidence, "versus": each.other, "difference": each.value}
            for each in explanation.contrast
        ],
    }


def _parts_json(matches: Matches) -> list[dict[str, Any]]:
    """The regions of a class or of a case; number 0 is the rest. Evidence and shares add up over them.

    `image` and `support` (for cases whose image is kept) are the two sides: `evidence`, which adds up on either side,
    `centre` [x, y], and `outline`, polygons of points [x, y], in pixels of the model's input.
    """
    return [
        {
            "number": part.number,
            "evidence": part.evidence,
            "share": part.share,
            "image": _region_json(part.image, part.number),
            **({} if part.support is None else {"support": _region_json(part.support, part.number)}),
        }
        for part in matches.parts
    ]


def _region_json(region: Region, number: int) -> dict[str, Any]:
    """The rest has no place of its own."""
    outline = [[[round(x, 1), round(y, 1)] for x, y in polygon] for polygon in region.outline] if number else []
    return {"evidence": region.value, "centre": region.centre if number else None, "outline": outline}


def float32(maps: Tensor) -> bytes:
    """Maps as little-endian float32, row by row."""
    return maps.detach().cpu().numpy().astype("<f4").tobytes()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
