"""The checks of `sic verify` raise no alarm for right explanations, whatever the network and the images."""

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import Bottleneck, ResNet

from sic import backbones
from sic.evaluate.checks import as_json
from sic.evaluate.verification import measure
from sic.methods import SIC, Bcos, Classifier, Contributions
from sic.settings import Form
from tests.evaluate.test_sabotage import as_model, build, photos, sabotaged


def verdicts(classifier: Classifier, images: Tensor, probes: int = 3) -> dict[str, Any]:
    model = as_model(classifier, side=images.shape[-1])
    return as_json(measure(model, copy.deepcopy(model), images, probes=probes))


SMALL = ("resnet_tiny", "resnet_small", "vit_small")
WAYS: dict[str, tuple[type[Classifier], Form]] = {
    "sic-bcos": (SIC, "bcos"),
    "sic-bcosified": (SIC, "bcosified"),
    "bcos-bcos": (Bcos, "bcos"),
    "bcos-bcosified": (Bcos, "bcosified"),
}
LARGE = {
    "resnet18": "sic-bcos",
    "resnet18_smooth": "bcos-bcosified",
    "resnext50_32x4d": "sic-bcos",
    "densenet121": "bcos-bcosified",
    "convnext_tiny": "bcos-bcosified",
    "convnext_tiny_bnu": "sic-bcos",
    "vgg11": "bcos-bcosified",
    "vitc_ti": "bcos-bcosified",
}
"""In one way each: the small ones have all ways, and both forms of a layer are in one or another of these."""
SHORT = {
    "resnext50_32x4d": lambda: ResNet(Bottleneck, [1, 1, 1, 1], groups=32, width_per_group=4),
    "convnext_tiny": lambda: ConvNeXt([CNBlockConfig(96, 192, 1), CNBlockConfig(192, None, 1)]),
}
"""Of few blocks, because grouped convolutions in double precision are slow. DenseNet is as deep as it always is."""
FAST = {("resnet_tiny", "sic-bcos"), ("resnet_tiny", "bcos-bcosified"), ("vit_small", "sic-bcos")}
CASES = [
    pytest.param(name, way, id=f"{name}-{way}", marks=() if (name, way) in FAST else pytest.mark.slow)
    for names in (itertools.product(SMALL, WAYS), LARGE.items())
    for name, way in names
]
"""Checks are made in both precisions whatever the model's own is."""


def test_every_family_is_among_them() -> None:
    def family(name: str) -> str:
        return name.split("_")[0].rstrip("0123456789")

    conventional_only = {"bagnet"}
    assert {family(name) for name in backbones.names()} - conventional_only == {
        family(name) for name in (*SMALL, *LARGE)
    }


@pytest.mark.parametrize(("backbone", "way"), CASES)
def test_families_of_backbones(backbone: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, short in SHORT.items():
        monkeypatch.setattr(models, name, short)
    method, form = WAYS[way]
    assert verdicts(build(method, backbone, form), photos(4), probes=2)["failed"] == []


@pytest.mark.parametrize("method", [SIC, Bcos])
def test_a_model_in_double_precision(method: type[Classifier]) -> None:
    assert verdicts(build(method).double(), photos(4).double(), probes=2)["failed"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"padding": "reflect"},
        {"padding": "replicate"},
        {"antialiased": True},
        {"b": 1.5},
        {"form": "bcosified", "padding": "reflect", "antialiased": True, "b": 1.5},
    ],
    ids=lambda more: " ".join(more),
)
def test_settings_of_backbones(more: dict[str, Any]) -> None:
    assert verdicts(build(SIC, **more), photos(4), probes=2)["failed"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("test_resnet", 32), ("test_efficientnet", 32), ("test_vit", 160)])
@pytest.mark.parametrize("form", ["bcos", "bcosified"])
def test_networks_of_timm(name: str, side: int, form: Form) -> None:
    """A ResNet, one with gates on channels, and one with a class token and learnt positions."""
    pytest.importorskip("timm")
    found = verdicts(build(SIC, f"timm/{name}", form, side=side), photos(2, side), probes=2)
    assert found["failed"] == []
    assert found["axioms"]["constant"]["bias_only"] == (name != "test_vit")


@pytest.mark.parametrize("form", ["bcos", "bcosified"])
def test_local_units(form: Form) -> None:
    assert verdicts(build(SIC, form=form, local=True), photos(4), probes=2)["failed"] == []


@pytest.mark.parametrize("backbone", ["resnet_tiny", pytest.param("resnet18", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["bcos", pytest.param("bcosified", marks=pytest.mark.slow)])
def test_grey_and_empty_images(backbone: str, form: Form) -> None:
    """A photo without colours, one without anything in it, black, and white; maxima of equal numbers are ties."""
    grey = photos(1).mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    images = torch.cat([grey, *(torch.full((1, 3, 32, 32), value) for value in (0.5, 0.0, 1.0))])
    assert verdicts(build(SIC, backbone, form), images, probes=4)["failed"] == []


@pytest.mark.parametrize("method", [SIC, Bcos])
def test_a_model_without_evidence_is_undecided(method: type[Classifier]) -> None:
    model = build(method)
    with torch.no_grad():
        for value in model.support_vectors if isinstance(model, SIC) else [model.head.weight]:
            value.zero_()
    found = verdicts(model, photos(3))
    assert found["failed"] == [] and len(found["undecided"]) == len(found["axioms"])


def test_a_model_with_hardly_any_evidence() -> None:
    """Next to the bias, most of it is rounded off."""
    model, images = build(SIC), photos(2)
    assert isinstance(model, SIC)
    model.bias, model.temperature = -5.0, 1e8
    found = verdicts(model, images, probes=2)
    assert found["failed"] == [] and "weights" not in found["undecided"]


def test_images_without_evidence_count_for_nothing() -> None:
    """Black images turn off every latent unit; the others decide."""
    model = build(SIC)
    assert isinstance(model, SIC)
    images = torch.cat([photos(2), torch.zeros(2, 3, 32, 32)])
    with torch.no_grad():
        seen, _, black, _ = model.backbone(images)
        away = seen - 1.01 * (seen @ black) / (black @ black) * black
        model.encoder.projection.weight.copy_(
            away + 1e-3 * away.norm() * torch.randn(16, len(away)).relu() * away.sign()
        )
        assert (model.encoder(images).norm(dim=1) > 0).tolist() == [True, True, False, False]
        model.set_supports(model.encoder(photos(12)[-4:]), model.support_classes)
    found = verdicts(model, images, probes=4)
    assert found["failed"] == [] and {*found["undecided"]} <= {"deletion", "partners"}
    nothing = verdicts(model, images[2:], probes=2)
    assert nothing["failed"] == []
    assert {"completeness", "weights", "constant", "maps as returned", "matches"} <= {*nothing["undecided"]}


def test_an_empty_map_of_a_model_with_evidence_fails() -> None:
    def empty(exact: Contributions, *_: object) -> Contributions:
        return replace(exact, maps=torch.zeros_like(exact.maps), weights=torch.zeros_like(exact.weights))

    assert {"completeness", "maps as returned"} <= {*verdicts(sabotaged(build(SIC), empty), photos(3))["failed"]}
