"""The cache: never a stale latent, and no image is looked at twice."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import sic
from sic.clinic import Clinic, Edit
from sic.directory import RUN
from sic.latents import CACHE


@pytest.fixture
def own_images(model: Path, colour_images: Path, tmp_path: Path) -> Path:
    """Images that a test may change, recorded as those of the model."""
    data = shutil.copytree(colour_images, tmp_path / "own images")
    run = json.loads((model / RUN).read_text())
    run["data"]["opened_with"]["where"] = str(data)
    (model / RUN).write_text(json.dumps(run))
    return data


def computed(model: Path) -> int:
    """How many images had to be embedded to open a clinic."""
    seen = []
    clinic = Clinic(model, progress=lambda done, total: seen.append(total))
    plain = sic.load(model)
    for split in ("train", "validation"):
        samples = clinic.examined.splits[split]
        with torch.no_grad():
            expected = plain.classifier.encoder(torch.stack([plain.tensor(sample.path) for sample in samples]))
        torch.testing.assert_close(clinic.examined.embedded(split), expected, rtol=1e-4, atol=1e-5)
    return max(seen, default=0)


def test_only_what_changed_is_computed_again(model: Path, own_images: Path) -> None:
    assert computed(model) == 48
    assert computed(model) == 0
    Clinic(model).apply(Edit.drop(0))
    assert computed(model) == 0  # an edit leaves the encoder as it is
    shutil.copy(own_images / "red" / "03.png", own_images / "red" / "04.png")
    os.utime(own_images / "red" / "09.png", ns=(1, 1))
    assert computed(model) == 2
    assert computed(model) == 0
    saved = sic.load(model)
    with torch.no_grad():
        next(saved.classifier.encoder.parameters())[0] *= 1.0001
    saved.save(model)
    assert computed(model) == 48


@pytest.mark.parametrize("content", [b"", b"no tensors at all", None])
def test_a_damaged_cache_is_made_again(model: Path, content: bytes | None) -> None:
    assert computed(model) == 48
    whole = (model / CACHE).read_bytes()
    (model / CACHE).write_bytes(whole[:-40] if content is None else content)
    assert computed(model) == 48
    assert computed(model) == 0


def test_a_cache_that_cannot_be_written_is_only_slow(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sic.latents.write_atomically", refuse)
    clinic = Clinic(model)
    assert any("Permission denied" in problem for problem in clinic.problems)
    assert len(clinic.list()) == 8
