"""Pictures on both sides of a split stop a run; where sic splits, copies stay on one side."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sic.data import open as open_data
from sic.data.dataset import Skipped
from sic.errors import SicError
from sic.training.data import TrainingData, gather
from sic.training.history import Silent
from tests.data.test_duplicates import jpeg, picture
from tests.training.test_data import SETTINGS


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


def gathered(root: Path, listener: Silent | None = None, *, allow_leaks: bool = False, seed: int = 0) -> TrainingData:
    settings = replace(SETTINGS, allow_leaks=allow_leaks, seed=seed)
    return gather(open_data(root), settings, root.parent / "pixels.bin", 0, listener or Silent())


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize(
    ("change", "words"), [(lambda image: image, "the same image"), (jpeg, "nearly the same image")]
)
def test_a_copy_that_is_held_out_stops_the_run(tmp_path: Path, split: str, change: Callable, words: str) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, f"{split}/a": 2, f"{split}/b": 2})
    assert gathered(root).leaks == 0
    change(picture(7)).save(root / split / "a" / "copy.png")
    with pytest.raises(SicError) as raised:
        gathered(root)
    sentence = str(raised.value)
    assert f"train/b/2.png (train) and {split}/a/copy.png ({split}) are {words}: figures" in sentence
    assert "--allow-leaks" in sentence and "sic data check" in sentence and "such pairs" not in sentence
    change(picture(1)).save(root / split / "b" / "another.png")
    with pytest.raises(SicError, match=f"{words}, the first of 2 such pairs:"):
        gathered(root)


def test_leaks_can_be_allowed_and_are_counted(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 2})
    picture(0).save(root / "test" / "a" / "copy.png")
    listener = Listening()
    assert gathered(root, listener, allow_leaks=True).leaks == 1
    assert "train/a/0.png (train) and test/a/copy.png (test)" in listener.said[0] and "too good" in listener.said[0]


def test_a_patient_on_both_sides_is_a_leak(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 6, "train/b": 6, "test/a": 2, "test/b": 2})
    data = open_data(root, group=r"[ab]/\d")
    with pytest.raises(SicError, match="belong to the same group"):
        gather(data, SETTINGS, tmp_path / "pixels.bin", 0, Silent())


def test_validation_and_test_may_share_pictures(tmp_path: Path) -> None:
    """Nothing is trained on these; `sic data check` says so."""
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "val/a": 2, "val/b": 2, "test/a": 2, "test/b": 2})
    picture(11).save(root / "test" / "a" / "copy.png")
    assert gathered(root).leaks == 0


def test_test_images_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 1})
    (root / "test" / "b" / "broken.png").write_text("words")
    material = gathered(root)
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
        material = gathered(root, listener, seed=seed)
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
        gathered(root)
