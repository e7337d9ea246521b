"""The trials of a search as its folder holds them, and its picture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sic.errors import SicError
from sic.methods import SIC
from sic.training.presets import PRESETS
from sic.training.search import LOST, Search, Trial, best, default_axes, draw, points_of
from tests.models import small_settings

SETTINGS = small_settings()
DATA = {"classes": ["a", "b"], "task": "single", "images": {"train": 10}}


def begun(out: Path, points: list[dict[str, Any]], settings: Any = SETTINGS) -> Search:
    search = Search(out, lambda log: False)
    search.begin({"epochs": 2}, settings, DATA)
    search.add(points)
    return search


def test_points_are_added_once_and_come_back(tmp_path: Path) -> None:
    points = points_of({"lr": (1e-3, 1e-4), "temperature": (10.0,)})
    begun(tmp_path, points)
    again = begun(tmp_path, [*points, {"lr": 1e-3, "temperature": 30.0}])
    assert [trial.point for trial in again.trials()] == [*points, {"lr": 1e-3, "temperature": 30.0}]
    assert {trial.state for trial in again.trials()} == {"waiting"}
    assert again.record["said"] == {"epochs": 2}


def test_other_settings_data_and_leftovers_are_refused(tmp_path: Path) -> None:
    begun(tmp_path, [{"lr": 1e-3}])
    with pytest.raises(SicError, match="epochs 2, and would now have 3"):
        begun(tmp_path, [], replace(SETTINGS, epochs=3))
    with pytest.raises(SicError, match="size 32, and would now have 16|resize 32, and would now have 16"):
        begun(tmp_path, [], replace(SETTINGS, size=16, resize=16))
    with pytest.raises(SicError, match="images"):
        Search(tmp_path, lambda log: False).begin({}, SETTINGS, {**DATA, "classes": ["a", "c"]})
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(SicError, match="search.json is damaged"):
        begun(tmp_path, [])
    (tmp_path / "search.json").unlink()
    folder = tmp_path / "trials" / "lr0.001"
    folder.mkdir()
    search = begun(tmp_path, [{"lr": 1e-3}], replace(SETTINGS, epochs=5))
    assert not search.resumes({"lr": 1e-3})
    (folder / "run.json").write_text(json.dumps({"settings": SETTINGS.__dict__}))
    with pytest.raises(SicError, match="other settings"):
        search.resumes({"lr": 1e-3})
    (folder / "run.json").write_text(json.dumps({"settings": replace(SETTINGS, epochs=5, lr=1e-3).__dict__}))
    assert search.resumes({"lr": 1e-3})


def test_both_sentences_about_nan_are_known() -> None:
    from sic.training import base, comparing

    assert all(Path(module.__file__).read_text().count("became NaN") == 1 for module in (base, comparing))
    assert LOST.search("sic: The latents became NaN in epoch 3; try a lower --lr.")


def test_the_papers_grid() -> None:
    photographs = replace(SETTINGS, weights="imagenet", recipe="paper", lr=1e-4, temperature=30.0)
    assert default_axes(photographs, SIC) == {
        "lr": (2.2e-3, 1e-3, 2.2e-4, 1e-4, 2.2e-5, 1e-5),
        "temperature": (10, 30),
    }
    assert default_axes(replace(SETTINGS, lr=3e-4, temperature=50.0), SIC) == {
        "lr": (1e-2, 3e-3, 1e-3, 3e-4),
        "temperature": (10, 30, 50),
    }
    assert default_axes(SETTINGS, SIC)["temperature"] == (1, 10, 30, 50)  # with what is chosen where nothing is said


@pytest.mark.parametrize("name", sorted(name for name, preset in PRESETS.items() if preset.method == "sic"))
def test_the_papers_best_settings_are_on_its_grid(name: str) -> None:
    preset = PRESETS[name]
    settings = replace(SETTINGS, lr=preset.lr, temperature=preset.temperature, weights=preset.weights)
    points = points_of(default_axes(settings, SIC))
    assert len(points) == 12 and {"lr": preset.lr, "temperature": preset.temperature} in points


@pytest.mark.parametrize("names", [("lr", "temperature"), ("lr", "latent"), ("lr",)])
def test_the_picture_of_a_grid(tmp_path: Path, names: tuple[str, ...]) -> None:
    values = [(1e-3, 10), (1e-3, 30), (1e-4, 10), (2.2e-5, 30)]
    points = [dict(zip(names, pair, strict=False)) for pair in values]
    trials = [
        Trial(0, points[0], "finished", 0.9),
        Trial(1, points[1], "finished", 0.4),
        Trial(2, points[2], "failed", reason="The loss became NaN."),
        Trial(3, points[3], "running"),
    ]
    draw(trials, "Accuracy", tmp_path / "grid.png")
    draw(trials[2:], "Accuracy", tmp_path / "none.png")
    for name in ("grid", "none"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert min(picture.size) > 250
    assert best(trials[2:]) is None
