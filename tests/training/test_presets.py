"""Presets against the paper's table, typed in here a second time."""

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from sic.backbones import download
from sic.backbones.weights import published
from sic.errors import SicError
from sic.training import choose, fit
from sic.training.presets import PRESETS, preset
from tests.training.test_choose import data, start

# learning rate, T, epochs, batch size, percent
PAPER = {
    "voc-densenet121": (0.00022, 30, 50, 32, "96.73"),
    "voc-resnet50": (0.0001, 30, 50, 32, "97.00"),
    "voc-vitc": (0.000022, 10, 50, 32, "96.72"),
    "dogs-resnet50": (0.0001, 10, 50, 32, "83.46"),
    "rsna-densenet121": (0.0003, 50, 100, 64, "79.13"),
    "funnybirds-resnet50": (0.001, 30, 100, 8, "99"),
    "cub-resnet50": (0.0001, 10, 50, 32, "79.8"),
}
# learning rate, weight decay, percent
PAPER_OTHERS = {
    "blackbox-voc-densenet121": (0.000022, 0, "96.42"),
    "blackbox-voc-resnet50": (0.00001, 0, "96.71"),
    "blackbox-voc-vitc": (0.0001, 0, "96.35"),
    "blackbox-dogs-resnet50": (0.00001, 0, "87.16"),
    "blackbox-rsna-densenet121": (0.0003, 0.0001, "79.78"),
    "nwhead-dogs-resnet50": (0.00001, 0, "85.16"),
    "nwhead-rsna-densenet121": (0.0003, 0.0001, "79.30"),
    "bcos-voc-densenet121": (0.0001, 0, "96.48"),
    "bcos-voc-resnet50": (0.0001, 0, "96.85"),
    "bcos-voc-vitc": (0.000022, 0, "96.79"),
    "bcos-dogs-resnet50": (0.0001, 0, "85.54"),
    "bcos-rsna-densenet121": (0.01, 0, "78.73"),
}
LAYOUTS = {"voc": "Pascal VOC 2012", "dogs": "Stanford Dogs", "rsna": "RSNA", "funnybirds": "FunnyBirds"}


def settings(folder: Path, name: str, layout: str = "class folders", **said: Any) -> Any:
    return choose(data(folder, (300, 300), layout=layout), {"preset": name, **said}, gpu=False)[0]


@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_the_table(name: str, tmp_path: Path) -> None:
    lr, temperature, epochs, batch_size, percent = PAPER[name]
    chosen = settings(tmp_path, name, LAYOUTS.get(name.partition("-")[0], "class folders"))
    assert (chosen.lr, chosen.temperature, chosen.epochs, chosen.batch_size) == (lr, temperature, epochs, batch_size)
    assert preset(name).reported.startswith(f"{percent} %") and preset(name).source
    assert (chosen.recipe, chosen.form, chosen.b, chosen.supports_per_class, chosen.latent) == (
        "paper",
        "bcos",
        2,
        3,
        128,
    )
    assert chosen.preset == name
    assert (chosen.size, chosen.resize) == ((256, 256) if name.startswith("funnybirds") else (224, 256))
    assert chosen.augmentation == {"rsna": "xray", "funnybirds": "none"}.get(name.partition("-")[0], "photo")
    if name.startswith("rsna"):
        assert chosen.weights is None
    else:
        assert chosen.weights in published(chosen.backbone, "bcos")


@pytest.mark.parametrize("name", PAPER_OTHERS)
def test_every_row_of_other_methods(name: str, tmp_path: Path) -> None:
    lr, weight_decay, percent = PAPER_OTHERS[name]
    method, _, ours = name.partition("-")
    chosen, sics = settings(tmp_path, name), settings(tmp_path, ours)
    assert (chosen.method, chosen.lr, chosen.weight_decay) == (method, lr, weight_decay)
    for same in ("backbone", "epochs", "batch_size", "augmentation", "recipe", "size", "resize", "fit", "weights"):
        assert getattr(chosen, same) == getattr(sics, same)
    assert chosen.form == ("bcos" if method == "bcos" else "conventional")
    assert chosen.weights is None or chosen.weights in published(chosen.backbone, chosen.form)
    assert preset(name).reported == preset(ours).reported.replace(PAPER[ours][-1], percent)


def test_all_rows_are_there() -> None:
    assert set(PRESETS) == set(PAPER) | set(PAPER_OTHERS)


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "voc-resnet50", lr=0.5, epochs=2, size=64, backbone="resnet18", weights="imagenet")
    assert (chosen.lr, chosen.epochs, chosen.size, chosen.backbone) == (0.5, 2, 64, "resnet18")
    assert (chosen.temperature, chosen.batch_size) == (30, 32)
    assert settings(tmp_path, "voc-resnet50", weights="imagenet-long").weights == "imagenet-long"


def test_a_model_to_start_from_decides_about_the_network(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "dogs-resnet50", weights=start(tmp_path))
    assert (chosen.backbone, chosen.latent, chosen.temperature, chosen.size) == (
        "resnet_tiny",
        8,
        2.5,
        24,
    )
    assert (chosen.lr, chosen.epochs) == (1e-4, 50)


def test_a_misspelt_preset_gets_the_list(tmp_path: Path) -> None:
    with pytest.raises(SicError, match="no preset 'voc'; choose one of voc-densenet121, voc-resnet50, voc-vitc, dogs"):
        settings(tmp_path, "voc")


def test_notes_say_where_the_numbers_come_from(tmp_path: Path) -> None:
    said = "; ".join(choose(data(tmp_path), {"preset": "rsna-densenet121"}, gpu=False)[1])
    assert "preset rsna-densenet121 (RSNA; the paper reports 79.13 % balanced accuracy" in said
    assert "table of best configurations" in said


def test_without_a_network_one_sentence_before_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(download, "_download", offline)
    images = data(tmp_path, (300, 300))
    with pytest.raises(SicError, match=r"resnet_50-ead259efe4.pth could not be downloaded \(no route to host\)"):
        fit(images, choose(images, {"preset": "voc-resnet50"})[0], tmp_path / "out")
    assert not (tmp_path / "out").exists()
