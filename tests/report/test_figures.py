"""Figures as files: all of them, in the formats asked for, with the model's numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from sic.report import Page
from sic.report.figures import draw, heat_map, projection, silhouette, support_sheet
from tests.report.conftest import Saved, make_page


@pytest.fixture(scope="module")
def page(single: Saved) -> Page:
    return make_page(single.folder, single.data, examples=1)


NAMES = {"projection", "supports-01", "similarity-cases", "similarity-images", "silhouette"}


@pytest.mark.usefixtures("undrawn")
def test_every_figure(page: Page, tmp_path: Path) -> None:
    files = draw(page, tmp_path / "figures", ["png"])
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())
    assert {file.stem for file in files} == NAMES | {f"explanation-{kind}-01" for kind in ("right", "wrong", "unsure")}
    for name in NAMES:
        with Image.open(tmp_path / "figures" / f"{name}.png") as image:
            assert min(image.size) > 200
            assert np.asarray(image.convert("L")).std() > 5


def test_every_format(page: Page, tmp_path: Path) -> None:
    files = draw(replace(page, groups=[]), tmp_path, ["svg", "pdf"])
    assert {file.name for file in files} == {f"{name}.{suffix}" for name in NAMES for suffix in ("svg", "pdf")}
    assert all(file.read_bytes().startswith(b"%PDF" if file.suffix == ".pdf" else b"<?xml") for file in files)


def written(figure: Figure) -> set[str]:
    from matplotlib.text import Text

    return {text.get_text() for text in figure.findobj(Text)}


def test_numbers_are_the_overviews(page: Page) -> None:
    overview = page.overview
    evidence = overview.support_similarity / overview.temperature
    assert {f"{value:.2f}" for value in evidence.flatten()} <= written(heat_map(evidence, "cases", overview.classes))
    assert overview.image_silhouette is not None
    assert f"Silhouette over images: {overview.image_silhouette.overall:.3f}" in written(silhouette(overview))
    assert {support.name.removeprefix(f"{support.class_name} ") for support in overview.supports} <= written(
        projection(overview)
    )
    sheet = support_sheet(overview, range(4))
    assert len(sheet.axes) == 3 * len(overview.supports)
    for support in overview.supports:
        assert any(f"‖v‖ {support.norm:.2f}" in words for words in written(sheet))


def test_supports_without_pictures(page: Page) -> None:
    bare = [
        replace(one, support=replace(one.support, image=None), map=None, rgba=None, negative_mass=None)
        for one in page.overview.supports
    ]
    sheet = support_sheet(replace(page.overview, supports=bare), range(4))
    assert "image not kept\nwith this model" in written(sheet)
