"""A fit that imitates a trained model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sic
from sic.data import open as open_data
from sic.errors import SicError
from sic.training.choose import choose
from sic.training.teacher import IMITATED, Lesson, load_teacher, seen_by

SMALL: dict[str, Any] = {"size": 32, "backbone": "resnet_tiny", "workers": 0}
BLACK_BOX: dict[str, Any] = {**SMALL, "method": "blackbox", "form": "conventional"}


@pytest.fixture(scope="module")
def teacher(bird_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    sic.fit(bird_folders, folder, **BLACK_BOX, epochs=1)
    return folder


def test_targets_lie_between_labels_and_answers() -> None:
    labels = torch.tensor([[1.0, 0.0, torch.nan]])
    found = Lesson(torch.tensor([[0.6, 0.3, 0.1]]), None).targets(labels)
    wanted = [1 - IMITATED + IMITATED * 0.6, IMITATED * 0.3]
    assert found[0, :2].tolist() == pytest.approx(wanted) and found[0, 2].isnan()


def test_unlikeness_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    maps, features = torch.rand(3, 5, 2, 2, generator=generator), torch.rand(3, 4, 5, generator=generator)
    lesson = Lesson(torch.zeros(3, 2), maps)

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a * b).sum() / (a * a).sum().sqrt() / (b * b).sum().sqrt())

    pooled = places = 0.0
    for image in range(3):
        own = torch.stack([features[image, 2 * y + x] for y in (0, 1) for x in (0, 1)])
        right = torch.stack([maps[image, :, y, x] for y in (0, 1) for x in (0, 1)])
        pooled += (1 - cosine(own.mean(0), right.mean(0))) / 3
        places += (1 - cosine(own, right)) / 3
    assert lesson.unlikeness(features).item() == pytest.approx(pooled + places, abs=1e-6)
    assert lesson.unlikeness(features.mean(1)).item() == pytest.approx(pooled, abs=1e-6)
    assert lesson.unlikeness(features[..., :4]).item() == 0  # another width


def test_a_teacher_says_what_its_model_says(teacher: Path, bird_folders: Path) -> None:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = sic.load(teacher)
    with torch.no_grad():
        wanted = model.classifier.probabilities(model.classifier(images))
    lesson = load_teacher(teacher)(images)
    torch.testing.assert_close(lesson.probabilities, wanted)
    assert lesson.maps is not None and lesson.maps.dim() == 4


@pytest.mark.slow
def test_a_student_comes_closer_to_its_teacher(teacher: Path, bird_folders: Path, tmp_path: Path) -> None:
    """Labels alone say nothing about how probable the teacher finds the other classes."""
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    wanted = load_teacher(teacher)(images).probabilities
    apart = []
    for name, said in (("alone", {}), ("taught", {"teacher": str(teacher)})):
        student = sic.fit(bird_folders, tmp_path / name, **BLACK_BOX, **said, lr=1e-3, epochs=4)
        with torch.no_grad():
            answers = student.classifier.probabilities(student.classifier(images))
        apart.append((answers - wanted).abs().mean().item())
    assert apart[1] < apart[0]
    assert json.loads((tmp_path / "taught" / "run.json").read_text())["settings"]["teacher"] == str(teacher)


@pytest.mark.slow
def test_a_teacher_is_not_part_of_the_model(teacher: Path, bird_folders: Path, tmp_path: Path) -> None:
    model = sic.fit(bird_folders, tmp_path / "sic", teacher=str(teacher), **SMALL, epochs=1)
    assert not [name for name in model.classifier.state_dict() if "teacher" in name]


def test_a_teacher_of_other_classes_is_refused(teacher: Path, bird_folders: Path, tmp_path: Path) -> None:
    first = sorted(path for path in bird_folders.iterdir() if path.is_dir())[0]
    for name in ("x", "y"):
        (tmp_path / name).symlink_to(first, target_is_directory=True)
    with pytest.raises(SicError, match="trained on other classes"):
        choose(open_data(tmp_path), {"teacher": str(teacher), "size": 32})


def test_a_teacher_of_other_images_is_refused(teacher: Path, bird_folders: Path) -> None:
    with pytest.raises(SicError, match="sees 32 px, not 48; give both the same --size"):
        choose(open_data(bird_folders), {"teacher": str(teacher), "size": 48})


def test_a_method_that_cannot_imitate_says_so(teacher: Path, bird_folders: Path) -> None:
    with pytest.raises(SicError, match="--teacher does not apply to --method protopnet"):
        choose(open_data(bird_folders), {"teacher": str(teacher), "method": "protopnet"})


def test_images_that_a_teacher_knows_are_counted(teacher: Path) -> None:
    known = json.loads((teacher / "run.json").read_text())["train"]
    assert seen_by(teacher, {*known[:3], "new.png"}) == 3
    assert seen_by(teacher / "elsewhere", set(known)) == 0
