"""A report over 120 classes stays usable."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import open as open_data
from sic.report import render
from tests.report.conftest import make_page, parse, save_model

CLASSES, SIZE = 120, 112


@pytest.mark.slow
def test_120_classes(tmp_path: Path) -> None:
    """360 supports with the detail of a photograph, 240 test images; at 224 px there are four times as many pixels."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        for split, number in (("train", 3), ("test", 2)):
            folder = tmp_path / "data" / split / f"class {label:03d}"
            folder.mkdir(parents=True)
            for position in range(number):
                # Grain over soft shapes: compresses about as badly as a photograph of a dog.
                coarse = Image.fromarray(rng.integers(0, 255, (14, 14, 3), dtype=np.uint8)).resize((SIZE, SIZE))
                grain = rng.normal(0, 6, (SIZE, SIZE, 1))
                pixels = (np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{position}.jpg", quality=92)
    data = open_data(tmp_path / "data")
    save_model(tmp_path / "model", data, SIZE, 0.02)
    start = time.process_time()
    html = render(make_page(tmp_path / "model", data, examples=6))
    seconds, size = time.process_time() - start, len(html.encode()) / 1e6
    print(f"{size:.1f} MB in {seconds:.0f} s of processor time")
    assert 4 * size < 60
    tree = parse(html)
    index = tree.one("nav", **{"aria-label": "Classes"})
    assert [link.attributes["href"] for link in index.all("a")] == [f"#class-{label}" for label in range(CLASSES)]
    sections = tree.all("details", class_="class")
    assert len(sections) == CLASSES and not any("open" in section.attributes for section in sections)
    assert all(image.attributes["loading"] == "lazy" for section in sections for image in section.all("img"))
    # Colours and numbers apart: 14,400 cells are too many for both.
    assert len(tree.all("img", class_="mosaic")) == 2
    assert len(tree.all("table", class_="matrix")[0].all("td")) == CLASSES**2 + 1
