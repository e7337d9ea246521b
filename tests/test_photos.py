"""The weights that come with the package: they answer, explain, and are the start of a fit on photographs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

import sic
import sic.data
from sic.backbones.distilled import PHOTOS, PHOTOS_SMALL, SHIPPED, distilled_file, read_distilled
from sic.errors import SicError
from sic.training import choose
from sic.training.choose import photographs


def scenes(folder: Path, *, grey: bool = False, side: int = 120) -> Path:
    """Crops of two photographs that scikit-learn has, twelve of each."""
    rng = np.random.default_rng(0)
    for name in ("china", "flower"):
        photo = Image.fromarray(load_sample_image(f"{name}.jpg"))
        (folder / name).mkdir(parents=True)
        for number in range(12):
            left, top = rng.integers(0, photo.width - 220), rng.integers(0, photo.height - 220)
            crop = photo.crop((left, top, left + 220, top + 220)).resize((side, side))
            (crop.convert("L") if grey else crop).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(("name", "rank"), [(PHOTOS, 1), (PHOTOS_SMALL, 2)])
def test_a_photograph_is_named_and_explained_without_training(name: str, rank: int) -> None:
    """A Chinese pavilion: for the small network it is a stupa, then a palace."""
    model = sic.load(name)
    photo = Image.fromarray(load_sample_image("china.jpg"))
    assert len(model.classes) == 1000
    probabilities = model.predict(photo).probabilities
    assert sorted(probabilities, key=lambda name: -probabilities[name]).index("palace") == rank - 1
    assert abs(model.explain(photo).residual) < 1e-4


@pytest.mark.parametrize("name", SHIPPED)
def test_the_file_has_no_biases_and_states_its_origin(name: str) -> None:
    content = read_distilled(SHIPPED[name])
    assert not [place for place in content.network if place.endswith(("bias", "running_mean"))]
    assert content.origin["seen"] > 1_000_000 and "ImageNet" in content.origin["terms"]


def test_the_files_are_small_enough_for_a_package() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.values()) < 75e6


def test_a_model_directory_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(PHOTOS).mkdir()  # a folder of images does not hide the weights
    assert distilled_file(PHOTOS) == SHIPPED[PHOTOS]
    (Path(PHOTOS) / "config.json").write_text("{}")
    assert distilled_file(PHOTOS) is None


def test_photographs_in_colour_start_from_them(tmp_path: Path) -> None:
    data = sic.data.open(scenes(tmp_path / "colour"))
    settings, notes = choose(data, {}, gpu=False)
    assert (settings.weights, settings.recipe, settings.backbone) == (PHOTOS, "frozen", "resnet50_smooth")
    assert any("comes with sic" in note for note in notes)


@pytest.mark.parametrize("said", [{"epochs": 3}, {"backbone": "resnet_tiny"}, {"recipe": "scratch"}])
def test_whoever_says_how_to_train_is_obeyed(tmp_path: Path, said: dict[str, object]) -> None:
    assert choose(sic.data.open(scenes(tmp_path / "colour")), said, gpu=False)[0].weights is None


def test_grey_and_small_images_and_rendered_birds_are_no_photographs(tmp_path: Path) -> None:
    assert photographs(sic.data.open(scenes(tmp_path / "colour")))
    assert not photographs(sic.data.open(scenes(tmp_path / "grey", grey=True)))
    assert not photographs(sic.data.open(scenes(tmp_path / "small", side=64)))


def test_a_report_needs_a_model_directory() -> None:
    from typer.testing import CliRunner

    from sic.cli.main import app

    outcome = CliRunner().invoke(app, ["report", PHOTOS])
    assert isinstance(outcome.exception, SicError) and "model directory" in str(outcome.exception)


@pytest.mark.slow
def test_a_fit_without_settings_tells_two_scenes_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.training.frozen.STEPS", 200)  # enough for two scenes
    model = sic.fit(scenes(tmp_path / "scenes"), out=tmp_path / "model", workers=0)
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    prediction = model.predict(photo)
    assert prediction.labels == ["flower"] and len(prediction.evidence) >= 3
    assert sic.load(tmp_path / "model").config.training["weights"] == PHOTOS
