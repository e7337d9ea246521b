"""The checks of matches: right ones pass in every way, and the partners of wrong ones do not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sic.evaluate.checks import Check, together
from sic.evaluate.reference import Reference
from sic.evaluate.returned import Pictures
from sic.evaluate.unfamiliar import drawn_birds
from sic.evaluate.verified_matches import Matching, _Checked
from sic.explain import explanation
from sic.explain.explanation import Difference, contrast
from sic.explain.matches import Match, Matches, Region, find_matches
from sic.methods import SIC
from sic.model import Model, load
from tests.evaluate import test_sabotage as sabotage
from tests.evaluate.test_sabotage import as_model, photos, verified
from tests.test_older_model import FOLDER

Wrong = Callable[[Matches], Matches]


def build(backbone: str = "resnet_tiny") -> SIC:
    model = sabotage.build(SIC, backbone)
    assert isinstance(model, SIC)
    return model


def checked(model: Model, images: Tensor) -> tuple[Check, Check]:
    double = model.sic if images.dtype == torch.float64 else load(FOLDER / "model").sic.double()
    matching = Matching(model, Pictures(model, double), images)
    found = together([matching.check(place, Reference(double, image)) for place, image in enumerate(images)])
    partners = matching.partners()
    return found, partners


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_matches_of_untrained_models_add_up(backbone: str) -> None:
    images = photos(8).double()[4:7]
    check, partners = checked(as_model(build(backbone).double()), images)
    assert check.name == "matches" and check.passed and check.checks > 100
    assert check.worst < 1e-10 and check.wrong[1] > 0.1
    assert partners.name == "partners" and partners.passed
    empty = as_model(build(backbone).double())
    empty.supports = [replace(support, image=None) for support in empty.supports]
    without, undecided = checked(empty, images)
    assert without.passed and without.checks < check.checks and undecided.verdict == "undecided"


def each(change: Callable[[Match], Match]) -> Wrong:
    return lambda found: replace(found, groups=[change(match) for match in found.groups])


def in_image(change: Callable[[Tensor], Tensor]) -> Wrong:
    return each(lambda match: replace(match, image=replace(match.image, map=change(match.image.map))))


def in_case(change: Callable[[Tensor], Tensor]) -> Wrong:
    def changed(match: Match) -> Match:
        if match.support is None:
            return match
        return replace(match, support=replace(match.support, map=change(match.support.map)))

    return each(changed)


def flat(map_: Tensor) -> Tensor:
    return map_.mean().expand_as(map_)


def renumbered(found: Matches, numbers: Callable[[list[int]], list[int]]) -> Matches:
    new = numbers([match.number for match in found.groups])
    return replace(found, groups=[replace(m, number=n) for m, n in zip(found.groups, new, strict=True)])


def overlapping(found: Matches) -> Matches:
    """Two regions have half of both."""
    if len(found.groups) < 2:
        return found
    half = Region((found.groups[0].image.map + found.groups[1].image.map) / 2)
    total = found.groups[0].evidence / found.groups[0].share
    both = [replace(match, image=half, evidence=half.value, share=half.value / total) for match in found.groups[:2]]
    return replace(found, groups=[*both, *found.groups[2:]])


WRONG: dict[str, Wrong] = {
    "uniform": in_image(flat),
    "mirrored": in_image(lambda map_: map_.flip(-1)),
    "louder in the case": in_case(lambda map_: 1.5 * map_),
    "uniform in the case": in_case(flat),
    "mirrored in the case": in_case(lambda map_: map_.flip(-1)),
    "more evidence": each(lambda match: replace(match, evidence=match.evidence + 0.01)),
    "three times the share": each(lambda match: replace(match, share=3 * match.share)),
    "dropped": lambda found: replace(found, groups=found.groups[1:]),
    "other numbers": lambda found: renumbered(found, lambda numbers: [number + 1 for number in numbers]),
    "number 0": lambda found: renumbered(found, lambda numbers: [0, *numbers[1:]][: len(numbers)]),
    "exchanged numbers": lambda found: renumbered(found, lambda numbers: numbers[::-1]),
    "overlapping": overlapping,
}


def with_matches(change: Wrong) -> Callable[..., list[dict[int, Matches]]]:
    """Find matches, and change those of every case."""

    def changed(*arguments: Any) -> list[dict[int, Matches]]:
        return [{case: change(each) for case, each in row.items()} for row in find_matches(*arguments)]

    return changed


def exchanged(found: Matches) -> Matches:
    """Every region has the partner of the next one."""
    partners = [match.support for match in found.groups]
    moved = [*partners[1:], *partners[:1]]
    return replace(found, groups=[replace(m, support=p) for m, p in zip(found.groups, moved, strict=True)])


def other_contrast(*arguments: Any) -> list[Difference]:
    """Right in sum: two regions exchange a part of their evidence."""
    first, second, *others = contrast(*arguments)
    return [replace(first, evidence=first.evidence + 0.1), replace(second, evidence=second.evidence - 0.1), *others]


def louder_contrast(*arguments: Any) -> list[Difference]:
    return [replace(each, evidence=1.1 * each.evidence) for each in contrast(*arguments)]


@pytest.fixture(scope="module")
def trained() -> Model:
    return load(FOLDER / "model")


def test_matches_of_a_trained_model_pass(trained: Model) -> None:
    found, partners = checked(trained, drawn_birds(4, 32, 0))
    assert found.verdict == partners.verdict == "pass"
    assert partners.checks > 10 and partners.details["interval"][0] > 0.5


def test_the_rest_has_number_0(trained: Model) -> None:
    image = drawn_birds(1, 32, 0)[0]
    double = load(FOLDER / "model").sic.double()
    checks = _Checked(trained, Reference(double, image), Pictures(trained, double))
    case, found = next(iter(trained.explain(image, matches=True).matches.items()))
    for number, right in ((0, True), (9, False)):
        other = replace(found, rest=replace(found.rest, number=number))
        assert (max(each.error for each in checks.case(case, other) if each.way == "numbers") == 0) == right


@pytest.mark.parametrize("change", [other_contrast, louder_contrast])
def test_a_wrong_contrast_is_caught(
    change: Callable[..., list[Difference]], trained: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "contrast", change)
    found, _ = checked(trained, drawn_birds(2, 32, 0))
    assert not found.passed and found.details["contrast"] > 1e-3
    assert all(worst < 1e-4 for way, worst in found.details.items() if way != "contrast")


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_matches_are_caught(name: str, to_verify: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "find_matches", with_matches(WRONG[name]))
    assert verified(to_verify / "SIC", to_verify / "images", 1) >= {"matches"}


def test_wrong_partners_are_caught(trained: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "find_matches", with_matches(exchanged))
    found, partners = checked(trained, drawn_birds(4, 32, 0))
    assert found.passed and partners.verdict == "FAIL" and partners.details["interval"][1] < 0
