from pathlib import Path

import pytest
from PIL import Image

from sic.data.dataset import Skipped
from sic.data.layouts.folders import open_folders
from sic.errors import SicError


def plant(root: Path, *files: str) -> Path:
    """Files by their paths below `root`: pictures, or text where the name says so; folders end with a slash."""
    for file in files:
        path = root / file
        if file.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".txt", ".csv", "") or path.name.startswith("."):
            path.write_text("text")
        else:
            Image.new("RGB", (4, 4)).save(path, "PNG")
    return root


def contents(root: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    return {split: [(s.id, s.labels) for s in samples] for split, samples in open_folders(root).splits.items()}


def test_class_folders(tmp_path: Path) -> None:
    plant(tmp_path, "zebra/1.png", "ape/2.JPG", "ape/1.png", "möwe am meer/1 2.png")
    data = open_folders(tmp_path)
    assert data.classes == ("ape", "möwe am meer", "zebra")
    assert contents(tmp_path) == {
        "train": [("ape/1.png", (0,)), ("ape/2.JPG", (0,)), ("möwe am meer/1 2.png", (1,)), ("zebra/1.png", (2,))]
    }
    assert data.layout == "class folders" and data.task == "single" and data.skipped == []
    assert all(sample.path == tmp_path / sample.id for sample in data.splits["train"])


def test_split_folders(tmp_path: Path) -> None:
    plant(tmp_path, "train/b/1.png", "train/a/1.png", "val/a/2.png", "Test/a/3.png", "Test/b/3.png")
    data = open_folders(tmp_path)
    assert data.classes == ("a", "b")
    assert contents(tmp_path) == {
        "train": [("train/a/1.png", (0,)), ("train/b/1.png", (1,))],
        "val": [("val/a/2.png", (0,))],
        "test": [("Test/a/3.png", (0,)), ("Test/b/3.png", (1,))],
    }
    assert data.layout == "train/val/test folders"


@pytest.mark.parametrize("name", ["valid", "validation", "Val"])
def test_other_names_of_the_validation_folder(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "train/a/1.png", "train/b/1.png", f"{name}/b/2.png")
    assert contents(tmp_path)["val"] == [(f"{name}/b/2.png", (1,))]


def test_the_training_folder_may_be_called_training(tmp_path: Path) -> None:
    plant(tmp_path, "training/a/1.png", "training/b/1.png", "testing/a/2.png")
    data = open_folders(tmp_path)
    assert data.classes == ("a", "b") and data.layout == "train/val/test folders"
    assert contents(tmp_path) == {
        "train": [("training/a/1.png", (0,)), ("training/b/1.png", (1,))],
        "test": [("testing/a/2.png", (0,))],
    }


@pytest.mark.parametrize("train", ["train/1.png", "train/steam/1.png"])
def test_a_class_called_train_is_a_class(tmp_path: Path, train: str) -> None:
    plant(tmp_path, "bus/1.png", train)
    data = open_folders(tmp_path)
    assert data.classes == ("bus", "train") and data.layout == "class folders"
    assert contents(tmp_path) == {"train": [("bus/1.png", (0,)), (train, (1,))]}


def test_a_class_called_test_is_a_class_where_nothing_is_called_train(tmp_path: Path) -> None:
    plant(tmp_path, "test/exam/1.png", "validation/stamp/1.png")
    assert open_folders(tmp_path).classes == ("test", "validation")


def test_a_second_folder_for_a_split_is_reported(tmp_path: Path) -> None:
    plant(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/2.png", "validation/a/3.png")
    assert contents(tmp_path)["val"] == [("val/a/2.png", (0,))]
    assert [skipped.file for skipped in open_folders(tmp_path).skipped] == ["validation"]


def test_an_empty_folder_for_a_split_is_reported(tmp_path: Path) -> None:
    plant(tmp_path, "train/a/1.png", "train/b/1.png", "test/", "testing/a/2.png")
    assert contents(tmp_path)["test"] == [("testing/a/2.png", (0,))]
    assert [skipped.file for skipped in open_folders(tmp_path).skipped] == ["test"]


@pytest.mark.parametrize("around", ["", "train/"])
def test_images_outside_of_class_folders_are_reported(tmp_path: Path, around: str) -> None:
    plant(tmp_path, f"{around}a/1.png", f"{around}b/1.png", "loose.png", "README.txt")
    data = open_folders(tmp_path)
    assert [sample.id for sample in data.splits["train"]] == [f"{around}a/1.png", f"{around}b/1.png"]
    assert data.skipped == [Skipped("loose.png", "not in a class folder")]


def test_images_further_down_belong_to_the_class(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.png", "a/2024/may/2.png", "b/deep/3.png")
    assert contents(tmp_path)["train"] == [("a/1.png", (0,)), ("a/2024/may/2.png", (0,)), ("b/deep/3.png", (1,))]


def test_empty_class_folders_are_reported(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.png", "b/1.png", "nobody/", "words/notes.txt")
    data = open_folders(tmp_path)
    assert data.classes == ("a", "b")
    assert data.skipped == [
        Skipped("words/notes.txt", "not an image file (.txt)"),
        Skipped("nobody", "class folder without training images"),
        Skipped("words", "class folder without training images"),
    ]


def test_hidden_files_and_folders_are_ignored(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.png", "b/1.png", "a/.DS_Store", "a/._1.png", "a/.thumbs/1.png", ".git/1.png")
    data = open_folders(tmp_path)
    assert [s.id for s in data.splits["train"]] == ["a/1.png", "b/1.png"] and data.skipped == []


def test_other_files_are_reported(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.png", "b/1.png", "b/labels.csv", "a/sub/README")
    assert open_folders(tmp_path).skipped == [
        Skipped("a/sub/README", "not an image file (no suffix)"),
        Skipped("b/labels.csv", "not an image file (.csv)"),
    ]


def test_a_class_that_is_only_tested_is_reported_and_not_used(tmp_path: Path) -> None:
    plant(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/2.png", "test/stranger/1.png")
    data = open_folders(tmp_path)
    assert data.classes == ("a", "b")
    assert [s.id for s in data.splits["test"]] == ["test/a/2.png"]
    assert data.skipped == [Skipped("stranger", "class folder without training images")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("a/1.png",), r"only one class with images \(a\)"),
        (("a/1.png", "b/"), r"only one class with images \(a\)"),
        (("train/a/1.png", "test/b/1.png"), r"only one class with images \(a\)"),
        (("1.png", "2.png"), "no class folder with images"),
        ((), "no class folder with images"),
    ],
)
def test_fewer_than_two_classes_are_an_error(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    plant(tmp_path, *files)
    with pytest.raises(SicError, match=words) as caught:
        open_folders(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_links_to_folders_above_are_not_followed(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.png", "b/1.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert [s.id for s in open_folders(tmp_path).splits["train"]] == ["a/1.png", "b/1.png"]


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), (number, 0, len(name))).save(tmp_path / name / f"{number}.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "b" / "self.png").symlink_to("self.png")
    (tmp_path / "b" / "nowhere.png").symlink_to("nothing")
    data = open_folders(tmp_path)
    assert data.classes == ("a", "b")
    assert {sample.id for sample in data.splits["train"]} >= {"a/0.png", "a/1.png", "b/0.png", "b/1.png"}
