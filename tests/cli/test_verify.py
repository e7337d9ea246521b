from pathlib import Path
from typing import Any

import pytest

from sic.cli.verify import _some
from sic.methods import Contributions
from sic.methods.sic import AnsweredSIC
from tests.cli.conftest import Sic
from tests.evaluate.test_sabotage import SABOTAGES, Change, mirrored, uniform
from tests.test_older_model import FOLDER


def test_a_limit_draws_from_all_classes() -> None:
    """Files come class by class: the first ones would show one class only."""
    files = [Path(f"{label}/{number:02d}.png") for label in range(5) for number in range(20)]
    chosen = _some(files, 30, seed=0)
    assert len(chosen) == len(set(chosen)) == 30 and set(chosen) <= set(files)
    assert {file.parent.name for file in chosen} == {"0", "1", "2", "3", "4"}
    assert chosen == _some(files, 30, seed=0) != _some(files, 30, seed=1)
    assert _some(files, None, 0) == _some(files, 100, 0) == files


@pytest.mark.parametrize("change", [None, uniform, mirrored])
def test_a_wrong_explanation_ends_with_code_1_and_names_the_check(
    change: Change | None, sic: Sic, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = AnsweredSIC.explain

    def changed(self: AnsweredSIC, *arguments: Any, **more: Any) -> Contributions:
        assert change is not None
        return change(explain(self, *arguments, **more), self.classifier, self.images, arguments[0])

    if change is not None:
        monkeypatch.setattr(AnsweredSIC, "explain", changed)
    done = sic("verify", FOLDER / "model", FOLDER / "images", "--no-compiled", code=0 if change is None else 1)
    if change is None:
        assert "agree with its scores" in " ".join(done.stdout.split()) and " fail: " not in done.stderr
    else:
        sentence = " ".join(done.stderr.split()).rpartition(" fail: ")[2].rstrip(".")
        assert SABOTAGES[change] <= set(sentence.split(", "))
