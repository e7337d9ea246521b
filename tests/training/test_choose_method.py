"""What each method makes of settings: defaults, and sentences for what means nothing to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sic.data.dataset import ImageData
from sic.errors import SicError
from sic.methods import METHODS
from sic.settings import table
from sic.training.choose import meaningful
from sic.training.search import default_axes
from tests.training.test_choose import chosen, data, notes, start

VALUES: dict[str, Any] = {
    "temperature": 2.0, "latent": 16, "b": 1.5, "backbone_b": 1.5, "relu": False, "loss": "ce", "neighbours": 3,
    "supports_per_class": 2,
    "keep_support_images": False, "support_source": "bank",
}  # fmt: skip


def multi(folder: Path) -> ImageData:
    return replace(data(folder), task="multi")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", VALUES)
def test_a_setting_means_something_or_is_refused(tmp_path: Path, method: str, setting: str) -> None:
    if meaningful(METHODS[method], setting):
        assert getattr(chosen(data(tmp_path), method=method, **{setting: VALUES[setting]}), setting) == VALUES[setting]
    else:
        with pytest.raises(SicError, match=f"means nothing to --method {method}; leave it out"):
            chosen(data(tmp_path), method=method, **{setting: VALUES[setting]})


def test_every_option_of_a_method_is_a_setting_of_some() -> None:
    special = {name for name, option in table().items() if option.special}
    assert {name for kind in METHODS.values() for name in (*kind.options, *kind.fit_options)} == special
    assert {*VALUES, "attribution", "inference_supports", "ways"} == special


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sic", {"form": "bcos", "loss": "bce", "supports_per_class": 3, "temperature": 1.0, "attribution": None}),
        ("blackbox", {"form": "conventional", "loss": "bce", "attribution": "input-x-gradient", "temperature": 1.0}),
        ("bcos", {"form": "bcos", "loss": "bce", "temperature": 0.1}),
        ("bagnet", {"form": "conventional", "loss": "bce", "backbone": "bagnet17"}),
        ("nwhead", {"form": "conventional", "loss": "ce", "inference_supports": "nearest", "supports_per_class": 3}),
        ("protopnet", {"form": "conventional", "loss": "ce", "supports_per_class": 10, "attribution": "enlarged"}),
    ],
)
def test_defaults(tmp_path: Path, method: str, expected: dict[str, Any]) -> None:
    settings = chosen(data(tmp_path), method=method)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert METHODS[method].collapses == (method == "sic")
    assert ("T = " in notes(data(tmp_path), method=method)) == (method in ("sic", "bcos"))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"method": "tarot"}, "--method knows sic, blackbox"),
        ({"form": "conventional"}, "--method sic works with --form bcos or bcosified only"),
        ({"method": "blackbox", "form": "bcos"}, "--method blackbox works with --form conventional only"),
        ({"method": "nwhead", "loss": "bce"}, "--method nwhead works with --loss ce only"),
        ({"method": "blackbox", "attribution": "box"}, "works with --attribution input-x-gradient or"),
        ({"method": "sic", "inference_supports": "full"}, "works with --inference-supports nearest or"),
        ({"method": "sic", "inference_supports": "best"}, "--inference-supports must be one of"),
        ({"method": "bagnet", "backbone": "resnet_tiny"}, "works with --backbone bagnet17 or"),
        ({"method": "protopnet", "inference_supports": "random"}, "--inference-supports means nothing"),
        ({"method": "blackbox", "loss": "ce", "balance": True}, "--balance weighs yes against no"),
        ({"support_source": "all"}, "--support-source must be one of exact, bank, n-way"),
        ({"ways": 2}, "--ways goes with --support-source n-way only"),
        ({"method": "nwhead", "ways": 2}, "--ways means nothing to --method nwhead"),
        ({"weight_decay": -1.0}, "--weight-decay must be a number from 0 up"),
        ({"method": "blackbox", "preset": "voc-resnet50"}, "is for --method sic"),
        ({"preset": "blackbox-voc-resnet50", "temperature": 3.0}, "--temperature means nothing to --method blackbox"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SicError, match=sentence):
        chosen(data(tmp_path), **said)


def test_a_preset_brings_its_method(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), preset="blackbox-voc-resnet50", attribution="grad-cam")
    assert (settings.method, settings.attribution) == ("blackbox", "grad-cam")


def test_several_labels_need_yes_and_no(tmp_path: Path) -> None:
    found = multi(tmp_path)
    with pytest.raises(SicError, match="--method nwhead is for one label per image"):
        chosen(found, method="nwhead")
    with pytest.raises(SicError, match="--loss ce is for one label per image"):
        chosen(found, method="blackbox", loss="ce")
    assert chosen(found, method="protopnet", balance=True).loss == "bce"


def test_all_images_as_supports_are_not_copied_unless_said(tmp_path: Path) -> None:
    assert not chosen(data(tmp_path), method="nwhead", inference_supports="full").keep_support_images
    assert chosen(
        data(tmp_path), method="nwhead", inference_supports="full", keep_support_images=True
    ).keep_support_images


@pytest.mark.parametrize("method", ["blackbox", "nwhead", "protopnet"])
def test_published_weights_of_conventional_networks(tmp_path: Path, method: str) -> None:
    settings = chosen(data(tmp_path), method=method, backbone="timm/tf_efficientnet_lite0", weights="imagenet")
    assert (settings.form, settings.recipe) == ("conventional", "paper")
    assert chosen(data(tmp_path), method=method, weights="imagenet").backbone == "resnet50"
    with pytest.raises(SicError, match="no weights called imagenet-long for a conventional resnet50"):
        chosen(data(tmp_path), method=method, backbone="resnet50", weights="imagenet-long")
    with pytest.raises(SicError, match="needs a conventional one"):
        chosen(data(tmp_path), method=method, weights=start(tmp_path))


def test_bagnets_start_from_files_of_bagnets(tmp_path: Path) -> None:
    file = tmp_path / "bagnet.pth"
    file.touch()
    assert chosen(data(tmp_path), method="bagnet", weights=str(file)).backbone == "bagnet17"
    with pytest.raises(SicError, match="There are no weights called imagenet for a conventional bagnet17"):
        chosen(data(tmp_path), method="bagnet", weights="imagenet")


def test_another_method_inherits_the_network_and_not_the_temperature(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), method="bcos", weights=start(tmp_path))
    assert (settings.backbone, settings.size, settings.temperature) == ("resnet_tiny", 24, 1.0)


def test_a_search_tries_temperatures_where_they_are_sics(tmp_path: Path) -> None:
    axes = {name: default_axes(chosen(data(tmp_path), method=name), kind) for name, kind in METHODS.items()}
    assert len(axes["sic"]["temperature"]) > 1
    assert axes["bcos"]["temperature"] == (0.1,)
    assert "temperature" not in axes["blackbox"]
