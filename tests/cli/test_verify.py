import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sic import model
from sic.cli.verify import _some, verify
from sic.evaluate import verification
from sic.evaluate.checks import Check
from sic.methods import SIC
from tests.cli.conftest import Sic
from tests.evaluate.test_sabotage import SABOTAGES, Change, lying, mirrored, uniform
from tests.test_older_model import FOLDER


def test_a_limit_draws_from_all_classes() -> None:
    """Files come class by class: the first ones would show one class only."""
    files = [Path(f"{label}/{number:02d}.png") for label in range(5) for number in range(20)]
    chosen = _some(files, 30, seed=0)
    assert len(chosen) == len(set(chosen)) == 30 and set(chosen) <= set(files)
    assert {file.parent.name for file in chosen} == {"0", "1", "2", "3", "4"}
    assert chosen == _some(files, 30, seed=0) != _some(files, 30, seed=1)
    assert _some(files, 100, 0) == files


def test_the_number_of_images_is_bounded() -> None:
    assert inspect.signature(verify).parameters["limit"].default == 64


def test_a_failure_is_json_that_everything_reads(sic: Sic, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [Check("a", "", math.inf, 1.0, 1, ("b", 2.0), {"way": {"c": math.inf}})]
    monkeypatch.setattr("sic.evaluate.verification.measure", lambda *_, **__: broken)
    said = sic("verify", FOLDER / "model", FOLDER / "images", "--limit", 2, "--json", code=1).stdout
    found = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["passed"] is False and found["axioms"]["a"] == found["axioms"]["a"] | {
        "worst": None,
        "way": {"c": None},
    }


@pytest.mark.parametrize("change", [None, uniform, mirrored])
def test_a_wrong_explanation_ends_with_code_1_and_names_the_check(
    change: Change | None, sic: Sic, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change is not None:
        lying(change)(monkeypatch)
    done = sic("verify", FOLDER / "model", FOLDER / "images", "--limit", 4, code=0 if change is None else 1)
    if change is None:
        assert "agree with its scores" in " ".join(done.stdout.split()) and " fail: " not in done.stderr
    else:
        sentence = " ".join(done.stderr.split()).rpartition(" fail: ")[2].rstrip(".")
        assert SABOTAGES[change] <= set(sentence.split(", "))


def test_a_model_without_evidence_is_not_said_to_be_right(sic: Sic, monkeypatch: pytest.MonkeyPatch) -> None:
    load = model.load

    def blind(*arguments: Any) -> model.Model:
        found = load(*arguments)
        assert isinstance(found.classifier, SIC)
        found.classifier.support_vectors.zero_()
        return found

    monkeypatch.setattr(model, "load", blind)
    done = sic("verify", FOLDER / "model", FOLDER / "images", "--limit", 2, code=1)
    shown = " ".join(done.stdout.split())
    assert "Nothing was checked" in done.stderr and "agree with its scores" not in shown and "train it longer" in shown


def test_the_device_is_chosen(sic: Sic, monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[torch.device] = []

    def seen(loaded: model.Model, _: object, images: Tensor, **__: object) -> None:
        where.append(next(loaded.classifier.parameters()).device)
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "measure", seen)
    monkeypatch.setattr("sic.cli.options.best_device", lambda: "meta")
    arguments = ("verify", FOLDER / "model", FOLDER / "images")
    sic(*arguments, "--device", "cpu", code=130)
    assert where == [torch.device("cpu")]
    assert sic.refuse(*arguments, "--device", "nowhere").startswith("sic: --device nowhere is not available")


def test_a_device_without_double_precision(sic: Sic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.cli.verify.pick_device", lambda _: "mps")
    assert "double precision" in sic.refuse("verify", FOLDER / "model", FOLDER / "images")
