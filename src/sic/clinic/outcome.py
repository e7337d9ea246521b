"""What an edit does to the answers on the validation images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from sic.clinic.examined import Examined
from sic.data.labels import split_targets, targets
from sic.evaluate.accuracy import accuracy_figures
from sic.supports import Case

Direction = Literal["to_right", "to_wrong", "neither"]


@dataclass(frozen=True)
class Flip:
    """An image that gets another answer."""

    id: str
    truth: list[str]
    before: list[str]
    after: list[str]
    direction: Direction
    """With several labels per image: towards fewer wrong ones, or more."""


@dataclass(frozen=True)
class Outcome:
    """Before and after an edit, on the validation images."""

    labels: list[str]
    """The classes whose supports differ."""
    removed: list[str]
    added: list[str]
    before: dict[str, Any]
    """Figures: `accuracy`, or `map` where images have several labels, and others."""
    after: dict[str, Any]
    flips: list[Flip]

    def ids(self, direction: Direction) -> list[str]:
        """The images that changed sides."""
        return [flip.id for flip in self.flips if flip.direction == direction]


def figures(examined: Examined, split: str) -> dict[str, Any]:
    """How good the model is on the images of a split, as in `config.json`."""
    logits = examined.logits(examined.evidence(split))
    return accuracy_figures(logits, examined.splits[split], examined.model.config.task, examined.classes)


def compare(before: Examined, after: Examined) -> Outcome:
    """The same model and images with other supports."""
    old, new = Counter(before.cases), Counter(after.cases)
    labels = sorted({case.label for case in (old - new) + (new - old)})
    removed, added = _sources(before.cases, after.cases), _sources(after.cases, before.cases)
    return Outcome(
        [before.classes[label] for label in labels],
        removed,
        added,
        _numbers(figures(before, "validation")),
        _numbers(figures(after, "validation")),
        _flips(before, after),
    )


def _sources(of: Sequence[Case], without: Sequence[Case]) -> list[str]:
    known = {(case.label, case.source) for case in without}
    return [case.source for case in of if (case.label, case.source) not in known]


def _numbers(figures: dict[str, Any]) -> dict[str, Any]:
    """Without the tables."""
    return {name: value for name, value in figures.items() if not isinstance(value, dict)}


def _flips(before: Examined, after: Examined) -> list[Flip]:
    samples = before.splits["validation"]
    truth, counts = split_targets(targets(samples, len(before.classes)))
    old, new = (one.answered(one.logits(one.evidence("validation"))) for one in (before, after))

    def wrong(answered: Tensor) -> Tensor:
        if before.model.config.task == "multi":
            return ((answered != truth.bool()) & counts).sum(dim=1)
        return 1 - (answered * truth).sum(dim=1)  # any of several right answers counts

    change = (wrong(new) - wrong(old)).tolist()

    def names(answered: Tensor) -> list[str]:
        return [before.classes[label] for label in answered.nonzero()[:, 0].tolist()]

    return [
        Flip(
            samples[row].id,
            before.names(samples[row]),
            names(old[row]),
            names(new[row]),
            "to_right" if change[row] < 0 else "to_wrong" if change[row] > 0 else "neither",
        )
        for row in (old != new).any(dim=1).nonzero()[:, 0].tolist()
    ]
