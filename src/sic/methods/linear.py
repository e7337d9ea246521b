"""Contributions of a network that is dynamic-linear: one backward pass, and the parts add up."""

from collections.abc import Callable

from torch import Tensor

from sic.bcos import explaining, linear_maps
from sic.methods.contract import Contributions


def trace(outputs: Callable[[], Tensor], bias: float = 0.0) -> Contributions:
    """Contributions N×K to `outputs()`, N×K, a forward pass of B-cos layers; `bias`: the constant in them."""
    with explaining() as traced:
        values = outputs()
        linear = linear_maps(values, traced)
    assert traced.source is not None
    maps = (linear.weights * traced.source.detach()[:, None]).sum(dim=2)
    return Contributions(maps, linear.weights, values.detach(), linear.constants + bias)
