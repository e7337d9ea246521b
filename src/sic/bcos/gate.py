"""Activations and gates as dynamic scales: `m(x) = s(x) · x`, with `s` constant while explaining."""

import torch
from torch import Tensor, nn

from sic.bcos.explanation import is_explaining


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
