"""Small data that tests make themselves, and models trained on it once per session."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sic.data import birds, drawing

# Two test processes on two cores: each gets one, and so do the processes that it starts.
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
os.environ.setdefault("SIC_CACHE_GB", "0")  # tests decode their images
# Started in the background of a script, tests would ignore Ctrl-C, and so would the commands that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def draw_folders(root: Path, classes: int, images: int, size: int) -> Path:
    """Class folders `bird 0`, `bird 1`, … of rendered birds."""
    species = birds.species(classes)
    rng = np.random.default_rng(0)
    for label, parts in enumerate(species):
        folder = root / f"bird {label}"
        folder.mkdir(parents=True)
        for number in range(images):
            scene = birds.sample_scene(label, parts, rng)
            Image.fromarray(drawing.render(scene, size).image).save(folder / f"{number:03d}.png")
    return root


@pytest.fixture(scope="session")
def bird_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 24 images at 40 px."""
    return draw_folders(tmp_path_factory.mktemp("data") / "birds of four kinds", 4, 24, 40)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of explanations are empty files, for tests of something else: drawing one takes half a second."""
    monkeypatch.setattr("sic.explain.figure.draw", lambda explanation, path: path.touch())
