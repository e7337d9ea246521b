"""The check of matches passes for exact ones and fails for wrong ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sic.evaluate import matching
from sic.explain.matches import Match, Matches, Region, find_matches
from tests.explain.test_matches import build, photos, stored


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_matches_of_untrained_models_add_up(backbone: str) -> None:
    model = build(backbone).double()
    check = matching.matching(model, stored(photos(4)), photos(8).double()[4:7])
    assert check.name == "matches" and check.passed and check.checks > 9
    assert check.worst < 1e-10 and check.wrong[1] > 0.1
    without = matching.matching(model, stored(photos(4), keep=False), photos(8).double()[4:7])
    assert without.passed and without.checks < check.checks


def flat(region: Region) -> Region:
    return replace(region, map=region.map.mean().expand_as(region.map))


def louder(region: Region | None) -> Region | None:
    return None if region is None else replace(region, map=1.5 * region.map)


WRONG = {
    "uniform": lambda match: replace(match, image=flat(match.image)),
    "louder in the case": lambda match: replace(match, support=louder(match.support)),
    "more evidence": lambda match: replace(match, evidence=match.evidence + 0.01),
    "mirrored": lambda match: replace(match, image=replace(match.image, map=match.image.map.flip(-1))),
}


def with_groups(change: Callable[[list[Match]], list[Match]]) -> Callable[..., list[dict[int, Matches]]]:
    """Find matches, and change the groups of every case."""

    def changed(*arguments: Any) -> list[dict[int, Matches]]:
        found = find_matches(*arguments)
        return [{case: replace(each, groups=change(each.groups)) for case, each in row.items()} for row in found]

    return changed


@pytest.mark.parametrize("kind", [*WRONG, "dropped"])
def test_wrong_matches_are_caught(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    change = (lambda groups: groups[1:]) if kind == "dropped" else lambda groups: list(map(WRONG[kind], groups))
    monkeypatch.setattr(matching, "find_matches", with_groups(change))
    assert not matching.matching(build().double(), stored(photos(4)), photos(8).double()[4:6]).passed
