"""Test images as the page shows them: the answer, where it comes from, and the sum that leads to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sic.data.dataset import Sample
from sic.explain import Explanation
from sic.explain.html import ClassView, class_view
from sic.explain.prose import answer, percent
from sic.model import Model
from sic.report.cases import Case
from sic.report.support_views import SupportCard


@dataclass(frozen=True)
class CaseView:
    """One test image."""

    id: str
    answer: str
    """What the model says, with its probability."""
    also: list[str]
    """Other classes that are a yes, with their probabilities."""
    right: bool
    similar_case: bool
    truth: list[str]
    text: str
    classes: list[ClassView]
    explanation: Explanation


def case_view(model: Model, case: Case, sample: Sample, supports: Sequence[SupportCard]) -> CaseView:
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
    drawn = {support.index: support for support in supports}
    return CaseView(
        sample.id,
        answer(explanation),
        [f"{name} ({percent(p)})" for name, p in explanation.probabilities.items() if p >= 0.5 and name not in said],
        right,
        explanation.similar_case,
        truth,
        explanation.text,
        [class_view(explanation, part, part.name in truth, drawn) for part in explanation.classes],
        explanation,
    )
