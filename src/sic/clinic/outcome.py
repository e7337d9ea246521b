"""What an edit does to the answers on the validation images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sic.clinic.examined import Examined
from sic.predictions import Predictions
from sic.supports import Support

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


def compare(before: Examined, after: Examined) -> Outcome:
    """The same model and images with other supports."""
    old, new = Counter(before.supports), Counter(after.supports)
    labels = sorted({support.label for support in (old - new) + (new - old)})
    removed, added = _sources(before.supports, after.supports), _sources(after.supports, before.supports)
    was, now = before.predictions("validation"), after.predictions("validation")
    return Outcome(
        [before.classes[label] for label in labels],
        removed,
        added,
        _numbers(was.quality),
        _numbers(now.quality),
        _flips(was, now),
    )


def _sources(of: Sequence[Support], without: Sequence[Support]) -> list[str]:
    known = {(support.label, support.source) for support in without}
    return [support.source for support in of if (support.label, support.source) not in known]


def _numbers(figures: dict[str, Any]) -> dict[str, Any]:
    """Without the tables."""
    return {name: value for name, value in figures.items() if not isinstance(value, dict)}


def _flips(before: Predictions, after: Predictions) -> list[Flip]:
    change = (after.mistakes(after.targets) - before.mistakes(before.targets)).tolist()
    return [
        Flip(
            before.samples[row].id,
            before.truth(row),
            before.answer(row),
            after.answer(row),
            "to_right" if change[row] < 0 else "to_wrong" if change[row] > 0 else "neither",
        )
        for row in (before.answers != after.answers).any(dim=1).nonzero()[:, 0].tolist()
    ]
