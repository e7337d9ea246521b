"""Biases that fade."""

import pytest
import torch
from torch import nn

from sic.bcos import BcosAttention, BcosConv2d, BcosLinear, GroupNorm, fade, remove_biases
from sic.bcos.fading import Fading


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
    layer, x, bias = Fading(), torch.randn(3, 5, 4), torch.randn(4)
    layer.progress = progress
    torch.testing.assert_close(layer.with_bias(x, bias), x + left * bias)
    assert layer.with_bias(x, None) is x


def test_nothing_is_left_for_a_constant_at_the_end() -> None:
    x = torch.randn(3, 4)
    assert Fading().with_bias(x, torch.randn(4)) is x


def test_the_weights_of_a_faded_network_fit_one_without_biases() -> None:
    faded, bare = network(), network(bias=False)
    remove_biases(faded)
    bare.load_state_dict(faded.state_dict())
    x = torch.randn(2, 6, 3, 3)
    assert torch.equal(bare[:2](x), faded[:2](x))
    tokens = torch.randn(2, 5, 4)
    assert torch.equal(bare[2:](tokens), faded[2:](tokens))
