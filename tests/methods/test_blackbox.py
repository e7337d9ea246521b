"""Post-hoc attributions against hand computations, and residuals that say what is missing."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sic import backbones
from sic.errors import SicError
from sic.methods import BlackBox
from sic.methods.blackbox import GRAD_CAM, INPUT_X_GRADIENT, INTEGRATED_GRADIENTS
from tests.models import randomise

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TARGETS = torch.tensor([[0, 2], [1, 1]])


def images() -> Tensor:
    return torch.rand(2, 3, 24, 20, generator=torch.Generator().manual_seed(1), dtype=torch.double)


def build(attribution: str, backbone: str = "resnet_tiny") -> BlackBox:
    torch.manual_seed(0)
    model = BlackBox(backbones.create(backbone, "conventional"), 3, attribution=attribution).double()
    randomise(model, torch.rand(6, 3, 24, 20, dtype=torch.double))
    return model


def test_input_x_gradient() -> None:
    model = build("input-x-gradient")
    explained = model.explain(images(), TARGETS)
    mean, std = (torch.tensor(v, dtype=torch.double)[:, None, None] for v in (MEAN, STD))
    prepared = ((images() - mean) / std).requires_grad_()
    logits = model.head(model.backbone.network(prepared).mean(dim=(2, 3)))
    torch.testing.assert_close(explained.value, logits.gather(1, TARGETS).detach())
    for k in range(2):
        gradient = torch.autograd.grad(logits.gather(1, TARGETS)[:, k].sum(), prepared, retain_graph=True)[0]
        torch.testing.assert_close(explained.maps[:, k], (gradient * prepared).sum(dim=1).detach())
    assert (explained.constant == 0).all()
    # Biases have no pixel: what is missing is said, not hidden.
    torch.testing.assert_close(explained.residual, explained.value - explained.maps.sum(dim=(-2, -1)))
    assert (explained.residual.abs() > 1e-3).all()


def test_integrated_gradients_start_from_the_mean_colour() -> None:
    pytest.importorskip("captum")
    model = build("integrated-gradients")
    explained = model.explain(images(), TARGETS)
    mean = torch.tensor(MEAN, dtype=torch.double)[:, None, None].expand(2, 3, 24, 20)
    torch.testing.assert_close(explained.constant, model(mean).detach().gather(1, TARGETS))
    # The integral of the gradient is the difference; 50 steps come near to it.
    difference = (explained.value - explained.constant).abs()
    assert (explained.residual.abs() < 0.05 * difference).all() and (difference > 0.01).all()
    alone = model.explain(images()[1:], TARGETS[1:])
    torch.testing.assert_close(alone.maps, explained.maps[1:])


@torch.no_grad()
def test_grad_cam_by_hand() -> None:
    """On global mean pooling the gradient of a logit by every position of map f is w_f / (h w)."""
    model = build("grad-cam")
    explained = model.explain(images(), TARGETS)
    maps = model.backbone.feature_maps(model.backbone.prepared(images()))
    height, width = maps.shape[2:]
    assert (height, width) != (24, 20)
    expected = []
    for n in range(2):
        for k in range(2):
            weights = model.head.weight[TARGETS[n, k]] / (height * width)
            expected.append(sum(w * m for w, m in zip(weights, maps[n], strict=True)).clamp(min=0))  # type: ignore[union-attr]
    enlarged = F.interpolate(torch.stack(expected)[:, None], (24, 20), mode="bilinear")[:, 0]
    torch.testing.assert_close(explained.maps.flatten(0, 1), enlarged)
    assert (enlarged > 0).any() and (explained.maps >= 0).all()


@pytest.mark.parametrize("attribution", BlackBox.attributions)
def test_one_target_or_several_and_in_inference_mode(attribution: str) -> None:
    if attribution == INTEGRATED_GRADIENTS:
        pytest.importorskip("captum")
    model = build(attribution)
    several = model.explain(images(), TARGETS)
    assert several.maps.shape == (2, 2, 24, 20) and several.weights.shape == (2, 2, 0, 24, 20)
    with torch.inference_mode():
        one = model.explain(images().clone(), TARGETS[:, 1].clone())
    torch.testing.assert_close(one.maps, several.maps[:, 1])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_feature_maps_and_their_pooling_are_the_network() -> None:
    pytest.importorskip("timm")
    backbone = backbones.create("timm/tf_efficientnet_lite0", "conventional").double().eval()
    prepared = backbone.prepared(images())
    maps = backbone.feature_maps(prepared)
    assert maps.shape[1] == backbone.map_features
    torch.testing.assert_close(backbone.pool_maps(maps), backbone.pooled(prepared))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(SicError, match="choose from input-x-gradient"):
        build("grad-cam").explain_with("lime")
    with pytest.raises(SicError, match="a convolutional one"):
        build("grad-cam", "vit_small").explain(images(), TARGETS)
    with pytest.raises(SicError, match="--form conventional"):
        BlackBox(backbones.create("resnet_tiny"), 3)


def test_only_integrated_gradients_need_captum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    for attribution in (INPUT_X_GRADIENT, GRAD_CAM):
        build(attribution).explain(images(), TARGETS)
    with pytest.raises(SicError, match="need captum"):
        build(INTEGRATED_GRADIENTS).explain(images(), TARGETS)


def test_losses_decide_what_probabilities_are() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    net = backbones.create("resnet_tiny", "conventional")
    torch.testing.assert_close(BlackBox(net, 3).probabilities(logits), logits.sigmoid())
    torch.testing.assert_close(BlackBox(net, 3, loss="ce").probabilities(logits), logits.softmax(dim=1))
