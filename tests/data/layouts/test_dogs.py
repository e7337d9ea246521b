"""Stanford Dogs, in miniature: lists written by scipy as MATLAB cell arrays, annotations without a suffix."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import sic.data
from sic.data.dataset import Box, Skipped
from sic.data.layouts.dogs import open_dogs
from sic.errors import SicError

NAMES = [
    f"{breed}/{breed[:9]}_{number}.jpg"
    for breed in ("n02085620-Chihuahua", "n02085936-Maltese_dog")
    for number in (7, 42)
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        image = tmp_path / "Images" / name
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30)).save(image)
        annotation = (tmp_path / "Annotation" / name).with_suffix("")
        annotation.parent.mkdir(parents=True, exist_ok=True)
        annotation.write_text(
            f"<annotation><folder>{name[1:9]}</folder><filename>{image.stem}</filename><size><width>40</width>"
            "<height>30</height><depth>3</depth></size><object><name>dog</name><difficult>0</difficult>"
            "<bndbox><xmin>5</xmin><ymin>1</ymin><xmax>20</xmax><ymax>30</ymax></bndbox></object></annotation>"
        )
    lists(tmp_path / "lists", train=[NAMES[0], NAMES[3]], test=[NAMES[1], NAMES[2]])
    return tmp_path


def lists(folder: Path, **names: list[str]) -> None:
    """As published: cell arrays `file_list` and `annotation_list`, and `labels` from 1 on."""
    folder.mkdir(exist_ok=True)
    for split, files in names.items():
        cells = {
            "file_list": np.array(files, dtype=object).reshape(-1, 1),
            "annotation_list": np.array([file[:-4] for file in files], dtype=object).reshape(-1, 1),
            "labels": np.array([[1 + ("Maltese" in file)] for file in files], dtype=np.uint8),
        }
        savemat(folder / f"{split}_list.mat", cells)


def contents(root: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    return {split: [(s.id, s.labels) for s in samples] for split, samples in open_dogs(root).splits.items()}


@pytest.mark.parametrize("folder", ["lists", "."])
def test_lists_make_the_splits(root: Path, folder: str) -> None:
    for file in (root / "lists").iterdir():
        file.rename(root / folder / file.name)
    data = sic.data.open(root)
    assert data.layout == "Stanford Dogs" and data.classes == ("Chihuahua", "Maltese dog") and data.task == "single"
    assert contents(root) == {
        "train": [(f"Images/{NAMES[0]}", (0,)), (f"Images/{NAMES[3]}", (1,))],
        "test": [(f"Images/{NAMES[1]}", (0,)), (f"Images/{NAMES[2]}", (1,))],
    }
    assert data.splits["train"][1].boxes == (Box(1, 4, 0, 20, 30),)
    assert data.skipped == [] and data.problems == []


def test_without_lists_all_images_are_for_training(root: Path) -> None:
    for split in ("train", "test"):
        (root / "lists" / f"{split}_list.mat").unlink()
    assert {split: len(samples) for split, samples in open_dogs(root).splits.items()} == {"train": 4}


def test_all_problems_are_listed(root: Path) -> None:
    lists(root / "lists", train=[NAMES[0], NAMES[3], "n02085620-Chihuahua/gone.jpg"], test=[NAMES[1]])
    (root / "Annotation" / NAMES[0]).with_suffix("").write_text("<annotation>")
    (root / "Annotation" / NAMES[1]).with_suffix("").unlink()
    data = open_dogs(root)
    assert data.skipped == [
        Skipped("Images/n02085620-Chihuahua/gone.jpg", "the list of train images names it but it does not exist"),
        Skipped(f"Images/{NAMES[2]}", "in neither of the lists"),
    ]
    (said,) = data.problems
    assert said.startswith("Annotation/n02085620-Chihuahua/n02085620_7 is ignored: not valid XML")
    assert data.splits["train"][0].boxes == data.splits["test"][0].boxes == ()


def test_one_list_alone_or_a_damaged_one_is_an_error(root: Path) -> None:
    (root / "lists" / "test_list.mat").write_bytes(b"not MATLAB")
    with pytest.raises(SicError, match=r"test_list\.mat is not a list of Stanford Dogs"):
        open_dogs(root)
    (root / "lists" / "test_list.mat").unlink()
    with pytest.raises(SicError, match=r"train_list\.mat has no counterpart"):
        open_dogs(root)
    with pytest.raises(SicError, match="is not Stanford Dogs"):
        open_dogs(root / "lists")
