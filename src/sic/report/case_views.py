"""Test images as the page shows them: the answer, where it comes from, and the sum that leads to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sic.data.dataset import Sample
from sic.explain import ClassExplanation, Explanation
from sic.explain.picture import over_white, rgba, signed, strength
from sic.explain.prose import answer, percent
from sic.model import Model
from sic.report.cases import Case
from sic.report.pictures import drawing
from sic.report.support_views import SupportPictures


@dataclass(frozen=True)
class Step:
    """One bar of the sum; `left` and `width` in percent of the drawing."""

    points: float
    left: float
    width: float
    support: SupportPictures | None
    """None for the start."""


@dataclass(frozen=True)
class ExplainedView:
    """Why a class has its score for an image."""

    name: str
    true: bool
    logit: float
    probability: float
    pixels: float
    """Sum of the map."""
    elsewhere: float
    """What no pixel contributes beside the start: positional codes."""
    residual: float
    map: str
    limit: float
    colours: str
    steps: list[Step]
    zero: float
    """Where the bars' zero lies, in percent."""
    score: Step


@dataclass(frozen=True)
class CaseView:
    """One test image."""

    id: str
    image: str
    answer: str
    """What the model says, with its probability."""
    also: list[str]
    """Other classes that are a yes, with their probabilities."""
    right: bool
    similar_case: bool
    truth: list[str]
    text: str
    classes: list[ExplainedView]
    explanation: Explanation


def case_view(model: Model, case: Case, sample: Sample, supports: Sequence[SupportPictures]) -> CaseView:
    """Explain the classes of a case; `supports`: of the whole model, in its order."""
    truth = [model.classes[label] for label in sample.labels]
    wanted = [model.classes[label] for label in case.classes]
    explanation = model.explain(sample.path, wanted)
    if model.config.task == "single":
        right = any(name in truth for name in explanation.labels)
    else:
        asked = wanted[0]
        right = (asked in explanation.labels) == (asked in truth)
    said = explanation.labels
    return CaseView(
        sample.id,
        drawing(explanation.image.permute(1, 2, 0).float().cpu().numpy()),
        answer(explanation),
        [f"{name} ({percent(p)})" for name, p in explanation.probabilities.items() if p >= 0.5 and name not in said],
        right,
        explanation.similar_case,
        truth,
        explanation.text,
        [_explained(part, explanation, part.name in truth, supports) for part in explanation.classes],
        explanation,
    )


def _explained(
    part: ClassExplanation, explanation: Explanation, true: bool, supports: Sequence[SupportPictures]
) -> ExplainedView:
    maps, weights = part.contributions.maps, part.contributions.weights
    drawn, limit = signed(maps, explanation.image)
    picture = rgba(weights[None], maps[None])[0]
    picture[3] *= strength(maps)
    values = [explanation.bias, *(case.evidence for case in part.cases)]
    ends = [sum(values[:number]) for number in range(len(values) + 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    span = (high - low) or 1.0

    def step(start: float, points: float, support: SupportPictures | None) -> Step:
        left = min(start, start + points)
        return Step(points, 100 * (left - low) / span, 100 * abs(points) / span, support)

    owners = [None, *(supports[case.index] for case in part.cases)]
    return ExplainedView(
        part.name,
        true,
        part.logit,
        part.probability,
        maps.sum().item(),
        part.contributions.constant.item() - explanation.bias,
        part.contributions.residual.item(),
        drawing(drawn),
        limit,
        drawing(over_white(picture)),
        [step(start, points, owner) for start, points, owner in zip(ends[:-1], values, owners, strict=True)],
        -100 * low / span,
        step(0.0, part.logit, None),
    )
