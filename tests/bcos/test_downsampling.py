"""Anti-aliasing: what the blur lets pass, where it goes, and that networks stay complete with it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos import BcosConv2d, Blur, antialias, convert, encode_colours
from tests.models import settle, shares

STRIDES = [(2, 2), (3, 3), (4, 4), (1, 2), (3, 2)]


@pytest.mark.parametrize("stride", STRIDES)
def test_the_kernel_is_a_triangle_that_sums_to_one(stride: tuple[int, int]) -> None:
    blur = Blur(stride)
    kernel = blur.rows[:, None] * blur.columns
    assert kernel.shape == (2 * stride[0] - 1, 2 * stride[1] - 1)
    assert kernel.sum().item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(kernel, kernel.flip(0, 1))
    assert kernel.argmax().item() == kernel.numel() // 2


@pytest.mark.parametrize("stride", STRIDES)
def test_a_triangle_is_two_boxes(stride: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 13, 14, dtype=torch.double)
    box = torch.ones(3, 1, *stride, dtype=torch.double) / (stride[0] * stride[1])
    expected = F.conv2d(F.conv2d(x, box, groups=3), box, groups=3)
    top, left = stride[0] - 1, stride[1] - 1
    inner = Blur(stride).double()(x)[:, :, top : 13 - top, left : 14 - left]
    torch.testing.assert_close(inner, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_pattern_that_repeats_with_the_stride_is_gone(stride: tuple[int, int]) -> None:
    """All that is left of a grid, away from the border, is its mean; and so all places of the stride see the same."""
    torch.manual_seed(1)
    grid = torch.randn(1, 2, *stride).repeat(1, 1, 8, 8)
    top, left = stride[0] - 1, stride[1] - 1
    out = Blur(stride)(grid)[:, :, top : grid.shape[2] - top, left : grid.shape[3] - left]
    torch.testing.assert_close(out, grid.mean(dim=(2, 3), keepdim=True).expand_as(out), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_flat_image_passes_unchanged_up_to_the_border(stride: tuple[int, int]) -> None:
    x = torch.tensor([0.0, 0.3, -2.0])[None, :, None, None].expand(2, 3, 6, 7)
    torch.testing.assert_close(Blur(stride)(x), x)


@pytest.mark.parametrize("stride", STRIDES)
def test_size_channels_and_type_stay(stride: tuple[int, int]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.rand(1, 4, 5, 9, dtype=dtype)
        out = Blur(stride)(x)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
    x = torch.rand(1, 4, 5, 9)
    for channel in range(4):
        torch.testing.assert_close(Blur(stride)(x)[:, channel], Blur(stride)(x[:, channel : channel + 1])[:, 0])


def test_the_blur_has_nothing_to_save_or_to_train() -> None:
    blur = Blur((2, 2))
    assert not blur.state_dict()
    assert not list(blur.parameters())


def kinds(module: nn.Module) -> list[str]:
    return [type(child).__name__ for child in module.children()]


def test_blurs_go_before_what_strides_and_nowhere_else() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.MaxPool2d(3, 2),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2),
        nn.Sequential(BcosConv2d(4, 4, 1, stride=(1, 2)), nn.MaxPool2d(2)),
        nn.MaxPool2d(3, 1),
        nn.AdaptiveAvgPool2d(1),
    )
    before = list(net.children())
    antialias(net)
    assert kinds(net) == [
        *("Sequential", "Conv2d", "Sequential", "AvgPool2d", "Sequential", "Sequential", "MaxPool2d"),
        "AdaptiveAvgPool2d",
    ]
    for place, stride in ((0, (2, 2)), (2, (2, 2)), (4, (2, 2))):
        blur, layer = net[place]
        assert isinstance(blur, Blur)
        assert blur.stride == stride
        assert layer is before[place]
    assert [kinds(part) for part in net[5]] == [["Blur", "BcosConv2d"], ["Blur", "MaxPool2d"]]
    assert net[5][0][0].stride == (1, 2)


@pytest.mark.parametrize("pool", [nn.AvgPool2d((2, 2), 2), nn.AvgPool2d(2, (2, 2))], ids=str)
def test_a_fair_average_is_left_alone_however_it_is_written(pool: nn.Module) -> None:
    net = nn.Sequential(pool)
    antialias(net)
    assert net[0] is pool


def test_a_pool_that_is_used_twice_is_blurred_twice() -> None:
    pool = nn.MaxPool2d(2)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), pool, nn.Conv2d(4, 4, 1), pool)
    antialias(net)
    assert [type(module).__name__ for module in net] == ["Conv2d", "Sequential", "Conv2d", "Sequential"]
    assert net[1] is net[3]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_an_anti_aliased_network_stays_complete(style: str) -> None:
    torch.manual_seed(2)
    net = convert(network(), style)
    plain = settle(net, encode_colours(torch.rand(4, 3, 21, 23)))(encode_colours(images := torch.rand(2, 3, 21, 23)))
    antialias(net)
    assert sum(isinstance(module, Blur) for module in net.modules()) == 3
    pixels, constants, outputs = shares(net.double(), images.double())
    torch.testing.assert_close(pixels, outputs, rtol=1e-9, atol=1e-12)
    assert (constants == 0).all()
    assert not torch.allclose(outputs.float(), plain[:, :2], rtol=1e-2)


def grid_strength(weights: Tensor) -> float:
    """How much the four places of a 2×2 grid differ in mean absolute weight, away from the border."""
    inner = weights.abs().sum(0)[4:-4, 4:-4]
    means = torch.stack([inner[i::2, j::2].mean() for i, j in itertools.product(range(2), repeat=2)])
    return ((means.max() - means.min()) / means.mean()).item()


def test_the_blur_takes_the_grid_out_of_the_map() -> None:
    """A 1×1 convolution with stride 2 sees one pixel in four."""
    strengths = []
    for blurred in (False, True):
        net = nn.Sequential(BcosConv2d(6, 1, 1, stride=2, b=1))
        if blurred:
            antialias(net)
        x = torch.rand(1, 6, 24, 24, requires_grad=True)
        (weights,) = torch.autograd.grad(net(x).sum(), x)
        strengths.append(grid_strength(weights[0]))
    assert strengths[0] == pytest.approx(4)
    assert strengths[1] < 1e-5
