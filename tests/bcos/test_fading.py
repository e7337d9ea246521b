"""Biases that fade, and biases that the image carries."""

import pytest
import torch
from torch import nn

from sic.bcos import (
    BatchNormUncentred2d,
    BcosAttention,
    BcosConv2d,
    BcosLinear,
    GroupNorm,
    carry_biases,
    encode_colours,
    explaining,
    fade,
    linear_maps,
    without_biases,
)
from sic.bcos.fading import Fading, add_bias


def network(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        BcosConv2d(6, 4, 3, bias=bias),
        nn.Sequential(GroupNorm(2, 4, bias=bias), nn.ReLU()),
        BcosLinear(4, 4, bias=bias),
        BcosAttention(4, 2, qkv_bias=bias, out_bias=bias),
    )


def test_layers_are_b_cos_unless_told_otherwise() -> None:
    assert {layer.progress for layer in network().modules() if isinstance(layer, Fading)} == {1.0}


def test_fading_reaches_every_layer() -> None:
    net = network()
    fade(net, 0.25)
    assert [layer.progress for layer in net.modules() if isinstance(layer, Fading)] == [0.25] * 5
    assert [layer.progress for layer in network().modules() if isinstance(layer, Fading)] == [1.0] * 5


@pytest.mark.parametrize(("progress", "left"), [(0, 1.0), (0.25, 0.75), (1, 0.0)])
def test_what_is_left_of_a_bias(progress: float, left: float) -> None:
    x, bias = torch.randn(3, 5, 4), torch.randn(4)
    torch.testing.assert_close(add_bias(x, bias, progress), x + left * bias)
    assert add_bias(x, None, progress) is x


def test_nothing_is_left_for_a_constant_at_the_end() -> None:
    x = torch.randn(3, 4)
    assert add_bias(x, torch.randn(4), 1) is x


def test_the_weights_of_a_faded_network_fit_one_without_biases() -> None:
    faded, bare = network(), network(bias=False)
    bare.load_state_dict(without_biases(faded.state_dict(), bare))
    x = torch.randn(2, 6, 3, 3)
    assert torch.equal(bare[:2](x), faded[:2](x))
    tokens = torch.randn(2, 5, 4)
    assert torch.equal(bare[2:](tokens), faded[2:](tokens))


def carrying() -> nn.Module:
    """With typical sizes that are not those of the inputs of these tests."""
    torch.manual_seed(0)
    net = nn.Sequential(network()[0], BatchNormUncentred2d(4, bias=True), network()[1]).double()
    carry_biases(net)
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        if name.endswith(("bias", "running_mean", "typical")):
            nn.init.uniform_(value, 0.5, 1.5)
    return net.eval()


def test_a_carried_bias_grows_with_the_image() -> None:
    """Nothing is left that would not scale with the input; group norm takes the scale out again."""
    net, x = carrying(), torch.randn(2, 6, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(net[:2](3 * x), 3 * net[:2](x))
    layer = net[1]
    out = layer.weight[:, None, None] * (layer.running_var[:, None, None] + layer.eps).rsqrt() * x[:, :4]
    shift = layer.bias - layer.running_mean * layer.weight * (layer.running_var + layer.eps).rsqrt()
    for image, found in zip(out, layer(x[:, :4]), strict=True):
        size = image.square().mean().sqrt()
        torch.testing.assert_close(found, image + size / layer.typical * shift[:, None, None])


def test_carried_biases_trace_back_to_the_image() -> None:
    net, images = carrying(), torch.rand(2, 3, 5, 5, dtype=torch.float64)
    with explaining() as trace:
        outputs = net(encode_colours(images)).flatten(1)[:, :3]
    found = linear_maps(outputs, trace)
    assert found.constants.abs().max() == 0
    torch.testing.assert_close(found.maps.sum(dim=(2, 3)), outputs.detach())
    torch.testing.assert_close(outputs.detach(), net(encode_colours(images)).flatten(1)[:, :3])


def test_a_conventional_start_is_the_same_whatever_becomes_of_the_biases() -> None:
    carried, faded = carrying(), nn.Sequential(network()[0], BatchNormUncentred2d(4, bias=True), network()[1]).double()
    faded.load_state_dict(without_biases(carried.state_dict(), faded))
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    for net in (carried, faded.eval()):
        fade(net, 0)
    torch.testing.assert_close(carried(x), faded(x))


def test_the_typical_size_is_learnt() -> None:
    """In training the batch's own mean counts, in evaluation what was usual in training."""
    layer = BcosLinear(4, 3, b=1, unit=False, bias=True)
    carry_biases(layer)
    x = torch.randn(50, 4)
    sizes = (x @ layer.weight.T).square().mean(dim=1).sqrt()
    trained = layer(x)
    torch.testing.assert_close(trained, x @ layer.weight.T + (sizes / sizes.mean())[:, None] * layer.bias)
    for _ in range(200):
        layer(x)
    torch.testing.assert_close(layer.typical, sizes.mean().detach())
    torch.testing.assert_close(layer.eval()(x), trained)
