from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import open as open_data
from sic.data.dataset import ImageData, Skipped
from sic.data.images import Preprocessing
from sic.errors import SicError
from sic.training.data import TrainingData, gather
from sic.training.history import Silent
from tests.models import small_settings

PREPROCESSING = Preprocessing(8, 8)
SETTINGS = small_settings(size=PREPROCESSING.size, resize=PREPROCESSING.resize, fit=PREPROCESSING.fit, validation=0.25)


def plant(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(root / name / f"{i:02d}.png")
    return root


def gathered(data: ImageData, tmp_path: Path) -> TrainingData:
    return gather(data, SETTINGS, tmp_path / "pixels.bin", 1, Silent())


def check_pixels(material: TrainingData) -> None:
    for images in (material.train, material.validation):
        assert len(images) == len(images.samples)
        for index, sample in enumerate(images.samples):
            with Image.open(sample.path) as image:
                np.testing.assert_array_equal(images[index], PREPROCESSING.reduce(image))


def test_a_validation_set_is_split_off(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"a": 8, "b": 12})
    (root / "a" / "03.png").write_text("broken")
    (root / "b" / "notes.txt").write_text("words")
    material = gathered(open_data(root), tmp_path)
    assert Counter(s.labels for s in material.validation.samples) == {(0,): 2, (1,): 3}
    assert len(material.train) == 7 - 2 + 12 - 3
    names = [s.id for s in material.train.samples + material.validation.samples]
    assert len(set(names)) == 19 and "a/03.png" not in names
    assert material.skipped == [
        Skipped("b/notes.txt", "not an image by its name (.txt)"),
        Skipped("a/03.png", "not an image"),
    ]
    check_pixels(material)
    for label, rows in material.candidates.items():
        assert rows == [i for i, s in enumerate(material.train.samples) if s.labels == (label,)]


def test_a_given_validation_set_is_kept(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"train/a": 3, "train/b": 2, "val/a": 2, "val/b": 1})
    (root / "val" / "a" / "00.png").write_bytes(b"")
    data = open_data(root)
    material = gathered(data, tmp_path)
    assert material.train.samples == data.splits["train"]
    assert [s.id for s in material.validation.samples] == ["val/a/01.png", "val/b/00.png"]
    assert material.skipped == [Skipped("val/a/00.png", "empty file")]
    assert material.candidates == {0: [0, 1, 2], 1: [3, 4]}
    check_pixels(material)


def test_test_images_stay_out(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"train/a": 6, "train/b": 6, "test/a": 3, "test/b": 3})
    material = gathered(open_data(root), tmp_path)
    assert all(s.id.startswith("train/") for s in material.train.samples + material.validation.samples)
    assert len(material.train) + len(material.validation) == 12


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    class Counting(Silent):
        def advance(self, task: str, done: int, total: int, note: str = "") -> None:
            seen.append((task, done, total))

    data = open_data(plant(tmp_path / "data", {"a": 5, "b": 5}))
    gather(data, SETTINGS, tmp_path / "pixels.bin", 0, Counting())
    assert seen == [("reading images", i, 10) for i in range(1, 11)]


def test_a_class_without_readable_images_is_named(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"good": 6, "bad": 2})
    for file in (root / "bad").iterdir():
        file.write_text("broken")
    with pytest.raises(SicError, match=r"'bad'.*2 files were skipped"):
        gathered(open_data(root), tmp_path)


def test_too_few_images_to_check_a_model_on(tmp_path: Path) -> None:
    with pytest.raises(SicError, match=r"too few readable images.*\(8\)"):
        gathered(open_data(plant(tmp_path / "data", {"a": 4, "b": 4})), tmp_path)


def test_the_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    data = open_data(plant(tmp_path / "data", {"a": 12, "b": 12}))
    first, second = (gathered(data, tmp_path) for _ in range(2))
    assert first.validation.samples == second.validation.samples
    assert first.train.samples == second.train.samples
