"""The backward passes that exporters do not know, against autograd's own."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from sic import backbones
from sic.errors import SicError
from sic.export.graph import Explaining, _avg_pool2d_backward, _constant_pad_nd, _convolution_backward, exported
from sic.methods import SIC, BlackBox


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), (2, 0, 1, 2), (3, 2, 2, 4)],
)
@pytest.mark.parametrize("size", [(13, 10), (12, 15)])
def test_convolutions(stride: int, padding: int, dilation: int, groups: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 4, *size, dtype=torch.double, requires_grad=True)
    weight = torch.rand(8, 4 // groups, 3, 2, dtype=torch.double)
    out = F.conv2d(images, weight, None, stride, padding, dilation, groups)
    gradient = torch.rand_like(out)
    (expected,) = torch.autograd.grad(out, images, gradient)
    pairs = [[stride] * 2, [padding] * 2, [dilation] * 2]
    found, *others = _convolution_backward(
        gradient, images, weight, [0], *pairs, False, [0, 0], groups, [True, False, False]
    )
    torch.testing.assert_close(found, expected)
    assert others == [None, None]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(2, None, 0), (3, 2, 1), (2, 3, 0), (3, 1, 1), (4, 3, 2), ([2, 3], [1, 2], [0, 1])],
)
@pytest.mark.parametrize(
    ("ceil", "count", "divisor"), [*itertools.product([False, True], [False, True], [None]), (True, True, 5)]
)
def test_poolings(
    kernel: int | list[int],
    stride: int | list[int] | None,
    padding: int | list[int],
    ceil: bool,
    count: bool,
    divisor: int,
) -> None:
    def pair(value: int | list[int]) -> list[int]:
        return value if isinstance(value, list) else [value, value]

    for size in [(9, 12), (10, 7), (11, 11)]:
        images = torch.rand(2, 3, *size, dtype=torch.double, requires_grad=True)
        out = F.avg_pool2d(images, kernel, stride, padding, ceil, count, divisor)
        gradient = torch.rand_like(out)
        (expected,) = torch.autograd.grad(out, images, gradient)
        strides = [] if stride is None else pair(stride)
        found = _avg_pool2d_backward(gradient, images, pair(kernel), strides, pair(padding), ceil, count, divisor)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "pads", [[1, 2], [0, 1, 0, 1], [2, 0, 3, 1], [-1, -2, 0, -1], [-1, 2, 0, 0], [1, 1, 0, 0, 2, 1]]
)
def test_paddings(pads: list[int]) -> None:
    images = torch.rand(2, 3, 6, 5)
    assert torch.equal(_constant_pad_nd(images, pads, 0.5), F.pad(images, pads, value=0.5))


@pytest.mark.slow
def test_padding_leaves_the_length_of_batches_open() -> None:
    """Networks that pad as TensorFlow does."""
    classifier = SIC(backbones.create("timm/tf_efficientnet_lite0", "bcosified", measure=False), 2, 2)
    program = exported(Explaining(classifier).eval(), 32)
    assert program.module()(torch.rand(3, 3, 32, 32))[0].shape == (3, 2)


def test_what_cannot_be_traced_back_is_refused() -> None:
    with pytest.raises(SicError, match="--explain is for models"):
        Explaining(BlackBox(backbones.create("resnet_tiny", "conventional"), 3))
