"""Every registered backbone, one contract; the transformer's positions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sic import backbones
from sic.backbones import Backbone
from sic.backbones.vit import positions
from sic.bcos import encode_colours, explaining, linear_maps
from sic.errors import SicError
from tests.models import norms_take_the_next_batch

SIZE = 32


@pytest.fixture(scope="module", params=backbones.names())
def net(request: pytest.FixtureRequest) -> Backbone:
    """In evaluation mode and float64; its norms have seen one batch, so that activations have a useful size."""
    torch.manual_seed(0)
    net = backbones.create(request.param).double().train()
    norms_take_the_next_batch(net)
    with torch.no_grad():
        net(encode_colours(photos(6, seed=2)))
    return net.eval()


def photos(number: int, height: int = SIZE, width: int = SIZE, seed: int = 1) -> torch.Tensor:
    """Smooth random pictures of different brightness."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(number, 3, 4, 4, generator=generator, dtype=torch.double)
    brightness = torch.rand(number, 1, 1, 1, generator=generator, dtype=torch.double)
    return F.interpolate(coarse, (height, width), mode="bilinear") * brightness


def test_images_become_vectors(net: Backbone) -> None:
    with torch.no_grad():
        out = net(encode_colours(photos(2, 48, 40)))
    assert out.shape == (2, net.features)
    assert out.isfinite().all()
    assert out.std() > 0


def test_pixels_and_constants_add_up_to_the_features(net: Backbone) -> None:
    with explaining() as trace:
        values = net(encode_colours(photos(2)))[:, :3]
        maps = linear_maps(values, trace)
    assert trace.source is not None
    pixels = (maps.weights * trace.source.detach()[:, None]).sum(dim=(2, 3, 4))
    torch.testing.assert_close(pixels + maps.constants, values.detach(), rtol=1e-9, atol=1e-12)
    assert (pixels.abs() > 1e-6 * values.abs().max()).all()


def test_explaining_does_not_change_the_features(net: Backbone) -> None:
    with torch.no_grad():
        ordinary = net(encode_colours(photos(1)))
    with explaining():
        assert torch.equal(net(encode_colours(photos(1))), ordinary)


def test_images_of_a_batch_do_not_meet(net: Backbone) -> None:
    images = photos(3)
    with torch.no_grad():
        together = net(encode_colours(images))
        for i in range(3):
            torch.testing.assert_close(net(encode_colours(images[i : i + 1]))[0], together[i], rtol=1e-9, atol=1e-12)


def test_every_parameter_gets_a_finite_gradient(net: Backbone) -> None:
    images = photos(2)
    images[0, :, :16] = 0
    names, parameters = zip(*net.named_parameters(), strict=True)
    grads = torch.autograd.grad(net(encode_colours(images)).square().sum(), parameters)
    assert [name for name, grad in zip(names, grads, strict=True) if not grad.isfinite().all()] == []
    assert [name for name, grad in zip(names, grads, strict=True) if not grad.any()] == []


def test_nothing_conventional_is_left(net: Backbone) -> None:
    kinds = {type(module) for module in net.modules()}
    assert not kinds & {nn.Conv2d, nn.BatchNorm2d, nn.LayerNorm, nn.ReLU, nn.GELU, nn.MaxPool2d}
    assert not [name for name, _ in net.named_parameters() if "bias" in name]


def test_bfloat16_points_the_same_way(net: Backbone) -> None:
    images = photos(2)
    with torch.no_grad():
        expected = net(encode_colours(images)).float()
        net.float()
        try:
            with torch.autocast("cpu", torch.bfloat16):
                got = net(encode_colours(images.float())).float()
        finally:
            net.double()
    assert got.isfinite().all()
    # Fifty untrained layers, whose small cosines carry large relative errors, are a hard case.
    assert torch.cosine_similarity(got, expected).mean() > (0.4 if net.features == 2048 else 0.95)


@pytest.mark.parametrize("name", ["resnet_tiny", "vit_small", "resnet18"])
def test_b_reaches_every_layer(name: str) -> None:
    layers = [module for module in backbones.create(name, b=1.5).modules() if hasattr(module, "b")]
    assert layers
    assert {layer.b for layer in layers} == {1.5}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SicError) as caught:
        backbones.create("resnet9000")
    assert "'resnet9000'" in str(caught.value)
    assert all(name in str(caught.value) for name in backbones.names())


def test_a_builder_registers_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from sic.backbones import registry

    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @backbones.register
    def handmade(b: float = 2) -> Backbone:
        net = Backbone()
        net.features = int(10 * b)
        return net

    assert "handmade" in backbones.names()
    assert backbones.create("handmade", b=3).features == 30


@pytest.mark.parametrize(("height", "width", "features"), [(1, 1, 4), (3, 5, 16), (4, 2, 8)])
def test_positions_are_what_the_loop_says(height: int, width: int, features: int) -> None:
    quarter = features // 4
    expected = torch.zeros(1, height * width, features, dtype=torch.double)
    for row in range(height):
        for column in range(width):
            for i in range(quarter):
                frequency = 10_000 ** -(i / (quarter - 1) if quarter > 1 else 0)
                place = expected[0, row * width + column]
                place[i] = math.sin(column * frequency)
                place[quarter + i] = math.cos(column * frequency)
                place[2 * quarter + i] = math.sin(row * frequency)
                place[3 * quarter + i] = math.cos(row * frequency)
    got = positions(height, width, features, torch.zeros(1, dtype=torch.double))
    torch.testing.assert_close(got, expected)


def test_no_two_positions_are_alike() -> None:
    code = positions(12, 9, 32, torch.zeros(1))[0]
    assert torch.cdist(code, code).fill_diagonal_(9).min() > 0.1
