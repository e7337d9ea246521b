"""The images that a model takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sic
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
