"""Images that fit several classes, one of which is meant."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sic
from sic.data.layouts.funnybirds import write_funnybirds
from sic.training.base import Training
from tests.models import small_distilled

FITS: dict[str, dict[str, Any]] = {
    "sic": {"recipe": "scratch"},
    "bank": {"recipe": "scratch", "support_source": "bank"},
    "frozen": {"recipe": "frozen"},
    "blackbox": {"method": "blackbox"},
    "bcos": {"method": "bcos"},
    "nwhead": {"method": "nwhead"},
    "protopnet": {"method": "protopnet", "loss": "bce", "epochs": 2},
}


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the training images lack parts."""
    root = tmp_path_factory.mktemp("data") / "birds"
    write_funnybirds(root, classes=3, train=24, test=1, size=32, interventions=False)
    return root


@pytest.mark.parametrize("ambiguous", ["share", "every"])
@pytest.mark.parametrize("name", FITS)
def test_every_loss_asks_for_shares(
    name: str, ambiguous: str, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, loss = list[Tensor](), Training.loss

    def noted(module: Training, logits: Tensor, targets: Tensor) -> Tensor:
        asked.append(targets.sum(dim=1))
        return loss(module, logits, targets)

    monkeypatch.setattr(Training, "loss", noted)
    monkeypatch.setattr("sic.training.frozen.STEPS", 5)
    usual: dict[str, Any] = {"size": 32, "epochs": 1, "batch_size": 12, "workers": 0, "backbone": "resnet_tiny"}
    if name == "frozen":
        weights = small_distilled(tmp_path / "weights.safetensors")
        usual = {"size": 32, "batch_size": 12, "workers": 0, "weights": str(weights)}
    sic.fit(birds, tmp_path / "model", **usual | FITS[name], ambiguous=ambiguous)
    sums = torch.cat(asked)
    if ambiguous == "share":
        torch.testing.assert_close(sums, torch.ones_like(sums))
    else:
        assert {1.0, 3.0} <= set(sums.tolist()) <= {1.0, 2.0, 3.0}


def test_several_labels_are_never_shared(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several labels, all are meant."""
    table = tmp_path / "labels.csv"
    images = sorted((birds / "train").rglob("*.png"))
    rows = [f"{image},{'red|round' if number % 2 else 'red'}" for number, image in enumerate(images)]
    table.write_text("path,label\n" + "\n".join([*rows[:-20], *(row.replace("red", "blue") for row in rows[-20:])]))
    largest, loss = list[float](), Training.loss

    def noted(module: Training, logits: Tensor, targets: Tensor) -> Tensor:
        largest.append(float(targets.sum(dim=1).max()))
        return loss(module, logits, targets)

    monkeypatch.setattr(Training, "loss", noted)
    sic.fit(
        table, tmp_path / "model", method="blackbox", size=32, epochs=1, workers=0, backbone="resnet_tiny",
        ambiguous="share",
    )  # fmt: skip
    assert max(largest) == 2
