"""Padding with the image's own values: the layers, and explanations of networks that use it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sic import backbones
from sic.bcos import BcosConv2d, convert, encode_colours, pad_with
from sic.evaluate import axioms, verification
from sic.evaluate.probe import Probe
from sic.methods import SIC
from sic.settings import Padding
from tests.models import settle

MODES: tuple[Padding, ...] = ("reflect", "replicate")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(3, 1, 1), (5, 2, 2), ((3, 1), 1, 1)])
def test_a_layer_sees_the_padded_image(mode: Padding, kernel: int | tuple[int, int], stride: int, groups: int) -> None:
    torch.manual_seed(0)
    padding = (kernel // 2,) * 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    layer = BcosConv2d(4, 6, kernel, stride, padding, groups=groups)
    bare = BcosConv2d(4, 6, kernel, stride, 0, groups=groups)
    bare.load_state_dict(layer.state_dict())
    pad_with(layer, mode)
    x = torch.randn(2, 4, 9, 11)
    rows, columns = padding
    torch.testing.assert_close(layer(x), bare(F.pad(x, (columns, columns, rows, rows), mode=mode)))


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_image_has_no_border(mode: Padding) -> None:
    """With zeros it has one, which a network can see and a map must show."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 5, 3, 1, 1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(5, 4, 3, 1, padding="same"))
    network = convert(plain)
    image = encode_colours(torch.full((1, 3, 12, 12), 0.3))

    def spread() -> float:
        out = network(image)
        return (out.amax((2, 3)) - out.amin((2, 3))).abs().max().item()

    assert spread() > 1e-2
    pad_with(network, mode)
    assert spread() < 1e-6
    pad_with(network, "zeros")
    assert spread() > 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_explanations_stay_exact(mode: Padding) -> None:
    torch.manual_seed(0)
    model = SIC(backbones.create("resnet_tiny", padding=mode), 3, 3, latent=16, temperature=0.5)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(3, 3, 24, 24, generator=generator)
    settle(model, images)
    model.set_supports(torch.rand(3, 16), torch.arange(3))
    double = model.double()
    single = SIC(backbones.create("resnet_tiny", padding=mode), 3, 3, latent=16, temperature=0.5).eval()
    single.load_state_dict(double.state_dict())
    assert axioms.completeness(single, double, images).passed
    for image in images.split(1):
        probe = Probe(single, double, image, generator)
        weights, constant = verification.weights_and_constant(probe, generator)
        assert weights.passed and constant.passed and weights.worst < 1e-9


def test_zeros_are_the_default_and_change_nothing() -> None:
    torch.manual_seed(0)
    usual = backbones.create("resnet_tiny").eval()
    explicit = backbones.create("resnet_tiny", padding="zeros").eval()
    explicit.load_state_dict(usual.state_dict())
    image = torch.rand(1, 3, 24, 24)
    assert torch.equal(usual(image), explicit(image))
    other = backbones.create("resnet_tiny", padding="replicate").eval()
    other.load_state_dict(usual.state_dict())  # the same weights fit
    assert not torch.allclose(usual(image), other(image))
