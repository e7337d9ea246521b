"""Images cut to their box: the pixels, the boxes, and what cannot be cut."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sic.data
from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, Skipped
from sic.errors import SicError


def test_rounding_is_cut_off_without_a_word() -> None:
    boxes, problems = inside([Box(3, -0.5, 0, 10.9, 9, True)], (10, 9), "a.png")
    assert boxes == (Box(3, 0, 0, 10, 9, True),) and problems == []


@pytest.mark.parametrize(
    ("corners", "kept", "words"),
    [
        ((-5, 1, 5, 5), (0, 1, 5, 5), "extends beyond the image"),
        ((1, 1, 5, 11), (1, 1, 5, 9), "extends beyond the image"),
        ((10, 1, 14, 5), None, "is outside the image (10×9)"),
        ((-9, -9, -2, -2), None, "is outside"),
        ((4, 4, 4, 6), None, "has no area"),
        ((float("nan"), 1, 5, 5), None, "has no area"),
    ],
)
def test_others_are_reported(
    corners: tuple[float, float, float, float], kept: tuple[float, float, float, float] | None, words: str
) -> None:
    boxes, (said,) = inside([Box(0, *corners), Box(1, 1, 1, 2, 2)], (10, 9), "a.png")
    assert boxes == ((Box(0, *kept),) if kept else ()) + (Box(1, 1, 1, 2, 2),)
    assert words in said and "of a.png" in said


def test_without_a_size_there_is_no_edge_on_the_right() -> None:
    assert inside([Box(0, 5, 5, 1e6, 1e6)], None, "a.png") == ((Box(0, 5, 5, 1e6, 1e6),), [])


def test_the_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert size_of(tmp_path / "turned.jpg") == (4, 8)
    (tmp_path / "words.jpg").write_text("words")
    assert size_of(tmp_path / "words.jpg") is None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)


ROWS = ["0.png,cat,train,3,4,13,20", "1.png,dog,train,2.5,0,30.5,24", "2.png,dog,test,0,0,32,24"]


def table(folder: Path, rows: list[str] = ROWS) -> Path:
    for number in range(3):
        Image.fromarray(pixels(number)).save(folder / f"{number}.png")
    (folder / "pets.csv").write_text("\n".join(["path,label,split,left,top,right,bottom", *rows]))
    return folder / "pets.csv"


def shown(sample: sic.data.Sample) -> np.ndarray:
    return np.asarray(sic.data.read_image(sample.path))


def test_pixels_and_boxes_are_those_of_the_region(tmp_path: Path) -> None:
    """Any layout with boxes; a box between pixels keeps the pixels that it touches."""
    data = sic.data.open(table(tmp_path), roi=True)
    cat, dog = data.splits["train"]
    assert np.array_equal(shown(cat), pixels(0)[4:20, 3:13])
    assert cat.boxes == (Box(0, 0, 0, 10, 16),)
    assert np.array_equal(shown(dog), pixels(1)[:, 2:31])
    assert dog.boxes == (Box(1, 0.5, 0, 28.5, 24),)
    assert np.array_equal(shown(data.splits["test"][0]), pixels(2))
    assert [sample.id for sample in data.splits["train"]] == ["0.png", "1.png"]
    assert cat.path.stem == "0"


def test_it_can_be_opened_again(tmp_path: Path) -> None:
    data = sic.data.open(table(tmp_path), roi=True)
    again = sic.data.open(**data.opened_with)
    assert again.opened_with["roi"] is True and again.splits == data.splits
    assert sic.data.open(tmp_path / "pets.csv").splits != data.splits


def test_each_image_is_cut_once_until_it_changes(tmp_path: Path, cache: Path) -> None:
    def written() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in cache.rglob("*.png")}

    sic.data.open(table(tmp_path), roi=True)
    before = written()
    sic.data.open(tmp_path / "pets.csv", roi=True)
    assert written() == before and len(before) == 3
    Image.fromarray(pixels(7)).resize((32, 24), Image.Resampling.NEAREST).save(tmp_path / "0.png", compress_level=0)
    (tmp_path / "pets.csv").write_text((tmp_path / "pets.csv").read_text().replace("2.5,0,30.5", "9,9,12"))
    cat, dog = sic.data.open(tmp_path / "pets.csv", roi=True).splits["train"]
    assert np.array_equal(shown(cat), pixels(7)[4:20, 3:13])
    assert np.array_equal(shown(dog), pixels(1)[9:24, 9:12])
    assert not list(cache.rglob("*.tmp"))


def test_an_image_as_people_see_it_is_cut(tmp_path: Path) -> None:
    """Boxes are drawn on the upright picture."""
    rows = [*ROWS, "turned.png,cat,train,3,4,13,20"]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels(0)).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright, *_, turned = sic.data.open(table(tmp_path, rows), roi=True).splits["train"]
    assert np.array_equal(shown(turned), shown(upright))


def test_what_cannot_be_cut_is_left_out(tmp_path: Path) -> None:
    rows = [*ROWS, "none.png,cat,train,,,,", "words.png,dog,train,1,1,9,9"]
    Image.new("RGB", (9, 9)).save(tmp_path / "none.png")
    (tmp_path / "words.png").write_text("not an image")
    data = sic.data.open(table(tmp_path, rows), roi=True)
    assert len(data.splits["train"]) == 2
    assert data.skipped == [Skipped("none.png", "it has no box to crop to"), Skipped("words.png", "not an image")]


def test_boxes_must_be_there_and_one_an_image(tmp_path: Path, bird_folders: Path) -> None:
    with pytest.raises(SicError, match=r"--roi .* has no boxes; leave it out"):
        sic.data.open(bird_folders, roi=True)
    with pytest.raises(SicError, match=r"--roi needs one box per image, but 0.png has 2"):
        sic.data.open(table(tmp_path, [*ROWS, "0.png,cat,train,1,1,2,2"]), roi=True)


def test_groups_are_found_too(tmp_path: Path) -> None:
    data = sic.data.open(table(tmp_path), roi=True, group=r"\d")
    assert [sample.group for sample in data.splits["train"]] == ["0", "1"]
