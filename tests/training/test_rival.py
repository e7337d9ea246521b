"""Images that are no photographs: a model with the network for photographs and one from scratch, and who is kept."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sic
from sic import fitting
from sic.backbones import create
from sic.backbones.distilled import Distilled
from sic.card import models_compared
from sic.directory import read_config, read_run
from sic.errors import SicError
from sic.training.history import Silent
from tests.listening import Listening

SMALL = {"size": 32, "workers": 0}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small network in place of the weights for photographs, and few steps and epochs, which nobody has asked for."""
    choose = fitting.choose

    def briefly(*arguments: Any) -> Any:
        settings, notes = choose(*arguments)
        return replace(settings, epochs=min(settings.epochs, 4)), notes

    monkeypatch.setattr(fitting, "choose", briefly)
    monkeypatch.setattr("sic.training.frozen.STEPS", 100)
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    backbone.train()(torch.rand(16, 3, 32, 32))
    Distilled("resnet_tiny", backbone.network.state_dict()).write(tmp_path / "weights.safetensors")
    monkeypatch.setattr(sys.modules["sic.training.choose"], "PHOTOS", str(tmp_path / "weights.safetensors"))


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """Grey pictures of 100 px: a bright spot on the left or on the right."""
    rng = np.random.default_rng(0)
    for number in range(24):
        picture = rng.integers(0, 60, (100, 100), dtype=np.uint8)
        side = "left" if number % 2 else "right"
        picture[30:60, slice(10, 40) if side == "left" else slice(60, 90)] += 150
        place = tmp_path / "xrays" / side / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place)
    return tmp_path / "xrays"


def decide(monkeypatch: pytest.MonkeyPatch, photos: float, scratch: float) -> None:
    """Let both models have these validation scores, and those that are measured later their own."""
    scores = iter([photos, scratch])
    measure = fitting._figures

    def measured(*arguments: Any) -> dict[str, Any]:
        figures = measure(*arguments)
        figures["validation"]["accuracy"] = next(scores, figures["validation"]["accuracy"])
        return figures

    monkeypatch.setattr(fitting, "_figures", measured)


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(("photographs", "scratch"), [(0.9, 0.8), (0.8, 0.9)])
def test_the_better_model_is_kept(
    photographs: float, scratch: float, xrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(monkeypatch, photographs, scratch)
    reporter, out = Listening(), tmp_path / "model"
    model = sic.fit(xrays, out, reporter=reporter, **SMALL)  # type: ignore[arg-type]
    recipe = "frozen" if photographs > scratch else "scratch"
    assert read_run(out)["settings"]["recipe"] == recipe == read_config(out)[0].training["recipe"]
    assert (out / "history.csv").is_file() == (recipe == "scratch")
    assert not (tmp_path / "model.photos").exists()
    assert model.config.backbone == ("resnet_tiny" if recipe == "frozen" else "resnet_small")
    assert models_compared(model.config.training) == 1 + 4  # the frozen one, and the epochs of the other
    assert "not colour photographs" in "\n".join(reporter.said)
    assert f"{photographs:.1%} with the network for photographs, {scratch:.1%} from scratch" in "\n".join(reporter.said)
    assert abs(sic.load(out).explain(xrays / "left" / "1.png").residual) < 1e-3
    resumed = sic.fit(xrays, out, resume=True, workers=0)  # it is finished, and its rival is gone
    assert resumed.config.training["recipe"] == recipe and models_compared(resumed.config.training) == 1 + 4
    assert models_compared(read_config(out)[0].training) == 1 + 4


@pytest.mark.usefixtures("photos")
def test_models_that_were_compared_before_count(xrays: Path, tmp_path: Path) -> None:
    for resume in (False, True):
        more = {"resume": True, "workers": 0} if resume else {"compared": 7, **SMALL}
        model = sic.fit(xrays, tmp_path / "model", **more)  # type: ignore[arg-type]
        assert models_compared(model.config.training) == 1 + 4 + 7


@pytest.mark.usefixtures("photos")
def test_an_interrupted_fit_still_compares(xrays: Path, tmp_path: Path) -> None:
    class Interrupted(Silent):
        def advance(self, task: str, done: int, total: int, note: str = "") -> None:
            if note.startswith("epoch 3"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sic.fit(xrays, tmp_path / "model", reporter=Interrupted(), **SMALL)  # type: ignore[arg-type]
    assert (tmp_path / "model.photos" / "config.json").is_file()
    reporter = Listening()
    model = sic.fit(xrays, tmp_path / "model", resume=True, workers=0, reporter=reporter)
    assert "model is kept" in "\n".join(reporter.said) and models_compared(model.config.training) == 1 + 4
    assert not (tmp_path / "model.photos").exists()


@pytest.mark.usefixtures("photos")
def test_a_folder_in_the_way_is_left_alone(xrays: Path, tmp_path: Path) -> None:
    (tmp_path / "model.photos").mkdir()
    (tmp_path / "model.photos" / "cat.jpg").touch()
    with pytest.raises(SicError, match="in the way"):
        sic.fit(xrays, tmp_path / "model", **SMALL)  # type: ignore[arg-type]
    assert (tmp_path / "model.photos" / "cat.jpg").is_file()


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize("said", [{"recipe": "scratch"}, {"backbone": "resnet_tiny"}, {"method": "bcos"}])
def test_who_says_how_to_train_gets_one_model(said: dict[str, str], xrays: Path, tmp_path: Path) -> None:
    reporter = Listening()
    sic.fit(xrays, tmp_path / "model", reporter=reporter, **said, **SMALL)  # type: ignore[arg-type]
    assert "not colour photographs" not in "\n".join(reporter.said)
