"""`sic data check` and `sic data show`."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Sic
from tests.conftest import draw_folders


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four images that differ, a box over the edge and a row that points nowhere."""
    for number in range(4):
        picture = (
            Image.radial_gradient("L").resize((32, 24)) if number % 2 else Image.linear_gradient("L").resize((32, 24))
        )
        picture.rotate(40 * number).save(tmp_path / f"{number}.png")
    lines = [
        "file;class;split;left;top;right;bottom;patient",
        "0.png;cat;train;1;1;9;9;p0",
        "1.png;dog;train;1;1;99;9;p1",
        "2.png;cat;test;1;1;9;9;p2",
        "3.png;dog;test;;;;;p3",
        "4.png;dog;test;;;;;p4",
    ]
    (tmp_path / "pets.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return tmp_path / "pets.csv"


def test_check_says_what_is_there(sic: Sic, table: Path) -> None:
    found = sic.json("data", "check", table, code=1)
    assert found["layout"] == "manifest (pets.csv)" and found["task"] == "single"
    assert found["classes"] == ["cat", "dog"] and found["splits"] == {"train": 2, "test": 2}
    assert found["boxes"] == 3 and found["groups"] == 4 and found["usable"] is False
    assert found["problems"][:3] == [
        "No class has 5 readable images of several groups, so none can be held out for validation.",
        "Line 6 of pets.csv is not used: it points to 4.png, which does not exist.",
        "The box 1, 1, 99, 9 of 1.png extends beyond the image (32×24) and is clipped.",
    ]
    words = sic("data", "check", table, code=1).stdout
    for expected in (
        "manifest (pets.csv)",
        "cat",
        "4.png, which does not exist",
        "3 boxes, 4 groups",
        "sic train stops: No class",
    ):
        assert expected in words
    assert words.count("No class") == 1


def test_check_lists_everything_of_data_that_cannot_be_used(sic: Sic, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\n1.png,a\n2.png,b\n")
    found = sic.json("data", "check", tmp_path / "t.csv", code=1)
    assert found["usable"] is False and found["splits"] == {} and len(found["problems"]) == 3
    assert "no usable training images" in found["problems"][0]


def test_check_knows_what_training_would_stop_at(sic: Sic, table: Path) -> None:
    table.write_text("path,labels\n0.png,a\n1.png,b\n2.png,a|c\n")
    found = sic.json("data", "check", table, code=1)
    assert found["problems"][0].startswith("No training image has the label 'c' alone")


def test_check_groups_and_layout(sic: Sic, bird_folders: Path, tmp_path: Path) -> None:
    found = sic.json("data", "check", bird_folders, "--group", r"bird \d/\d\d", "--layout", "folders")
    assert found["layout"] == "class folders" and found["groups"] == 12
    assert found["usable"] is True and found["training"] == ["sic train accepts this dataset."]
    found = sic.json("data", "check", bird_folders, "--group", r"bird \d", code=1)  # no class can be split
    assert found["groups"] == 4 and "held out for validation" in found["training"][0]
    assert "--group" in sic.refuse("data", "check", bird_folders, "--group", "(")
    assert "--layout" in sic.refuse("data", "check", bird_folders, "--layout", "zip")
    assert "does not exist" in sic.refuse("data", "check", tmp_path / "nowhere")


def test_show_draws_a_sheet(sic: Sic, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "sheet.png"
    assert "2 classes" in sic("data", "show", table, "--out", out, "--per-class", 2).stdout
    with Image.open(out) as sheet:
        assert sheet.width > 320 and sheet.height > 160
    assert "--out" in sic.refuse("data", "show", table, "--out", tmp_path / "sheet.doc")


def test_show_needs_no_option(sic: Sic, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "contact-sheet.png" in sic("data", "show", table).stdout
    with Image.open(tmp_path / "here" / "contact-sheet.png") as sheet:
        assert sheet.width > 320


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "code"), [(1, 0), (2, 1)])
def test_check_says_what_training_will_do(sic: Sic, tmp_path: Path, copies: int, code: int) -> None:
    """Twenty-odd test images: one copy is below the limit of 5 %, two are above."""
    draw_folders(tmp_path / "data" / "train", 2, 8, 40)
    draw_folders(tmp_path / "data" / "test", 2, 20, 40)
    for folder in (tmp_path / "data" / "test").iterdir():
        for number in range(10):  # drawn like the training images
            (folder / f"{number:03d}.png").unlink()
    for number in range(copies):
        folder = tmp_path / "data" / "test" / "bird 0"
        shutil.copy(tmp_path / "data" / "train" / "bird 0" / f"00{number}.png", folder / f"copy {number}.png")
    found = sic.json("data", "check", tmp_path / "data", code=code)
    expected = {
        0: "sic train accepts this dataset. 1 of the 21 test images is in training, too (test/bird 0/copy 0.png as ",
        1: "sic train stops: train/bird 0/000.png (train) and test/bird 0/copy 0.png (test) are the same image, the",
    }
    assert found["training"][0].startswith(expected[code])
    assert "--drop-leaks" in found["training"][0]
    done = sic("train", tmp_path / "data", "--out", tmp_path / "model", "--epochs", 1, "--size", 16, code=code)
    assert "is in training, too" in done.stderr if code == 0 else "the limit is 5%" in done.stderr
    assert ("Without copies of training images: Answers" in done.stdout) == (code == 0)


def test_show_does_not_write_among_the_images(sic: Sic, bird_folders: Path) -> None:
    assert "is inside the dataset" in sic.refuse("data", "show", bird_folders, "--out", bird_folders / "sheet.png")


def test_images_can_be_looked_at_cut_to_their_boxes(sic: Sic, table: Path, tmp_path: Path) -> None:
    found = sic.json("data", "check", table, "--roi", code=1, SIC_CACHE=str(tmp_path / "cache"))
    assert found["splits"] == {"train": 2, "test": 1} and found["boxes"] == 3
    assert "3.png is not used: it has no box to crop to." in found["problems"]
    sic("data", "show", table, "--roi", "--out", tmp_path / "out" / "sheet.png", SIC_CACHE=str(tmp_path / "cache"))
