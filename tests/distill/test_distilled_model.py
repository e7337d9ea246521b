"""A file of `sic distill` as a model that answers and explains."""

from pathlib import Path

import pytest
import torch

import sic
from sic.backbones import create
from sic.backbones.distilled import Distilled
from sic.distilled_model import class_names
from sic.errors import SicError
from tests.models import small_distilled


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_distilled(tmp_path_factory.mktemp("distilled") / "photos.safetensors")


def test_a_distilled_file_answers_and_explains(file: Path, tmp_path: Path) -> None:
    model = sic.load(file)
    picture = torch.rand(3, 224, 224)
    prediction = model.predict(picture)
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    explanation = model.explain(picture)
    assert explanation.residual < 1e-4
    first, second = sorted(prediction.probabilities, key=lambda name: -prediction.probabilities[name])[:2]
    assert f"no score alone is a yes: after {first} comes {second} (" in explanation.text
    explanation.save(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_the_classifier_is_the_one_in_the_file(file: Path) -> None:
    """Against the formula: ‖f‖ cos² sgn / T + b."""
    model = sic.load(file)
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        pooled = model.classifier.backbone(images)
        head = model.classifier.head.weight  # type: ignore[union-attr]
        cosine = torch.nn.functional.cosine_similarity(pooled[:, None], head[None], dim=2)
        wanted = pooled.norm(dim=1, keepdim=True) * cosine * cosine.abs() / 0.5 + model.classifier.bias
        assert torch.allclose(model.classifier(images), wanted, atol=1e-4)


def test_a_file_without_a_classifier_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "features.safetensors"
    Distilled("resnet_tiny", create("resnet_tiny", "bcosified").network.state_dict()).write(file)
    with pytest.raises(SicError, match="without a classifier"):
        sic.load(file)


def test_class_names_are_all_different() -> None:
    names = class_names(1000)
    assert len(set(names)) == 1000 and names[285] == "Egyptian cat"
    assert class_names(3) == ["class 1", "class 2", "class 3"]


def test_it_states_how_good_it_is_and_its_terms(tmp_path: Path) -> None:
    origin = {"teacher": "resnet50 (own)", "top1": {"student": 0.6, "teacher": 0.7}, "terms": "Ask the hospital."}
    model = sic.load(small_distilled(tmp_path / "known.safetensors", **origin))
    assert model.config.figures["test"] == {"accuracy": 0.6, "teacher_accuracy": 0.7}
    named = small_distilled(tmp_path / "named.safetensors", **origin, tested_on={"name": "X-rays", "images": 50})
    tested = {"accuracy": 0.6, "teacher_accuracy": 0.7, "name": "X-rays", "images": 50}
    assert sic.load(named).config.figures["test"] == tested
    wrong: list[dict[str, object]] = [
        {"tested_on": {"name": "X-rays"}},
        {"tested_on": {"name": "X-rays", "images": -1}},
        {"top1": {"student": float("nan"), "teacher": 0.7}},
    ]
    for change in wrong:
        damaged = small_distilled(tmp_path / "damaged.safetensors", **{**origin, **change})
        with pytest.raises(SicError, match="says about its test is damaged"):
            sic.load(damaged)
    model.save(tmp_path / "copy")
    card = (tmp_path / "copy" / "README.md").read_text(encoding="utf-8")
    assert sic.load(tmp_path / "copy").config.figures == model.config.figures
    assert "Ask the hospital." in card and "resnet50 (own)" in card and "60" in card
    assert sic.load(small_distilled(tmp_path / "unknown.safetensors")).config.figures == {}
