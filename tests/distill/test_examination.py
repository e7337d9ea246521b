"""What a distillation measures on labelled images: right answers and grid pointing of student and teacher."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sic.backbones import create
from sic.backbones.distilled import read_distilled
from sic.distill.distill import _examine_teacher
from sic.distill.examination import Examination
from sic.distill.student import create_student
from sic.distill.teacher import Teacher
from sic.distilled_model import load_distilled
from sic.evaluate.localisation import KINDS, draw_grids
from sic.methods import Classifier
from sic.methods.blackbox import GRAD_CAM, INPUT_X_GRADIENT
from tests.cli.conftest import Sic, here
from tests.listening import Listening

CLASSES = 4
SIC = Sic(here)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    torch.manual_seed(0)
    return Teacher(create("resnet_tiny", "conventional"), (torch.randn(CLASSES, 64), torch.randn(CLASSES)))


@pytest.fixture(scope="module")
def examination() -> Examination:
    """Two images of noise for each class."""
    torch.manual_seed(0)
    return Examination(torch.randint(256, (2 * CLASSES, 3, 32, 32), dtype=torch.uint8), torch.arange(8) % CLASSES)


def shares(found: dict[str, Any], who: str) -> list[float]:
    return [found[who][kind]["share"] for kind in KINDS]


def raw_share(classifier: Classifier, examination: Examination) -> float:
    """Of contributions in the right cells of 2×2 grids, one image and one class at a time."""
    side, found = examination.pixels.shape[-1], []
    for row in draw_grids(examination.labels, torch.ones(len(examination.labels), dtype=torch.bool), 2):
        a, b, c, d = (examination.pixels[place].float() / 255 for place in row)
        grid = torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1)[None]
        for cell, place in enumerate(row):
            positive = classifier.explain(grid, examination.labels[place : place + 1]).maps[0].clamp(min=0)
            top, left = cell // 2 * side, cell % 2 * side
            found.append((positive[top : top + side, left : left + side].sum() / positive.sum()).item())
    return sum(found) / len(found)


def test_the_teacher_answers_the_same_as_a_classifier(teacher: Teacher, examination: Examination) -> None:
    logits = teacher(examination.pixels.float() / 255).logits
    assert logits is not None
    found = examination.answers(teacher.classifier(GRAD_CAM))
    assert torch.allclose(found, logits.softmax(1), atol=1e-5)
    right = sum(int(row.argmax()) == int(label) for row, label in zip(found, examination.labels, strict=True))
    assert examination.top(found) == right / 8
    assert examination.top(found, CLASSES) == 1


def test_all_classifiers_point_in_the_same_grids(teacher: Teacher, examination: Examination) -> None:
    student = create_student("resnet_tiny", teacher, alike=True).eval().classifier
    assert student is not None
    ways = {
        "student": student,
        "grad_cam": teacher.classifier(GRAD_CAM),
        "gradient": teacher.classifier(INPUT_X_GRADIENT),
    }
    calls: list[tuple[int, int]] = []
    found = examination.point(
        ways, torch.ones(8, dtype=torch.bool), progress=lambda done, total: calls.append((done, total))
    )
    assert found is not None
    assert (found["grids"], found["chance"], found["pixels"]) == (2, 0.25, 64)
    expected = {who: raw_share(classifier, examination) for who, classifier in ways.items()}
    assert {who: found[who]["raw"]["share"] for who in ways} == pytest.approx(expected, rel=1e-4)
    assert len({round(share, 3) for share in expected.values()}) == 3  # so that none can stand for another
    assert all(0 < share < 1 for who in ways for share in shares(found, who))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_no_grid_without_an_image_of_every_cell(teacher: Teacher, examination: Examination) -> None:
    usable = examination.labels > 0
    assert examination.point({"teacher": teacher.classifier(GRAD_CAM)}, usable) is None


def test_a_teacher_that_guesses_is_announced(teacher: Teacher, examination: Examination) -> None:
    """With labels that are its own answers, it knows everything; with those of the next class, nothing."""
    own = teacher(examination.pixels.float() / 255).logits.argmax(1)
    for shift, share, warnings in ((0, "100.0%", 0), (1, "0.0%", 1)):
        reporter = Listening()
        labelled = Examination(examination.pixels, (own + shift) % CLASSES)
        answers = _examine_teacher(labelled, teacher, reporter)
        assert torch.equal(answers, examination.answers(teacher.classifier(GRAD_CAM)))
        assert reporter.said == [f"The teacher answers {share} of 8 test images correctly."]
        assert len(reporter.warned) == warnings


def sure(answers: Tensor, labels: Tensor) -> Tensor:
    """Stands for `confident`: tiny networks that have learnt nothing are never right with confidence."""
    return torch.ones(len(labels), dtype=torch.bool)


@pytest.fixture
def command(teacher: Teacher, tmp_path: Path) -> list[object]:
    """A distillation of a few steps. Classes differ in brightness, so that shares of networks differ from chance."""
    rng = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "images" / str(number % CLASSES) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        bright = 60 * (number % CLASSES + 1)
        Image.fromarray(rng.integers(bright - 60, bright, (40, 40, 3), dtype=np.uint8)).save(place)
    state = {f"network.{name}": value for name, value in teacher.backbone.network.state_dict().items()}
    torch.save({**state, "fc.weight": teacher.weight, "fc.bias": teacher.bias}, tmp_path / "teacher.pth")
    limits = ["--images", 16, "--size", 32, "--final-size", 32, "--batch-size", 8, "--workers", 0, "--no-compile"]
    files = [
        "--weights",
        tmp_path / "teacher.pth",
        "--test",
        tmp_path / "images",
        "--out",
        tmp_path / "out.safetensors",
    ]
    return ["distill", "resnet_tiny", tmp_path / "images", *files, *limits]


@pytest.mark.slow
def test_a_distillation_says_how_well_both_point(
    command: list[object], teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own maps: measured again with the student in the file and with the teacher."""
    monkeypatch.setattr(sys.modules["sic.distill.distill"], "confident", sure)
    found = SIC.json(*command)["grid_2x2"]
    assert (found["grids"], found["chance"]) == (3, 0.25)
    examination = Examination.read(tmp_path / "images", CLASSES, 0)
    student, _, _ = load_distilled(tmp_path / "out.safetensors")
    ways = {"student": student, "teacher_grad_cam": teacher.classifier(GRAD_CAM)}
    expected = {who: raw_share(classifier, examination) for who, classifier in ways.items()}
    assert {who: found[who]["raw"]["share"] for who in ways} == pytest.approx(expected, rel=1e-3)  # weights of 16 bits
    assert abs(expected["student"] - expected["teacher_grad_cam"]) > 0.01
    assert read_distilled(tmp_path / "out.safetensors").origin["grid_2x2"] == found
    said = " ".join(SIC(*command).stdout.split())
    student, teacher = (found[who]["raw"]["share"] for who in ("student", "teacher_grad_cam"))
    assert (
        f"in 2×2 grids of test images: student {student:.1%}, teacher (Grad-CAM) {teacher:.1%}, chance 25.0%." in said
    )


def test_a_distillation_without_confident_answers_has_no_grids(command: list[object], tmp_path: Path) -> None:
    found = SIC.json(*command)
    assert found["top1"].keys() == {"student", "teacher"} and found["grid_2x2"] is None
    said = SIC(*command)
    assert "grids" not in said.stdout
    assert said.stderr.index("The teacher answers") < said.stderr.index("reading images")
    assert read_distilled(tmp_path / "out.safetensors").origin["grid_2x2"] is None
