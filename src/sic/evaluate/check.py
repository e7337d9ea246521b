"""One check of explanations: its result, and what the checks share."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sic.methods import Classifier, Contributions


@dataclass
class Check:
    """The result of one check: the worst value, and the limit that it must not exceed."""

    name: str
    statement: str
    worst: float
    limit: float
    checks: int
    wrong: tuple[str, float]
    """A wrong explanation, and the worst value that it would have given."""
    details: dict[str, Any] = field(default_factory=dict)
    decided: bool = True
    """Whether there were enough images to tell."""

    @property
    def passed(self) -> bool:
        return self.checks > 0 and (self.worst <= self.limit or not self.decided)

    @property
    def verdict(self) -> str:
        return "FAIL" if not self.passed else "pass" if self.decided else "undecided"


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON; scripts rely on these keys."""
    return {
        "passed": all(check.passed for check in checks),
        "failed": [check.name for check in checks if not check.passed],
        "undecided": [check.name for check in checks if check.passed and not check.decided],
        "axioms": {
            check.name.replace(" ", "_"): {
                "passed": check.passed,
                "worst": check.worst,
                "limit": check.limit,
                "checks": check.checks,
                "wrong_explanation": check.wrong[0],
                "wrong_value": check.wrong[1],
                **check.details,
            }
            for check in checks
        },
    }


def explained(classifier: Classifier, images: Tensor, targets: Tensor) -> Contributions:
    """What a user gets: `Model.explain` takes the same path."""
    return classifier.answered(images).explain(targets)


def largest(errors: Tensor) -> float:
    """The largest error; NaN counts as infinite."""
    return errors.nan_to_num(nan=torch.inf).max().item() if errors.numel() else 0.0


def relative(maps: Tensor, reference: Tensor) -> Tensor:
    """…×H×W: errors relative to the largest value of each reference map."""
    return (maps - reference).abs() / reference.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)


def uniform(maps: Tensor) -> Tensor:
    """The wrong maps that give every pixel the same share of the same sum."""
    return maps.mean(dim=(-2, -1), keepdim=True).expand_as(maps)


@torch.no_grad()
def predicted(classifier: Classifier, images: Tensor) -> Tensor:
    """The class with the highest score, N."""
    return classifier(images).argmax(dim=1)


def seen_through(classifier: Classifier, change: Callable[[Tensor], Tensor]) -> Classifier:
    """A copy of the classifier whose network sees the encoded images after a linear `change`."""
    twin = copy.deepcopy(classifier)
    twin.backbone.network.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:]))
    return twin
