"""Every place that shows an explanation shows the same names, sums and numbers."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sic.calibration import Calibration
from sic.explain import Explanation
from sic.explain.explanation import explain_answers
from sic.explain.html import shared_page
from sic.explain.render import as_json, span, steps, verdict
from sic.methods import SIC
from sic.serve import schemas
from tests.explain.test_explanation import NAMES, SIZE, explained, photos, supports, sure, unsure

__all__ = ["sure", "unsure"]


def shown_in_figure(explanation: Explanation, folder: Path) -> str:
    explanation.save(folder / "why.svg")
    return (folder / "why.svg").read_text(encoding="utf-8")


def test_cases_have_one_name_everywhere(sure: SIC, tmp_path: Path) -> None:
    """Class and number, also beyond the 26 letters of the alphabet."""
    explanation = explained(sure, [2])
    part = explanation.classes[0]
    assert sorted(case.name for case in part.cases) == ["kite #1", "kite #2", "kite #3"]
    part.cases = [replace(case, name=f"kite #{slot + 40}") for slot, case in enumerate(part.cases)]
    names = [case.name for case in part.cases]
    figure, page, told = shown_in_figure(explanation, tmp_path), shared_page(explanation, "m"), as_json(explanation)
    assert [case["name"] for case in told["classes"][0]["cases"]] == names
    for name in names:
        assert f"like {name}" in figure and f"{name}: " in figure
        assert re.search(rf"<a [^>]*>{name}</a>", page) and f"<h4>{name} " in page
        assert f"like {name}" in [step["label"] for step in told["classes"][0]["steps"]]
    best = max(part.cases, key=lambda case: case.evidence)
    assert f"({best.name})" in explanation.text


@pytest.mark.parametrize("number", [0, 1, 2])
def test_steps_add_up_to_the_score(sure: SIC, unsure: SIC, number: int) -> None:
    for model in (sure, unsure):
        explanation = explained(model, [number])
        part = explanation.classes[0]
        *bars, score = steps(explanation, part)
        assert [bar.kind for bar in bars] == ["start", *["for"] * len(part.cases)] and score.kind == "score"
        assert bars[0].value == explanation.bias
        assert [bar.value for bar in bars[1:]] == [case.evidence for case in part.cases]
        assert sum(bar.value for bar in bars) == pytest.approx(score.value, rel=1e-5)
        for before, after in zip(bars, bars[1:], strict=False):
            assert after.start == pytest.approx(before.start + before.value)
        low, high = span([*bars, score])
        assert low <= explanation.bias and high >= max(0, part.logit)
        assert verdict(explanation, part) == ("above 0: yes" if part.logit >= 0 else "below 0: no")
        assert "0.00" not in verdict(replace(explanation, calibration=Calibration(threshold=-0.004)), part)


def test_a_long_name_beside_a_bar_is_wrapped_not_cut(sure: SIC, tmp_path: Path) -> None:
    explanation = explained(sure, [2])
    part = explanation.classes[0]
    part.cases = [replace(case, name=f"Black capped Vireo #{slot}") for slot, case in enumerate(part.cases)]
    assert "…apped" not in (figure := shown_in_figure(explanation, tmp_path)) and "… capped" not in figure
    assert figure.count("<!-- Black capped -->") == len(part.cases)


def test_methods_without_a_sum_show_the_score_alone(sure: SIC) -> None:
    explanation = replace(explained(sure, [0]), method="blackbox")
    assert [step.kind for step in steps(explanation, explanation.classes[0])] == ["score"]
    assert verdict(explanation, explanation.classes[0]) == "probability above 50 %: yes"


def test_json_has_the_fields_that_the_api_documents(sure: SIC) -> None:
    answered = sure.answered(photos(8)[7:])
    asked = {"evidence_maps": True, "matches": True, "specific": True}
    parts = explain_answers(sure, supports(), NAMES, answered, [[0]], **asked)[0]
    told = as_json(replace(explained(sure, [0]), classes=parts), maps=True, pictures=True)
    # The server knows the true class of a held-out image, and whether the answer is right.
    assert {*told, "right", "contrast"} == set(schemas.Explanation.model_fields)
    (entry,) = told["classes"]
    assert {*entry, "words"} == set(schemas.ClassExplanation.model_fields)
    assert set(entry["steps"][0]) == set(schemas.Step.model_fields)
    assert set(entry["cases"][0]) == set(schemas.SupportEvidence.model_fields)
    assert set(entry["cases"][0]["regions"][0]) == set(schemas.Match.model_fields)
    assert set(entry["regions"][0]["image"]) == set(schemas.Region.model_fields)
    assert set(entry["specific"]) == set(schemas.Specific.model_fields)
    plain = as_json(explained(sure, [0]))
    assert not {"image", "map", "picture", "regions", "specific"} & {
        *plain,
        *plain["classes"][0],
        *plain["classes"][0]["cases"][0],
    }
    json.dumps(plain, allow_nan=False)


def test_matching_regions_are_outlined_on_the_page(sure: SIC) -> None:
    parts = explain_answers(sure, supports(), NAMES, sure.answered(photos(8)[7:]), [[2]], matches=True)[0]
    explanation = replace(explained(sure, [2]), classes=parts)
    assert "<svg" not in shared_page(explained(sure, [2]), "m")
    page, found = shared_page(explanation, "m"), parts[0].matches
    assert found is not None
    regions = [part.image for part in found.groups]
    regions += [part.support for case in parts[0].cases for part in case.matches.groups if part.support is not None]
    assert page.count("<circle ") == sum(bool(region.outline) for region in regions) > 0
    for part in found.groups:
        assert f">{part.number}</b> {part.evidence:+.2f}".replace("-", "−") in page


def test_maps_in_json_add_up_to_the_score(sure: SIC) -> None:
    explanation = explained(sure, [0])
    entry = as_json(explanation, maps=True)["classes"][0]
    values = np.frombuffer(base64.b64decode(entry["map"]), "<f4").reshape(SIZE, SIZE)
    np.testing.assert_array_equal(values, explanation.classes[0].contributions.maps.numpy())
    assert values.astype(float).sum() + entry["constant"] == pytest.approx(entry["logit"], rel=1e-4)


def test_the_shared_page_says_when_the_sum_is_wrong(sure: SIC) -> None:
    explanation = explained(sure, [0])
    assert "They add up to the score to within" in shared_page(explanation, "m")
    contributions = explanation.classes[0].contributions
    contributions.value = contributions.value + 3
    assert "They miss the score by 3." in shared_page(explanation, "m")
