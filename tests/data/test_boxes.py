from pathlib import Path

import pytest
from PIL import Image

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box


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
