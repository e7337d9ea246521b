"""The images that a model takes."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import sic
from sic.calibration import Calibration
from sic.data.dataset import Sample
from sic.data.images import to_tensor
from sic.errors import SicError
from sic.predictions import Predictions
from sic.predictor import ImageInputs
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


def test_several_images_in_every_form(model: sic.Model) -> None:
    """Lists, arrays and tensors of images give the same answers; none of them may be asked whether it is true."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 50, 70, 3), dtype=np.uint8)
    single = [model.predict(image) for image in pixels]
    views = torch.stack([model.tensor(image) for image in pixels])
    for images in (list(pixels), tuple(pixels), pixels, pixels / 255, views):
        for one, other in zip(model.predict_many(images), single, strict=True):
            assert one.labels == other.labels and one.probabilities == pytest.approx(other.probabilities, rel=1e-4)
        torch.testing.assert_close(model.embed(images), model.embed(list(views)))


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 50, 70, 3), np.uint8), torch.zeros(0, 3, 40, 40)])
def test_no_images(model: sic.Model, nothing: ImageInputs) -> None:
    assert model.predict_many(nothing) == [] and model.embed(nothing).shape == (0, model.config.latent)


def test_one_array_instead_of_several(model: sic.Model) -> None:
    for call in (model.predict_many, model.embed, model.explain_many, model.contributions):
        with pytest.raises(SicError, match="N×H×W×3, not 50×70×3"):
            list(call(np.zeros((50, 70, 3), np.uint8)))


def held_out(scores: torch.Tensor, right: torch.Tensor, copies: frozenset[str] = frozenset()) -> Predictions:
    """Of images of two classes, by the score of the answer and whether it is right."""
    answers = torch.stack([scores, torch.full_like(scores, -9.0)], 1)
    labels = (~right).long().tolist()
    samples = [Sample(f"{row}.png", Path(f"{row}.png"), (label,)) for row, label in enumerate(labels)]
    nothing = torch.zeros(len(samples), 0)
    return Predictions(
        answers,
        "single",
        classes=["a", "b"],
        samples=samples,
        evidence=nothing,
        owners=nothing[0].long(),
        copies=copies,
    )


@pytest.fixture
def uncalibrated(single: Saved) -> sic.Model:
    return sic.load(single.folder)


def test_copies_play_no_part_in_calibration_and_promise(uncalibrated: sic.Model) -> None:
    scores, right = torch.linspace(-2, 3, 400), torch.arange(400) >= 120
    ids = [f"{row}.png" for row in range(400)]
    every = held_out(scores, right)
    uncalibrated.calibrate(every.subset(range(0, 400, 2)))
    expected = uncalibrated.config.calibration
    assert expected.promise is not None and expected.images == 200
    uncalibrated.calibrate(replace(every, copies=frozenset(ids[1::2])))
    assert uncalibrated.config.calibration == expected == uncalibrated.classifier.calibration


def test_copies_alone_carry_no_promise(uncalibrated: sic.Model) -> None:
    """They still make probabilities, as there are no other images."""
    scores, right = torch.linspace(-2, 3, 200), torch.arange(200) >= 60
    every = held_out(scores, right)
    uncalibrated.calibrate(every)
    expected = uncalibrated.config.calibration
    uncalibrated.calibrate(replace(every, copies=frozenset(sample.id for sample in every.samples)))
    assert expected.promise is not None and uncalibrated.config.calibration == replace(expected, promise=None)


def test_answers_without_a_similar_case_are_not_promised(uncalibrated: sic.Model) -> None:
    """Images with a low score are nearest to their own class, too, but have no similar case."""
    every = held_out(torch.cat([torch.linspace(-8, -4, 100), torch.linspace(1, 3, 100)]), torch.ones(200).bool())
    uncalibrated.calibrate(every)
    promise = uncalibrated.promise
    found = replace(every, calibration=uncalibrated.config.calibration)
    assert found.similar_case.tolist() == [False] * 100 + [True] * 100
    assert (promise.images, promise.answered, promise.mistakes) == (200, 100, 0)
    assert torch.equal(found.promised, found.similar_case)


def test_a_promise_can_be_fitted_again_for_more_models(uncalibrated: sic.Model) -> None:
    every = held_out(torch.linspace(0, 3, 80), torch.ones(80).bool())
    uncalibrated.calibrate(every)
    expected = uncalibrated.config.calibration
    uncalibrated.promise_again(every, 2)
    assert uncalibrated.promise.answered == 80
    uncalibrated.promise_again(every, 10)
    assert uncalibrated.config.calibration == replace(expected, promise=None) != expected


def test_why_a_model_promises_nothing(uncalibrated: sic.Model) -> None:
    config = uncalibrated.config
    few, many = held_out(torch.linspace(0, 3, 40), torch.ones(40).bool()), held_out(torch.ones(80), torch.ones(80) > 0)

    def reason() -> str:
        with pytest.raises(SicError, match=r"^This model makes no promise: [^.]*\.$") as refused:
            _ = uncalibrated.promise
        return str(refused.value)

    config.training = {**config.training, "recipe": "frozen", "compared": 11}
    config.figures = few.measured("validation")
    uncalibrated.calibrate(few)  # which would not do for one model either
    assert "too few held-out images" in reason() and "copies" in reason() and "edit" not in reason()
    config.figures = many.measured("validation")
    uncalibrated.calibrate(many)
    parked = asdict(uncalibrated.promise)
    uncalibrated.promise_again(many, 12)
    assert "12 models were compared on its held-out images" in reason() and "too few" not in reason()
    edit = {"action": "drop", "undone": None, "promise": parked}
    config.edits = [edit]
    assert "supports were edited" in reason() and "undo" in reason() and "12 models" not in reason()
    config.edits = [{**edit, "promise": None}]  # undo would restore none
    assert "12 models" in reason() and "undo" not in reason()
    config.training, config.edits, config.task = {"recipe": "frozen"}, [], "multi"
    assert "several labels" in reason() and "more images" not in reason()


def test_a_notebook_shows_the_figure(model: sic.Model) -> None:
    explanation = model.explain(np.zeros((40, 40, 3), np.uint8))
    assert explanation._repr_png_().startswith(b"\x89PNG")
    assert repr(explanation).startswith("<Explanation of 'Why this answer': ") and len(repr(explanation)) < 200
    assert explanation.classes[0].name in repr(explanation)
