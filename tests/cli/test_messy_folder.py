"""`sic train` on a folder as people have it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sic as library
from sic.directory import read_run
from tests.cli.conftest import Sic
from tests.conftest import draw_folders

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = draw_folders(tmp_path_factory.mktemp("messy") / "my photos", 3, 12, 48)
    first = root / "bird 0"
    whole = first / "whole.jpg"
    Image.open(first / "000.png").resize((200, 200)).save(whole, quality=95)
    (first / "cut off.jpg").write_bytes(whole.read_bytes()[:2000])
    Image.open(first / "001.png").convert("CMYK").save(first / "print.jpg")
    grey = np.asarray(Image.open(first / "002.png").convert("L"), dtype=np.uint16) * 257
    Image.fromarray(grey).save(first / "sixteen.png")
    palette = Image.open(first / "003.png").convert("P")
    palette.save(first / "palette.png", transparency=0)
    upright = Image.open(first / "004.png").convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90° clockwise to see it upright"
    upright.transpose(Image.Transpose.ROTATE_90).save(first / "turned.jpg", exif=exif, quality=100, subsampling=0)
    (first / "words.jpg").write_text("not an image at all")
    (first / "notes.txt").write_text("notes")
    (root / "empty class").mkdir()
    few = root / "only two"
    few.mkdir()
    for number in range(2):
        Image.open(first / f"{number:03d}.png").rotate(180).save(few / f"Möwe im Flug {number} ü.png")
    return root


def test_it_uses_what_it_can_and_says_what_it_skipped(sic: Sic, messy: Path, tmp_path: Path) -> None:
    out = tmp_path / "a model"
    flags = ["--epochs", 3, "--backbone", "resnet_tiny", "--size", 48, "--batch-size", 8]
    said = sic.json("train", messy, "--out", out, *flags)
    reasons = {entry["file"]: entry["reason"] for entry in said["skipped"]}
    assert reasons == {
        "bird 0/cut off.jpg": "truncated file",
        "bird 0/words.jpg": "not an image",
        "bird 0/notes.txt": "not an image file (.txt)",
        "empty class": "class folder without training images",
    }
    run = read_run(out)
    used = {*run["train"], *run["validation"]}
    for name in ("whole.jpg", "print.jpg", "sixteen.png", "palette.png", "turned.jpg"):
        assert f"bird 0/{name}" in used
    assert {"only two/Möwe im Flug 0 ü.png", "only two/Möwe im Flug 1 ü.png"} <= set(run["train"])
    model = library.load(out)
    assert model.classes == ["bird 0", "bird 1", "bird 2", "only two"]
    assert [s.label for s in model.supports].count(3) == 2
    # The photo is oriented: the model sees what it would see of the upright original.
    turned, upright = model.tensor(messy / "bird 0" / "turned.jpg"), model.tensor(messy / "bird 0" / "004.png")
    assert (turned - upright).abs().mean() < 0.03


def test_the_user_is_told(sic: Sic, messy: Path, tmp_path: Path) -> None:
    done = sic("train", messy, "--out", tmp_path / "m", "--epochs", 1, "--backbone", "resnet_tiny", "--size", 48)
    assert "Skipped bird 0/cut off.jpg: truncated file." in done.stderr
    assert "only two has 2 images that can be supports, fewer than the 3 requested." in done.stderr
    assert "accuracy" in done.stdout and done.stdout.startswith("Answers ")
