"""The B-cos classifier: its logits written out, and that pixels and constants add up to them."""

import math

import pytest
import torch
from torch import Tensor

from sic import backbones
from sic.errors import SicError
from sic.methods import Bcos
from sic.settings import Form
from tests.models import settle


def images(dtype: torch.dtype = torch.double) -> Tensor:
    return torch.rand(3, 3, 24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.double).to(dtype)


def build(backbone: str = "resnet_tiny", form: Form = "bcos", dtype: torch.dtype = torch.double, b: float = 2) -> Bcos:
    torch.manual_seed(0)
    model = Bcos(backbones.create(backbone, form, b=b), 5, temperature=0.05, b=b).to(dtype)
    settle(model, images(dtype))
    return model


@pytest.mark.parametrize("b", [1, 1.5, 2])
@torch.no_grad()
def test_logits_are_what_the_loop_says(b: float) -> None:
    model = build(b=b)
    for features, logits in zip(model.backbone(images()), model(images()), strict=True):
        for weight, logit in zip(model.head.weight, logits, strict=True):
            cosine = (features @ weight / features.norm() / weight.norm()).item()
            out = features.norm().item() * abs(cosine) ** b * math.copysign(1, cosine)
            assert logit.item() == pytest.approx(out / 0.05 - math.log(4), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("backbone", "form"), [("resnet_tiny", "bcos"), ("resnet_tiny", "bcosified"), ("vit_small", "bcos")]
)
def test_parts_add_up_to_the_logit(backbone: str, form: Form, dtype: torch.dtype) -> None:
    model = build(backbone, form, dtype)
    targets = torch.arange(5).expand(3, 5)
    explained = model.explain(images(dtype), targets)
    torch.testing.assert_close(explained.value, model(images(dtype)).detach())
    mass = explained.maps.abs().sum(dim=(-2, -1))
    assert (mass > 0.01).all()
    assert (explained.residual.abs() < (1e-5 if dtype == torch.float32 else 1e-13) * (mass + 1)).all()
    positions = (explained.constant - model.bias).abs()
    assert (positions > 1e-4).any() if backbone == "vit_small" else (positions == 0).all()


def test_two_classes_start_even_and_conventional_networks_are_refused() -> None:
    assert Bcos(backbones.create("resnet_tiny"), 2).bias == 0
    with pytest.raises(SicError, match="--form bcos or bcosified"):
        Bcos(backbones.create("resnet_tiny", "conventional"), 2)
