import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.errors import SicError
from sic.supports import Support, read_supports, write_supports


def supports() -> list[Support]:
    rng = np.random.default_rng(0)
    return [
        Support(label, f"köln dom/{label} {i}.jpg", rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        for label in (0, 2)
        for i in range(2)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_supports(supports(), tmp_path / "supports")
    return tmp_path / "supports"


def edit(folder: Path, index: int, **changes: object) -> None:
    entries = json.loads((folder / "supports.json").read_text())
    entries[index] |= changes
    (folder / "supports.json").write_text(json.dumps(entries))


def test_supports_come_back_bit_for_bit(folder: Path) -> None:
    for read, written in zip(read_supports(folder), supports(), strict=True):
        assert (read.label, read.source) == (written.label, written.source)
        assert read.image is not None and read.image.dtype == np.uint8
        np.testing.assert_array_equal(read.image, written.image)


def test_pins_are_kept(tmp_path: Path) -> None:
    pinned = [Support(s.label, s.source, None, pinned=number == 1) for number, s in enumerate(supports())]
    write_supports(pinned, tmp_path)
    assert read_supports(tmp_path) == pinned


def test_images_can_be_left_out(tmp_path: Path) -> None:
    hidden = [Support(s.label, s.source, None) for s in supports()]
    write_supports(hidden, tmp_path)
    assert read_supports(tmp_path) == hidden
    assert [path.name for path in tmp_path.iterdir()] == ["supports.json"]


def test_every_image_is_a_plain_png(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [f"{i:05d}.png" for i in range(4)] + ["supports.json"]
    for i, support in enumerate(supports()):
        with Image.open(folder / f"{i:05d}.png") as image:
            np.testing.assert_array_equal(np.asarray(image), support.image)


def test_an_edited_image_is_noticed(folder: Path) -> None:
    changed = supports()[1].image
    assert changed is not None
    changed = changed.copy()
    changed[0, 0, 0] ^= 1
    Image.fromarray(changed).save(folder / "00001.png")
    with pytest.raises(SicError, match=r"00001\.png has been changed"):
        read_supports(folder)


def test_a_missing_image_is_named(folder: Path) -> None:
    (folder / "00002.png").unlink()
    with pytest.raises(SicError, match=r"00002\.png"):
        read_supports(folder)


@pytest.mark.parametrize("text", [None, "", "{", "null", "3", '[["class"]]', '["class"]', '[{"class": 0}]', "\udcff"])
def test_a_missing_or_damaged_list_is_one_sentence(folder: Path, text: str | None) -> None:
    if text is None:
        (folder / "supports.json").unlink()
    else:
        (folder / "supports.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SicError, match="does not hold readable supports"):
        read_supports(folder)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "sub/00000.png", "..", "", ".", 7, "a\0b.png"])
def test_names_that_lead_elsewhere_are_refused(folder: Path, name: object) -> None:
    """Even where the file is there and its checksum is right."""
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "PNG")
    for place in (folder.parent / "secret.png", folder / "sub" / "00000.png"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(buffer.getvalue())
    edit(folder, 0, image=name, sha256=hashlib.sha256(buffer.getvalue()).hexdigest())
    with pytest.raises(SicError, match="does not hold readable supports"):
        read_supports(folder)


def test_a_missing_checksum_is_noticed(folder: Path) -> None:
    entries = json.loads((folder / "supports.json").read_text())
    del entries[3]["sha256"]
    (folder / "supports.json").write_text(json.dumps(entries))
    with pytest.raises(SicError, match="sha256"):
        read_supports(folder)
