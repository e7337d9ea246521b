"""The images of a run: what is read, skipped and split off; pictures on both sides of a split stop a run."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import open as open_data
from sic.data.dataset import ImageData, Skipped
from sic.data.images import Preprocessing, read_image
from sic.errors import SicError
from sic.training.data import TrainingData, gather
from sic.training.history import Silent
from tests.data.test_duplicates import jpeg, picture
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
        Skipped("b/notes.txt", "not an image file (.txt)"),
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


class Listening(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    warn = say


def draw(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    """Folders of pictures that are all different."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(first + number).save(root / folder / f"{number}.png")
        first += count
    return root


def gather_from(
    root: Path, listener: Silent | None = None, *, allow_leaks: bool = False, drop_leaks: bool = False, seed: int = 0
) -> TrainingData:
    settings = replace(SETTINGS, allow_leaks=allow_leaks, drop_leaks=drop_leaks, seed=seed)
    return gather(open_data(root), settings, root.parent / "pixels.bin", 0, listener or Silent())


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize(
    ("change", "words"), [(lambda image: image, "the same image"), (jpeg, "nearly the same image")]
)
def test_a_copy_that_is_held_out_stops_the_run(tmp_path: Path, split: str, change: Callable, words: str) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, f"{split}/a": 2, f"{split}/b": 2})
    assert gather_from(root).leaks == 0
    change(picture(7)).save(root / split / "a" / "copy.png")
    with pytest.raises(SicError) as raised:
        gather_from(root)
    sentence = str(raised.value)
    assert f"train/b/2.png (train) and {split}/a/copy.png ({split}) are {words}: figures" in sentence
    assert "--allow-leaks" in sentence and "sic data check" in sentence and "such pairs" not in sentence
    change(picture(1)).save(root / split / "b" / "another.png")
    with pytest.raises(SicError, match=f"{words}, the first of 2 such pairs:"):
        gather_from(root)


def test_leaks_can_be_allowed_and_are_counted(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 2})
    picture(0).save(root / "test" / "a" / "copy.png")
    listener = Listening()
    assert gather_from(root, listener, allow_leaks=True).leaks == 1
    assert "train/a/0.png (train) and test/a/copy.png (test)" in listener.said[0] and "too good" in listener.said[0]


def test_one_copy_among_many_is_reported_once(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "test/a": 10, "test/b": 10})
    picture(0).save(root / "test" / "a" / "copy.png")
    listener = Listening()
    material = gather_from(root, listener)
    assert material.leaks == 1 and material.tainted == {"test": {"test/a/copy.png"}}
    assert len(material.train) + len(material.validation) == 10
    assert [said for said in listener.said if "copy.png" in said] == [
        "1 of the 21 test images is in training, too (test/a/copy.png as train/a/0.png). Figures are given with and "
        "without it; --drop-leaks removes the training images instead."
    ]


def test_leaks_can_be_dropped(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 6, "train/b": 6, "test/a": 2, "test/b": 2})
    jpeg(picture(0)).save(root / "test" / "a" / "copy.png")
    picture(0).save(root / "train" / "a" / "again.png")
    listener = Listening()
    material = gather_from(root, listener, drop_leaks=True)
    assert material.leaks == 0 and material.tainted == {}
    kept = {sample.id for sample in [*material.train.samples, *material.validation.samples]}
    assert kept == {f"train/{name}/{i}.png" for name in "ab" for i in range(6)} - {"train/a/0.png"}
    assert "test/a/copy.png" in {sample.id for sample in material.test}
    assert (
        listener.said[0]
        == "Training images removed, because they are copies of held-out images or share their group: 2."
    )
    for index in range(len(material.train)):  # the pixels are still those of the samples
        wanted = Preprocessing.of(SETTINGS).reduce(read_image(material.train.samples[index].path))
        assert (material.train[index] == wanted).all()


def test_a_patient_on_both_sides_is_a_leak(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 6, "train/b": 6, "test/a": 2, "test/b": 2})
    data = open_data(root, group=r"[ab]/\d")
    with pytest.raises(SicError, match="belong to the same group"):
        gather(data, SETTINGS, tmp_path / "pixels.bin", 0, Silent())


def test_validation_and_test_may_share_pictures(tmp_path: Path) -> None:
    """Nothing is trained on these; `sic data check` says so."""
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "val/a": 2, "val/b": 2, "test/a": 2, "test/b": 2})
    picture(11).save(root / "test" / "a" / "copy.png")
    assert gather_from(root).leaks == 0


def test_test_images_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 1})
    (root / "test" / "b" / "broken.png").write_text("words")
    material = gather_from(root)
    assert material.skipped == [Skipped("test/b/broken.png", "not an image")]
    assert [sample.id for sample in material.test] == ["test/a/0.png", "test/a/1.png", "test/b/0.png"]


def test_copies_are_not_split_apart(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"a": 8, "b": 8})
    for number in range(4):
        jpeg(picture(number)).save(root / "a" / f"copy {number}.png")
        picture(8 + number).save(root / "b" / f"copy {number}.png")
    sides = set()
    for seed in range(6):
        listener = Listening()
        material = gather_from(root, listener, seed=seed)
        held = {sample.id for sample in material.validation.samples}
        assert held and not held & {sample.id for sample in material.train.samples}
        for label in "ab":
            for number in range(4):
                pair = {f"{label}/{number}.png", f"{label}/copy {number}.png"}
                assert len(held & pair) in (0, 2)
                sides.add(len(held & pair))
        (said,) = listener.said
        assert said.startswith("Images that are copies of others: 8, such as a/0.png and a/copy 0.png; copies stay")
    assert sides == {0, 2}


def test_nothing_but_copies_cannot_be_split(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for folder, seed in (("a", 0), ("b", 1)):
        (root / folder).mkdir(parents=True)
        for number in range(8):
            picture(seed).save(root / folder / f"{number}.png")
    with pytest.raises(SicError, match="copies"):
        gather_from(root)
