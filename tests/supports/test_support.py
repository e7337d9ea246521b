import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.errors import SicError
from sic.supports import (
    Edit,
    Support,
    by_position,
    find_support,
    read_supports,
    replaced,
    support_key,
    support_names,
    write_supports,
)


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


def test_the_part_of_an_image_that_a_case_is_comes_back(tmp_path: Path) -> None:
    cases = [Support(0, "a.png", None, (1, 2, 30, 40)), Support(1, "b.png", None)]
    write_supports(cases, tmp_path)
    assert read_supports(tmp_path) == cases
    edit(tmp_path, 0, box=[1, 2])
    with pytest.raises(SicError, match="does not hold readable supports"):
        read_supports(tmp_path)


SUPPORTS = [Support(0, "a.png"), Support(0, "b.png", pinned=True), Support(2, "a.png")]
CLASSES = ["owl", "wren", "heron"]


def test_an_edit_says_what_it_lacks() -> None:
    for wrong, words in (
        ({"action": "shuffle"}, "no edit 'shuffle'; choose one of drop, add, replace, pin, unpin, reselect"),
        ({"action": "drop"}, "To drop, name the support"),
        ({"action": "replace", "support": 1}, "To replace, name the image"),
        ({"action": "reselect"}, "To reselect, name the class"),
        ({"action": "reselect", "label": "x", "number": 0}, "at least one support, not 0"),
    ):
        with pytest.raises(SicError, match=words):
            Edit(**wrong)  # type: ignore[arg-type]


def test_supports_by_number_name_or_image() -> None:
    found = [find_support(SUPPORTS, which, CLASSES) for which in (2, "2", "b.png", "owl #2", "heron #1")]
    assert found == [2, 2, 1, 1, 2]
    with pytest.raises(SicError, match="0 or 2"):
        find_support(SUPPORTS, "a.png", CLASSES)
    for which in (3, "3", -1):
        with pytest.raises(SicError, match="numbered 0 to 2"):
            find_support(SUPPORTS, which, CLASSES)


def test_a_support_is_called_by_its_image_where_that_is_enough() -> None:
    assert [support_key(SUPPORTS, index) for index in range(3)] == ["0", "b.png", "2"]
    assert support_key([Support(0, "17"), Support(0, "b.png")], 0) == "0"
    assert [by_position(which) for which in (3, "3", "owl #2", "a.png", None)] == [True, True, True, False, False]


def test_a_class_is_exchanged_in_its_place() -> None:
    assert replaced(SUPPORTS, 0, [Support(0, "c.png")]) == [Support(0, "c.png"), Support(2, "a.png")]
    assert replaced(SUPPORTS, 1, [Support(1, "c.png")]) == [*SUPPORTS[:2], Support(1, "c.png"), SUPPORTS[2]]


def test_supports_are_named_by_class_and_number() -> None:
    assert support_names(SUPPORTS, CLASSES) == ["owl #1", "owl #2", "heron #1"]
