"""A classifier as a graph of plain operators, with a batch of any size: its answers, and where they come from."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from sic.errors import SicError
from sic.methods import METHODS, Classifier

aten = torch.ops.aten
MAPS = ("top_class", "contributions", "constant")
"""What an explaining graph returns beside the answers."""


class Answering(nn.Module):
    """Images N×3×H×W → logits N×C and, where there are cases, evidence N×S."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.names: tuple[str, ...] = ("logits", "evidence") if classifier.with_cases else ("logits",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.classifier.answer(images)[: len(self.names)]


class Explaining(Answering):
    """Also the class of the highest logit, N, its contributions N×H×W and what no pixel contributes, N."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        if not classifier.traceable:
            able = " or ".join(name for name, kind in METHODS.items() if kind.traceable)
            raise SicError(f"--explain is for models whose forward pass can be traced back: --method {able}.")
        self.answers = len(self.names)
        self.names = (*self.names, *MAPS)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        answered = self.classifier.answered(images)
        top = answered.logits.argmax(dim=1)
        found = answered.explain(top, weights=False)
        return *(answered.logits, answered.evidence)[: self.answers], top, found.maps, found.constant


def exported(module: Answering, size: int) -> ExportedProgram:
    """The graph for images of `size`×`size` and batches of any length."""
    example = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    plain: nn.Module = _traced(module, example) if isinstance(module, Explaining) else module
    with torch.no_grad():
        return torch.export.export(plain, (example,), dynamic_shapes=({0: Dim("batch", min=1)},), strict=False)


def _traced(module: Explaining, example: Tensor) -> nn.Module:
    """What `module` computes forwards and backwards, as one graph: exporters themselves know no backward pass."""
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fake = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    backwards: dict[Any, Callable[..., Any]] = {
        aten.convolution_backward.default: _convolution_backward,
        aten.avg_pool2d_backward.default: _avg_pool2d_backward,
        aten.constant_pad_nd.default: _constant_pad_nd,
    }
    with mode:
        graph = make_fx(module, backwards)(fake)

    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.traced = graph

        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.traced(images))

    return Traced()


def _convolution_backward(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    bias_sizes: object,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    mask: list[bool],
) -> tuple[Tensor, None, None]:
    """For the input only: a transposed convolution. ONNX has no operator for the backward pass of one."""
    assert not transposed and mask == [True, False, False]
    rest = [
        images.shape[2 + i]
        - ((gradient.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[2 + i] - 1) + 1)
        for i in range(2)
    ]
    return aten.convolution(gradient, weight, None, stride, padding, dilation, True, rest, groups), None, None


def _constant_pad_nd(images: Tensor, pads: list[int], value: float = 0) -> Tensor:
    """From pieces, where less than nothing cuts off: what torch itself does fixes the length of the batch."""
    for dim, before, after in zip(range(images.dim() - 1, -1, -1), pads[::2], pads[1::2], strict=False):
        shape, start, end = list(images.shape), max(0, -before), images.shape[dim] - max(0, -after)
        first, last = (
            [images.new_full([*shape[:dim], length, *shape[dim + 1 :]], value)] if length > 0 else []
            for length in (before, after)
        )
        images = torch.cat([*first, images.narrow(dim, start, end - start), *last], dim)
    return images


def _avg_pool2d_backward(
    gradient: Tensor,
    images: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Tensor:
    """As a transposed convolution with ones, of what each pixel of a window gets."""
    stride = stride or kernel
    height, width = images.shape[2:]
    if divisor is None:
        rows = _window_sizes(gradient.shape[2], kernel[0], stride[0], padding[0], height, count_padding)
        columns = _window_sizes(gradient.shape[3], kernel[1], stride[1], padding[1], width, count_padding)
        shares = gradient / (gradient.new_tensor(rows)[:, None] * gradient.new_tensor(columns))
    else:
        shares = gradient / divisor
    ones = gradient.new_ones(images.shape[1], 1, *kernel)
    # Without padding: what windows reach beyond the border (`ceil_mode`) is cut off, and where none reaches is zero.
    reached = [(gradient.shape[2 + i] - 1) * stride[i] + kernel[i] - padding[i] for i in range(2)]
    rest = [max(0, images.shape[2 + i] - reached[i]) for i in range(2)]
    spread = aten.convolution(shares, ones, None, stride, [0, 0], [1, 1], True, rest, images.shape[1])
    return spread[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]


def _window_sizes(
    windows: int, kernel: int, stride: int, padding: int, length: int, count_padding: bool
) -> Sequence[float]:
    """What the sum in each window is divided by, along one direction."""
    sizes = []
    for window in range(windows):
        start = window * stride - padding
        end = min(start + kernel, length + padding)
        sizes.append(float(end - start if count_padding else min(end, length) - max(start, 0)))
    return sizes
