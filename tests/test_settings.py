"""The table of settings, and what is generated from it."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from sic import settings as module
from sic.cli.options import tokens, with_settings
from sic.directory import Config
from sic.errors import SicError
from sic.methods import METHODS
from sic.settings import Fit, Network, Settings, check, from_json, named, setting, table, to_json
from tests.models import small_settings
from tests.training.test_choose import chosen, data


@dataclass(kw_only=True)
class More(Settings):
    """A setting that somebody adds to the table."""

    sharpness: float = setting("How sharp.", 0.5, low=0, high=1, search=True)
    mirror: bool = setting("Mirror images.", False)


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "Settings", More)
    monkeypatch.setattr(sys.modules["sic.training.choose"], "Settings", More)  # `sic.training.choose` is the function
    table.cache_clear()
    yield
    table.cache_clear()


@pytest.mark.usefixtures("more")
def test_a_new_setting_is_a_line_of_the_table(tmp_path: Path) -> None:
    """Nothing else knows it: option, help, checks, defaults, run.json, search and --set follow from the table."""
    said: dict[str, Any] = {}

    @with_settings()
    def command(**options: Any) -> None:
        said.update(options)

    app = typer.Typer()
    app.command()(command)
    run = CliRunner().invoke
    assert "--sharpness" in run(app, ["--help"], terminal_width=200).output
    assert run(app, ["--sharpness", "0.75", "--no-mirror"]).exit_code == 0
    assert (said["sharpness"], said["mirror"], said["epochs"]) == (0.75, False, None)
    assert run(app, ["--sharpness", "sharp"]).exit_code == 2
    with pytest.raises(SicError, match="--sharpness must be a number from 0 to 1, not 2"):
        check({"sharpness": 2})
    found = chosen(data(tmp_path), sharpness=0.75)
    assert isinstance(found, More) and (found.sharpness, found.mirror) == (0.75, False)
    assert from_json(to_json(found)) == found
    assert tokens({"sharpness": 0.75, "mirror": True}) == ["--sharpness", "0.75", "--mirror"]
    several = inspect.signature(with_settings(several=True)(lambda **options: None)).parameters["sharpness"]
    assert str in get_args(get_args(several.annotation)[0])  # several values, as text
    # A run that was recorded before the setting existed has its default.
    before = {name: value for name, value in to_json(found).items() if name not in ("sharpness", "mirror")}
    assert getattr(from_json(before), "sharpness") == 0.5  # noqa: B009


def test_every_setting_of_the_network_is_stored_with_the_model() -> None:
    stored = {each.name for each in fields(Config)}
    assert {each.name for each in fields(Network)} <= stored
    assert set(small_settings().network) == {each.name for each in fields(Network)}
    options = {name for kind in METHODS.values() for name in kind.options}
    assert options <= stored, "a model could not be built again"


def test_flags_are_told_apart() -> None:
    flags = [flag for option in table().values() for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert {named(option.flag[2:]) for option in table().values()} == set(table())


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"epochs": 0}, "--epochs must be a whole number from 1 up, not 0"),
        ({"epochs": 1.5}, "--epochs must be a whole number from 1 up, not 1.5"),
        ({"seed": -1}, "--seed must be a whole number from 0 to 4294967295, not -1"),
        ({"lr": float("nan")}, "--lr must be a number from 0 up, not nan"),
        ({"lr": "fast"}, "--lr must be a number from 0 up, not fast"),
        ({"temperature": 0.0}, "--temperature must be a number above 0, not 0.0"),
        ({"validation": 0.95}, "--validation must be a number from 0.01 to 0.9"),
        ({"relu": "yes"}, "--relu is either on or off"),
        ({"fit": "stretch"}, f"--fit must be one of {', '.join(get_args(Fit))}, not 'stretch'"),
        ({"sharpness": 1}, "There is no setting called 'sharpness'"),
    ],
)  # fmt: skip
def test_values_that_no_run_can_use(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SicError) as caught:
        check(said)
    assert str(caught.value).startswith(sentence)
