"""Explanation mode: inside it every input-dependent scale is a constant, so that one backward pass yields `W(x)`.

The mode is a context variable: no other thread sees it, nothing has to be switched back, and a model carries no trace
of having been explained. Compiled networks explain themselves uncompiled: the compiler need not know of the mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Trace:
    """The record of a forward pass in explanation mode, for the backward pass."""

    source: Tensor | None = None
    """The encoded input `[x, 1 - x]`, N×6×H×W: what contributions are traced back to."""
    constants: list[Tensor] = field(default_factory=list)
    """Input-independent terms, batch first: each gets a share of its own."""
    feature_maps: Tensor | None = None
    """The last feature maps, N×F×h×w, of a network that has any and does not pool them itself."""


_trace: ContextVar[Trace | None] = ContextVar("sic_explanation_trace", default=None)


@contextmanager
def gradients() -> Iterator[None]:
    """Turn on gradients and full precision for this context, whatever the caller has set."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextmanager
def explaining() -> Iterator[Trace]:
    """Turn on explanation mode for this context, with gradients and full precision."""
    token = _trace.set(trace := Trace())
    try:
        with gradients(), torch.compiler.set_stance("force_eager"):
            yield trace
    finally:
        _trace.reset(token)


def _current() -> Trace | None:
    """The trace to write to, if there is one; what is being compiled is not being explained."""
    return None if torch.compiler.is_compiling() else _trace.get()


def is_explaining() -> bool:
    return _current() is not None


def frozen(scale: Tensor) -> Tensor:
    """An input-dependent scale: differentiable in training, a constant while explaining."""
    return scale.detach() if is_explaining() else scale


def source(encoded: Tensor) -> Tensor:
    """Mark the encoded input; while explaining it becomes the leaf that contributions are traced to."""
    trace = _current()
    if trace is None:
        return encoded
    if trace.source is not None:
        raise RuntimeError("one explanation context explains one forward pass; open another for the next")
    trace.source = encoded.clone().detach().requires_grad_()
    return trace.source


def constant(term: Tensor, batch: int) -> Tensor:
    """An input-independent term (a positional code, a bias) for `batch` inputs: shape 1×… in, batch×… out."""
    term = term.expand(batch, *term.shape[1:])
    trace = _current()
    if trace is None:
        return term
    leaf = term.clone().detach().requires_grad_()
    trace.constants.append(leaf)
    return leaf


def keep_feature_maps(maps: Tensor) -> None:
    """Record the last feature maps while explaining."""
    trace = _current()
    if trace is not None:
        trace.feature_maps = maps.detach()


def constant_parameter(value: Tensor) -> Tensor:
    """A parameter as an input-independent term; while explaining one copy for each input."""
    trace = _current()
    if trace is None or trace.source is None:
        return value
    while value.dim() < 3 or len(value) != 1:  # some leave the batch's dimension out
        value = value[None]
    return constant(value, trace.source.shape[0])


@dataclass
class LinearMaps:
    """Dynamic-linear summaries of K outputs for N inputs: `outputs = Σ weights ⊙ source + constants`."""

    weights: Tensor
    """N×K×6×H×W, `W(x)`; N×K×0×H×W where they were not wanted."""
    maps: Tensor
    """N×K×H×W, `φ = Σ_channels W ⊙ [x, 1 - x]`."""
    constants: Tensor
    """N×K, the share of the input-independent terms."""


def linear_maps(outputs: Tensor, trace: Trace, *, retain: bool = False, weights: bool = True) -> LinearMaps:
    """`W(x)` of every column of `outputs` (N×K), computed in explanation mode: a backward pass for each.

    `retain`: other outputs of the same forward pass will be asked for; otherwise the graph is freed. Without
    `weights` only what they add up to is kept, a sixth of the memory.
    """
    if trace.source is None:
        raise RuntimeError("nothing was encoded in this explanation context")
    leaves = [trace.source, *trace.constants]
    encoded = trace.source.detach()
    kept, maps, constants = [], [], []
    columns = outputs.shape[1]
    for k in range(columns):
        grads = torch.autograd.grad(
            outputs[:, k].sum(),
            leaves,
            retain_graph=retain or k < columns - 1,
            allow_unused=True,
            materialize_grads=True,
        )
        maps.append((grads[0] * encoded).sum(dim=1))
        kept.append(grads[0] if weights else grads[0].new_zeros(encoded.shape[0], 0, *encoded.shape[2:]))
        share = outputs.new_zeros(outputs.shape[0])
        for leaf, grad in zip(trace.constants, grads[1:], strict=True):
            # Some layers see several rows for each input (windows of an image), one input's after the other's.
            share = share + (leaf.detach() * grad).reshape(share.shape[0], -1).sum(1)
        constants.append(share)
    return LinearMaps(torch.stack(kept, 1), torch.stack(maps, 1), torch.stack(constants, 1))


def encode_colours(images: Tensor) -> Tensor:
    """RGB in [0, 1], N×3×H×W → N×6×H×W; the point that explanations trace back to."""
    return source(torch.cat([images, 1 - images], dim=1))
