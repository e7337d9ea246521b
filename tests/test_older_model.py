"""A model directory that an older version wrote, before the redesign, still loads, answers and can be edited.

Trained on the built-in birds for six epochs; two edits of its supports. `answers.json` is what `sic predict --json` of
that version printed for the images beside it.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import sic
from sic import directory

FOLDER = Path(__file__).parent / "fixtures" / "older_model"
ANSWERS = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))["images"]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer["image"])
def test_the_answers_are_the_same(answer: dict) -> None:
    prediction = sic.load(FOLDER / "model").predict(FOLDER / answer["image"])
    assert prediction.labels == answer["labels"] and prediction.similar_case == answer["similar_case"]
    assert prediction.probabilities == pytest.approx(answer["probabilities"], abs=1e-4)
    values = {one["support"]: one["value"] for one in answer["evidence"]}
    assert {one.support: one.value for one in prediction.evidence} == pytest.approx(values, abs=1e-4)
    sources = {one["support"]: (one["label"], one["source"]) for one in answer["evidence"]}
    assert {one.support: (one.label, one.source) for one in prediction.evidence} == sources


def test_explanations_add_up() -> None:
    explanation = sic.load(FOLDER / "model").explain(FOLDER / ANSWERS[0]["image"])
    assert abs(explanation.residual) < 1e-4 and explanation.labels == ANSWERS[0]["labels"]


def test_saved_again_it_is_the_same_model(tmp_path: Path) -> None:
    model = sic.load(FOLDER / "model")
    model.save(tmp_path / "again")
    again = sic.load(tmp_path / "again")
    assert again.config == model.config and len(again.config.edits) == 2
    assert [(s.label, s.source, s.pinned) for s in again.supports] == [
        (s.label, s.source, s.pinned) for s in model.supports
    ]
    assert any(support.pinned for support in again.supports)
    for name, value in model.classifier.state_dict().items():
        assert torch.equal(again.classifier.state_dict()[name], value)


def test_its_run_is_known(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / "model", tmp_path / "model")
    run = directory.read_run(folder)
    assert run["data"]["opened_with"]["where"] == "birds" and run["train"] and run["validation"]
