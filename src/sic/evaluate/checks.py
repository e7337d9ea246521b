"""The result of a check, and the numbers that results are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sic.files import plain

NOTHING = 1e-9
"""Absolute contributions to a score that add up to less are no evidence."""


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
    """Whether there were enough images, and evidence, to tell. Without a check nothing is decided."""

    def __post_init__(self) -> None:
        self.decided = self.decided and self.checks > 0

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit or not self.decided

    @property
    def verdict(self) -> str:
        return "FAIL" if not self.passed else "pass" if self.decided else "undecided"


def together(checks: Sequence[Check]) -> Check:
    """The same check of several images as one: the worst of all values; an image that decides is enough."""
    return replace(
        checks[0],
        worst=max(check.worst for check in checks),
        checks=sum(check.checks for check in checks),
        wrong=(checks[0].wrong[0], max(check.wrong[1] for check in checks)),
        details=merged([check.details for check in checks]),
        decided=any(check.decided for check in checks),
    )


def pooled(checks: Sequence[Check]) -> Check:
    """As `together`, for values that are shares of the checks of an image."""
    total = max(sum(check.checks for check in checks), 1)
    worst = sum(check.worst * check.checks for check in checks) / total
    wrong = sum(check.wrong[1] * check.checks for check in checks) / total
    return replace(together(checks), worst=worst, wrong=(checks[0].wrong[0], wrong))


def merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest value of each key."""
    keys = dict.fromkeys(key for one in found for key in one)
    return {key: max(one[key] for one in found if key in one) for key in keys}


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON; scripts rely on these keys. What is wrong by its form has an infinite error: null."""
    content = {
        "passed": all(check.passed for check in checks) and any(check.decided for check in checks),
        "failed": [check.name for check in checks if not check.passed],
        "undecided": [check.name for check in checks if check.passed and not check.decided],
        "axioms": {
            check.name.replace(" ", "_"): {
                "passed": check.passed,
                "verdict": check.verdict,
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
    found: dict[str, Any] = plain(content)
    return found


def largest(errors: Tensor) -> float:
    """The largest error; NaN counts as infinite."""
    return errors.nan_to_num(nan=torch.inf).max().item() if errors.numel() else 0.0


def relative(maps: Tensor, reference: Tensor) -> Tensor:
    """…×H×W: errors relative to the largest value of each reference map."""
    return (maps - reference).abs() / reference.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)


def amount(maps: Tensor) -> Tensor:
    """…: the sum of all absolute contributions of maps …×H×W."""
    return maps.abs().sum(dim=(-2, -1))


def evident(*maps: Tensor) -> bool:
    """Whether any of these maps shows evidence."""
    return any(largest(amount(each)) > NOTHING for each in maps)


def uniform(maps: Tensor) -> Tensor:
    """The wrong maps that give every pixel the same share of the same sum."""
    return maps.mean(dim=(-2, -1), keepdim=True).expand_as(maps)
