"""How `sic train` says whether a model promises anything."""

from typing import Any

import pytest

from sic.calibration import Calibration, Promise
from sic.data.images import Preprocessing
from sic.directory import Config
from sic.evaluate.headline import Headline, Part
from sic.fitting import _promise


def config(images: int, answered: int, right: int, **more: Any) -> Config:
    """Of a frozen model with these validation images; with 59 and no mistake it could promise something."""
    parts = Part(answered, images), Part(right, answered), Part(right, images)
    headline = Headline(*parts, 0.5, "a", 0.5).as_json()
    figures = {"validation": {"images": images, "headline": headline}}
    return Config("resnet_tiny", ["a", "b"], "single", Preprocessing(32, 32), 1, 1.0, figures=figures, **more)


@pytest.mark.parametrize(
    ("images", "answered", "right", "words"),
    [
        (40, 40, 40, "40 held-out images are too few (at least 59 are needed)."),
        (72, 72, 71, "72 held-out images are too few for the mistakes among them (59 would do without any)."),
        (72, 40, 40, "72 held-out images have too few answers (40; at least 59 are needed)."),
        (72, 0, 0, "72 held-out images have too few answers (0; at least 59 are needed)."),
        (72, 72, 60, "72 held-out images show too many mistakes."),
        (1000, 1000, 940, "1000 held-out images show too many mistakes."),
    ],
)
def test_why_there_is_no_promise(images: int, answered: int, right: int, words: str) -> None:
    assert _promise(config(images, answered, right), images) == f"The model promises nothing about new images: {words}"


def test_more_models_need_more_images() -> None:
    compared = config(72, 72, 72, training={"recipe": "scratch", "epochs": 10})
    assert "too few (at least 104 are needed)" in _promise(compared, 72)


def test_copies_alone_promise_nothing() -> None:
    assert "all held-out images are copies of training images" in _promise(config(72, 72, 72), 0)
    assert "60 held-out images (without copies, one of each group)" in _promise(config(72, 72, 60), 60)


def test_a_promise_is_said() -> None:
    promise = Promise(None, 0.05, 0.95, 72, 72, 0)
    said = _promise(config(72, 72, 72, calibration=Calibration(promise=promise)), 72)
    assert said == f"{promise} `sic predict --promise` gives only these answers."
