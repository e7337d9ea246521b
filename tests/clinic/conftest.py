"""Models to edit: made once, copied for every test."""

import shutil
from pathlib import Path

import pytest

from tests.clinic.colours import draw, draw_several, make


@pytest.fixture(scope="session")
def colour_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("clinic") / "colours")


@pytest.fixture(scope="session")
def _single(colour_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("clinic") / "single", colour_images)


@pytest.fixture(scope="session")
def _several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clinic")
    return make(folder / "several", draw_several(folder / "pairs"))


@pytest.fixture
def model(_single: Path, tmp_path: Path) -> Path:
    """Four classes, two supports each; 32 training and 16 validation images."""
    return shutil.copytree(_single, tmp_path / "a model")


@pytest.fixture
def several(_several: Path, tmp_path: Path) -> Path:
    """The same with one or two labels per image."""
    return shutil.copytree(_several, tmp_path / "several labels")
