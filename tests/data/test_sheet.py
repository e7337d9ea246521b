from pathlib import Path

import numpy as np
from PIL import Image

from sic.data.dataset import Box, ImageData, Sample
from sic.data.sheet import GAP, HEADING, OTHER, OWN, TILE, contact_sheet


def test_images_stand_under_their_class_with_their_boxes(tmp_path: Path) -> None:
    for name in ("red", "green"):
        Image.new("RGB", (80, 40), name).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_text("words")
    samples = [
        Sample("red.png", tmp_path / "red.png", (0,), (Box(0, 20, 10, 60, 30), Box(1, 70, 10, 80, 20))),
        Sample("broken.png", tmp_path / "broken.png", (1,)),
        Sample("green.png", tmp_path / "green.png", (1,)),
    ]
    data = ImageData("d", tmp_path, "class folders", ("Grün", "rot"), {"train": samples})
    sheet = np.asarray(contact_sheet(data, per_class=2))
    tile = sheet[GAP + HEADING : GAP + HEADING + TILE, GAP : GAP + TILE]
    # 80×40 in a square of 160: twice as large, 40 rows from the top.
    assert (tile[60:100, 45:115] == (255, 0, 0)).any() and (tile[:38] == tile[0, 0]).all()
    own, other = (tuple(bytes.fromhex(colour[1:])) for colour in (OWN, OTHER))
    assert (tile[60, 40:120] == own).all() and (tile[60:100, 40] == own).all()
    assert (tile[60, 140:160] == other).all()
    assert {(0, 128, 0), (255, 0, 0)} <= set(map(tuple, sheet.reshape(-1, 3).tolist()))
