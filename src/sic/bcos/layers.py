"""The B-cos unit `‖x‖ · |cos(x, ŵ)|^B · sgn cos(x, ŵ)` as a linear layer, a 2-D convolution and a plain function.

`Fading` and `Gate` turn layers of a conventional network into B-cos layers.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos.explanation import constant, frozen, is_explaining


def wide_type(x: Tensor) -> torch.dtype:
    """The type for norms and variances of `x`: half precision is too coarse."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def widened(x: Tensor) -> Tensor:
    return x.to(wide_type(x))


def sum_of_squares(x: Tensor, dims: int | tuple[int, ...], *, keepdim: bool = False) -> Tensor:
    """Over `dims`, in `wide_type`."""
    over = (dims,) if isinstance(dims, int) else dims
    # Compilers fuse all of this. On a CPU, norms of values that are not side by side in memory are slow.
    if torch.compiler.is_compiling() or not (x.is_cuda or any(x.stride(dim) == 1 for dim in over)):
        return widened(x).square().sum(dims, keepdim=keepdim)
    return torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim, dtype=wide_type(x)).square()  # without a wide copy


class Fading:
    """A layer between conventional (`progress` 0: B = 1, full biases) and B-cos (1: B as given, no biases).

    A bias does not depend on the input, so it explains nothing. Removing all biases of a pretrained network at once
    destroys what it has learnt; fading lets it learn to do without them, step by step (Arya et al. 2024).

    On the way, `progress` can be a tensor: its value may change without recompiling the layer.
    """

    progress: float | Tensor = 1.0

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """`x` plus the part of a bias that is left; the bias broadcasts against one element of the batch."""
        if bias is None or (not isinstance(self.progress, Tensor) and self.progress == 1):
            return x
        term = ((1 - self.progress) * bias).to(x.dtype)
        return x + constant(term.reshape(1, *[1] * (x.dim() - 1 - term.dim()), *term.shape), x.shape[0])


def fade(module: nn.Module, progress: float | Tensor) -> None:
    """Set how far every layer of `module` has come, from 0 (conventional) to 1 (B-cos)."""
    for layer in module.modules():
        if isinstance(layer, Fading):
            layer.progress = progress


def remove_biases(module: nn.Module) -> None:
    """Remove the biases of every layer of `module`, which have faded: it becomes the network built without any."""
    fade(module, 1.0)
    for layer in module.modules():
        if isinstance(layer, Fading) and isinstance(layer, nn.Module) and getattr(layer, "bias", None) is not None:
            layer.register_parameter("bias", None)
            layer._buffers.pop("running_mean", None)  # of batch norms: it only shifts


class Gate(nn.Module):
    """A module whose output is its input times something, element by element: GELU, squeeze-and-excitation, RMS norm.

    It computes exactly what the module computes; while explaining, the factor counts as part of the dynamic weight.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        if not is_explaining():
            return self.module(x)
        with torch.no_grad():
            out = self.module(x.clone())  # it may work in place
            factor = torch.where(x == 0, 0, out / x)
        return x * factor


EPS = 1e-6
"""Added to squared patch norms, as in B-cos v2, so that an all-zero patch gives zero and a finite gradient."""


def cosine_scale(linear: Tensor, inverse_norm: Tensor, b: float | Tensor) -> Tensor:
    """`|cos|^(B-1)` for `linear = ŵᵀx` and `inverse_norm = 1 / ‖x‖`; constant while explaining."""
    if linear.dtype == torch.bfloat16:  # reaches as far as float32, which float16 does not
        inverse_norm = inverse_norm.bfloat16()
    cosine = (frozen(linear).abs() * frozen(inverse_norm)).to(linear.dtype)
    # A non-integer power has no finite slope at zero; the small offset gives it one.
    return cosine if not isinstance(b, Tensor) and b == 2 else (cosine + EPS).pow(b - 1)


def scaled(linear: Tensor, inverse_norm: Tensor, b: float | Tensor) -> Tensor:
    """`linear · |cos|^(B-1)`, as `cosine_scale`."""
    plain = linear.dtype == inverse_norm.dtype and not isinstance(b, Tensor) and b == 2
    # Compilers decide by themselves what to keep.
    if plain and not (is_explaining() or torch.compiler.is_compiling()):
        return _ScaledByCosine.apply(linear, inverse_norm)
    return linear * cosine_scale(linear, inverse_norm, b)


class _ScaledByCosine(torch.autograd.Function):
    """`linear · |linear| · inverse_norm`, B = 2. Keeps its two inputs for the backward pass; autograd would keep two
    more tensors of the size of the output, two fifths of the memory of a training step."""

    @staticmethod
    def forward(ctx: Any, linear: Tensor, inverse_norm: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(linear, inverse_norm)
        return linear.abs().mul_(inverse_norm).mul_(linear)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        linear, inverse_norm = ctx.saved_tensors
        slope = gradient * linear.abs()
        return 2 * slope * inverse_norm, (slope * linear).sum_to_size(inverse_norm.shape)


def bcos_similarity(x: Tensor, vectors: Tensor, b: float = 2) -> Tensor:
    """B-cos units with the weights `vectors / ‖vectors‖`: N×d and S×d give N×S. A zero vector is similar to nothing."""
    directions = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    linear = x @ directions.T
    return linear if b == 1 else linear * cosine_scale(linear, 1 / (x.norm(dim=1, keepdim=True) + 1e-12), b)


class _ChannelsLastGradient(torch.autograd.Function):
    """Changes nothing but the layout of the gradient: that of some operations loses it when they are compiled, and the
    backward pass of a convolution would copy what it gets in another than its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.contiguous(memory_format=torch.channels_last)


class BcosUnit(Fading):
    """The base of B-cos layers. `unit`: the weights count by their direction only, as in B-cos v2; otherwise their norm
    scales the output, as in the conventional layer that they come from."""

    weight: Tensor
    b: float
    unit: bool

    def set_up(self, b: float, unit: bool) -> None:
        if b < 1:
            raise ValueError(f"B must be at least 1, got {b}")
        self.b, self.unit = b, unit

    @property
    def current_b(self) -> float | Tensor:
        """B, while fading somewhere between 1 and its final value."""
        return 1 + self.progress * (self.b - 1)

    @property
    def is_linear(self) -> bool:
        """B is 1 for now: no cosine counts."""
        return self.b == 1 or (not isinstance(self.progress, Tensor) and self.progress == 0)

    def scaled_weight(self) -> Tensor:
        """`ŵ`. Where the norm counts: `ŵ ‖w‖^(1/B)`, which `|ŵᵀx|^(B-1)` makes `‖w‖` of the output."""
        if self.is_linear and not self.unit:
            return self.weight
        norms = self.weight.flatten(1).norm(dim=1) + 1e-12
        factor = 1 / norms if self.unit else norms ** (1 / self.current_b - 1)
        return self.weight * factor.view(-1, *[1] * (self.weight.dim() - 1))


class BcosLinear(BcosUnit, nn.Linear):
    """B-cos linear layer: …×in → …×out. A bias is there only to fade."""

    def __init__(
        self, in_features: int, out_features: int, b: float = 2, *, unit: bool = True, bias: bool = False
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.set_up(b, unit)

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.scaled_weight())
        if not self.is_linear:
            inverse = 1 / (torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide_type(x)) + 1e-12)
            out = scaled(out, inverse, self.current_b)
        return self.with_bias(out, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, B={self.b}"


class BcosConv2d(BcosUnit, nn.Conv2d):
    """B-cos 2-D convolution: N×in×H×W → N×out×H'×W'. A bias is there only to fade.

    The padding is zero, or with another `padding_mode` (see `sic.bcos.pad_with`) made of the image's own values.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        b: float = 2,
        *,
        unit: bool = True,
        bias: bool = False,
    ) -> None:
        def pair(value: int | Sequence[int]) -> tuple[int, int]:
            return (value, value) if isinstance(value, int) else (value[0], value[1])

        super().__init__(
            in_channels,
            out_channels,
            pair(kernel_size),
            pair(stride),
            pair(padding),
            pair(dilation),
            groups,
            bias=bias,
        )
        self.set_up(b, unit)

    def padded(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The input of the convolution, and the zero padding that it still needs."""
        zeros = (int(self.padding[0]), int(self.padding[1]))
        if self.padding_mode == "zeros" or zeros == (0, 0):
            return x, zeros
        return F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode), (0, 0)

    def inverse_norms(self, x: Tensor, padding: tuple[int, int]) -> Tensor:
        """`1 / ‖patch‖`, N×G×H'×W', from a box-filtered sum of squares over each group's channels."""
        if self.groups == 1:
            squares = sum_of_squares(x, 1, keepdim=True)
        else:
            squares = widened(x).square().unflatten(1, (self.groups, -1)).sum(2)
        return (self._box_sums(squares, padding) + EPS).rsqrt()

    def _box_sums(self, squares: Tensor, padding: tuple[int, int]) -> Tensor:
        """Sums over the windows that the convolution looks at, N×G×H'×W'."""
        if self.kernel_size == (1, 1) and padding == (0, 0):
            return squares[:, :, :: self.stride[0], :: self.stride[1]]
        with torch.autocast(squares.device.type, enabled=False):
            if self.dilation == (1, 1) and (squares.is_cuda or torch.compiler.is_compiling()):
                # On the CPU the convolution is faster; compilers fuse the pooling with what is before and after it.
                means = F.avg_pool2d(squares, self.kernel_size, self.stride, padding)  # type: ignore[arg-type]
                return means * math.prod(self.kernel_size)  # ONNX has no pooling with another divisor
            box = squares.new_ones(self.groups, 1, *self.kernel_size)
            return F.conv2d(squares, box, None, self.stride, padding, self.dilation, self.groups)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x, padding = self.padded(x)
        out = F.conv2d(x, self.scaled_weight(), None, self.stride, padding, self.dilation, self.groups)  # type: ignore[arg-type]
        if self.training and torch.compiler.is_compiling() and out.is_contiguous(memory_format=torch.channels_last):
            out = _ChannelsLastGradient.apply(out)
        if not self.is_linear:
            inverse = self.inverse_norms(frozen(x), padding)
            if 1 < self.groups < self.out_channels:
                inverse = inverse.repeat_interleave(self.out_channels // self.groups, dim=1)
            out = scaled(out, inverse, self.current_b)
        return self.with_bias(out, None if self.bias is None else self.bias[:, None, None])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, B={self.b}"
