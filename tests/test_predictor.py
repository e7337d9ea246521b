"""The images that a model takes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import sic
from sic.calibration import Calibration
from sic.data.images import to_tensor
from sic.errors import SicError
from tests.report.conftest import Saved, single

__all__ = ["single"]


@pytest.fixture(scope="module")
def model(single: Saved) -> sic.Model:
    return sic.load(single.folder)


def test_one_image_in_every_form(model: sic.Model, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    view = to_tensor(model.config.preprocessing(Image.fromarray(pixels)))
    forms = [tmp_path / "image.png", str(tmp_path / "image.png"), Image.fromarray(pixels), pixels, pixels / 255, view]
    for form in forms:
        assert torch.equal(model.tensor(form), view)
        assert model.predict(form) == model.predict(view)
        one, other = (model.explain(image).classes[0].contributions.maps for image in (form, view))
        assert torch.equal(one, other)
    latents = model.embed(forms)
    assert latents.shape == (len(forms), model.config.latent) and torch.equal(latents[0], latents[3])
    with torch.no_grad():
        torch.testing.assert_close(latents[:1], model.sic.encoder(view[None]))


@pytest.mark.parametrize("kind", ["turned", "transparent", "16 bits", "palette"])
def test_a_pillow_image_is_read_like_its_file(model: sic.Model, tmp_path: Path, kind: str) -> None:
    random, file, more = np.random.default_rng(0), tmp_path / "image.png", {}
    picture = Image.fromarray(random.integers(0, 256, (50, 70, 4), dtype=np.uint8))
    if kind == "turned":
        picture, exif = picture.convert("RGB"), Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        more["exif"] = exif
    elif kind == "16 bits":
        picture = Image.fromarray(random.integers(0, 40_000, (50, 70), dtype=np.uint16))
    elif kind == "palette":
        picture, more = picture.convert("RGB").quantize(8), {"transparency": 3}
    picture.save(file, **more)
    with Image.open(file) as opened:
        found = model.tensor(opened)
        assert torch.equal(found, model.tensor(file))
        assert torch.equal(found, model.tensor(sic.data.read_image(file)))  # nothing is done twice
        assert not torch.equal(found, to_tensor(model.config.preprocessing(opened.convert("RGB"))))


def test_a_truncated_pillow_image(model: sic.Model, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:2000])
    with Image.open(file) as opened, pytest.raises(SicError, match="cannot be used: truncated file"):
        model.tensor(opened)


def test_an_explanation_says_how_its_score_becomes_a_probability(
    model: sic.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).random((50, 70, 3))
    assert "becomes a probability" not in model.explain(image).text  # nothing was fitted
    monkeypatch.setattr(model.classifier, "calibration", Calibration(1.25, -0.75, images=54))
    explanation = model.explain(image)
    formula = re.search(r"becomes a probability by sigmoid\(\(score \+ (.+?)\) / (.+?)\), which", explanation.text)
    assert formula is not None
    shift, scale = map(float, formula.groups())
    found = explanation.classes[0]
    assert 1 / (1 + np.exp(-(found.logit + shift) / scale)) == pytest.approx(found.probability, abs=1e-5)


def test_grey_arrays(model: sic.Model) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (50, 70), dtype=np.uint8)
    assert torch.equal(model.tensor(grey), model.tensor(np.stack([grey] * 3, 2)))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 8, 8), np.uint8), "H×W×3"),
        (np.zeros((8, 8, 4), np.uint8), "8×8×4"),
        (np.zeros((0, 8, 3), np.uint8), "0×8×3"),
        (np.zeros(3, np.uint8), "not 3"),
        (np.full((8, 8, 3), 200.0), r"\[0, 1\]"),
        (np.full((8, 8, 3), np.nan), r"\[0, 1\]"),
        (np.zeros((8, 8, 3), np.int64), "int64"),
    ],
)
def test_arrays_that_are_no_images(model: sic.Model, array: np.ndarray, words: str) -> None:
    with pytest.raises(SicError, match=words):
        model.tensor(array)


def test_a_notebook_shows_the_figure(model: sic.Model) -> None:
    explanation = model.explain(np.zeros((40, 40, 3), np.uint8))
    assert explanation._repr_png_().startswith(b"\x89PNG")
    assert repr(explanation).startswith("<Explanation of 'Why this answer': ") and len(repr(explanation)) < 200
    assert explanation.classes[0].name in repr(explanation)
