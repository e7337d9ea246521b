"""Contributions of a network that is dynamic-linear: one backward pass, and the parts add up."""

from collections.abc import Callable

import torch
from torch import Tensor

from sic.bcos import explaining, linear_maps
from sic.methods.contract import Contributions


class Traced:
    """One forward pass of B-cos layers, N×d features, from which any number of outputs can be traced back.

    Holds what backward passes need: let go of it when the last output is explained.
    """

    def __init__(self, features: Callable[[], Tensor]) -> None:
        with explaining() as self._trace:
            self._features = features()
        self.features = self._features.detach()

    def contributions(
        self, outputs: Callable[[Tensor], Tensor], bias: float = 0.0, weights: bool = True
    ) -> Contributions:
        """Contributions N×K to `outputs(features)`, N×K; `bias`: the constant in them.

        A backward pass through the network for each output, but never more than there are features: outputs are linear
        in these, so the maps of more outputs are sums of the features' own.
        """
        with explaining():
            values = outputs(self._features)
            if values.shape[1] <= self._features.shape[1]:
                found = linear_maps(values, self._trace, retain=True, weights=weights)
                maps, kept, constants = found.maps, found.weights, found.constants
            else:
                shares = torch.stack(
                    [torch.autograd.grad(each.sum(), self._features, retain_graph=True)[0] for each in values.T], dim=1
                )
                found = linear_maps(self._features, self._trace, retain=True, weights=weights)
                maps = torch.einsum("nkd,ndhw->nkhw", shares, found.maps)
                kept = torch.einsum("nkd,ndchw->nkchw", shares, found.weights)
                constants = torch.einsum("nkd,nd->nk", shares, found.constants)
        return Contributions(maps, kept, values.detach(), constants + bias)
