"""CUB-200-2011, in miniature: the same lists."""

from pathlib import Path

import pytest
from PIL import Image

import sic.data
from sic.data.dataset import Box, Point, Skipped
from sic.data.layouts.cub import open_cub
from sic.errors import SicError

IMAGES = {
    1: "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg",
    2: "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg",
    3: "002.Laysan_Albatross/Laysan_Albatross_0002_1027.jpg",
    4: "002.Laysan_Albatross/Laysan_Albatross_0003_1033.jpg",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "CUB_200_2011"
    for name in IMAGES.values():
        file = root / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (50, 40)).save(file)
    write(root, "images", *(f"{i} {name}" for i, name in IMAGES.items()))
    write(root, "image_class_labels", "1 1", "2 1", "3 2", "4 2")
    write(root, "classes", "1 001.Black_footed_Albatross", "2 002.Laysan_Albatross")
    write(root, "train_test_split", "1 0", "2 1", "3 1", "4 0")
    write(
        root, "bounding_boxes", "1 6.0 7.0 32.0 30.0", "2 1.0 1.0 2.0 2.0", "3 0.0 0.0 50.0 40.0", "4 9.0 9.0 9.0 9.0"
    )
    (tmp_path / "attributes.txt").write_text("1 has_bill_shape::curved_(up_or_down)\n")
    return root


@pytest.fixture
def with_parts(root: Path) -> Path:
    (root / "parts").mkdir()
    write(root, "parts/parts", "1 back", "2 left eye", "3 right eye", "4 tail")
    write(
        root, "parts/part_locs", "1 1 10.5 20.0 1", "1 2 0.0 0.0 0", "1 3 12.0 9.0 1", "2 2 2.0 2.5 1", "2 3 1.0 2.0 1"
    )
    return root


def write(root: Path, name: str, *lines: str) -> None:
    (root / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("above", [False, True])
def test_it_is_recognised_and_read(root: Path, above: bool) -> None:
    data = sic.data.open(root.parent if above else root)
    assert data.layout == "CUB-200-2011" and data.task == "single"
    assert data.classes == ("Black footed Albatross", "Laysan Albatross")
    assert {split: [(s.id, s.labels) for s in samples] for split, samples in data.splits.items()} == {
        "train": [(f"images/{IMAGES[2]}", (0,)), (f"images/{IMAGES[3]}", (1,))],
        "test": [(f"images/{IMAGES[1]}", (0,)), (f"images/{IMAGES[4]}", (1,))],
    }
    assert data.splits["test"][0].boxes == (Box(0, 6, 7, 38, 37),)
    assert data.skipped == [] and data.problems == []


def test_boxes_are_optional(root: Path) -> None:
    (root / "bounding_boxes.txt").unlink()
    assert not any(sample.boxes for samples in open_cub(root).splits.values() for sample in samples)


def test_visible_parts_are_points_and_both_sides_are_one_part(with_parts: Path) -> None:
    data = open_cub(with_parts)
    points = {sample.id: sample.points for samples in data.splits.values() for sample in samples}
    assert points == {
        f"images/{IMAGES[1]}": (Point("back", 10.5, 20), Point("eye", 12, 9)),
        f"images/{IMAGES[2]}": (Point("eye", 2, 2.5), Point("eye", 1, 2)),
        f"images/{IMAGES[3]}": (),
        f"images/{IMAGES[4]}": (),
    }


@pytest.mark.parametrize("missing", ["parts.txt", "part_locs.txt"])
def test_parts_are_optional(with_parts: Path, missing: str) -> None:
    (with_parts / "parts" / missing).unlink()
    assert not any(sample.points for samples in open_cub(with_parts).splits.values() for sample in samples)


def test_parts_move_with_the_crop_to_the_box(with_parts: Path) -> None:
    write(with_parts, "bounding_boxes", "1 6.5 7.0 32.0 30.0", "2 1 1 9 9", "3 0 0 9 9", "4 1 1 9 9")
    (sample,) = [s for s in sic.data.open(with_parts, roi=True).splits["test"] if s.id.endswith(IMAGES[1])]
    assert sample.points == (Point("back", 4.5, 13), Point("eye", 6, 2))


def test_all_problems_are_listed(root: Path) -> None:
    (root / "images" / IMAGES[4]).unlink()
    write(root, "images", *(f"{i} {name}" for i, name in IMAGES.items()), "5 x/5.jpg", "6 x/6.jpg")
    write(root, "image_class_labels", "1 1", "2 1", "3 2", "4 2", "5 3", "6 2")
    write(root, "bounding_boxes", "1 60.0 7.0 32.0 30.0")
    data = open_cub(root)
    assert data.skipped == [
        Skipped(f"images/{IMAGES[4]}", "images.txt lists it but it does not exist"),
        Skipped("images/x/5.jpg", "image_class_labels.txt does not assign it a class of classes.txt"),
        Skipped("images/x/6.jpg", "train_test_split.txt has neither 1 (training) nor 0 (test) for it"),
    ]
    assert len(data.problems) == 1 and "is outside the image (50×40)" in data.problems[0]


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("classes", "one 001.Albatross", r"Line 1 of .*classes\.txt"),
        ("bounding_boxes", "1 6.0 7.0 32.0", r"Line 1 of .*bounding_boxes\.txt is not in the format of CUB"),
        ("bounding_boxes", "1 6.0 7.0 32.0 tall", r"'6\.0 7\.0 32\.0 tall', which is not four numbers"),
    ],
)
def test_lists_of_another_shape_are_one_sentence(root: Path, name: str, line: str, words: str) -> None:
    write(root, name, line)
    with pytest.raises(SicError, match=words):
        open_cub(root)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("parts", "back"),
        ("parts", "2 left"),
        ("part_locs", "1 1 10.5 20.0"),
        ("part_locs", "1 1 10.5 low 1"),
        ("part_locs", "1 9 10.5 20.0 1"),
        ("part_locs", "1 1 10.5 20.0 yes"),
    ],
)
def test_malformed_parts_are_one_sentence(with_parts: Path, name: str, line: str) -> None:
    with (with_parts / "parts" / f"{name}.txt").open("a") as file:
        file.write(f"{line}\n")
    number = {"parts": 5, "part_locs": 6}[name]
    with pytest.raises(
        SicError, match=rf"^Line {number} of .*{name}\.txt is not in the format of CUB-200-2011: [^.]*(\.txt[^.]*)?\.$"
    ):
        open_cub(with_parts)
