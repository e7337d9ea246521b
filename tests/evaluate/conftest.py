"""Models and images for `sic verify`."""

from pathlib import Path

import pytest
from PIL import Image

from sic.methods import SIC, Bcos
from tests.evaluate.test_sabotage import as_model, build, in_bytes, photos


@pytest.fixture(scope="session")
def to_verify(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and untrained models of three kinds."""
    root = tmp_path_factory.mktemp("to verify")
    (root / "images").mkdir()
    for number, pixels in enumerate(in_bytes(photos(4)).permute(0, 2, 3, 1).numpy()):
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
    as_model(build(SIC)).save(root / "SIC")
    as_model(build(Bcos)).save(root / "Bcos")
    as_model(build(SIC, "vit_small"), "vit_small").save(root / "transformer")
    return root
