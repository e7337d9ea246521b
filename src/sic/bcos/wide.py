"""Arithmetic that half precision is too coarse for."""

import torch
from torch import Tensor


def wide_type(x: Tensor) -> torch.dtype:
    """What norms and variances of `x` are computed in."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def widened(x: Tensor) -> Tensor:
    return x.to(wide_type(x))


def sum_of_squares(x: Tensor, dims: int | tuple[int, ...], *, keepdim: bool = False) -> Tensor:
    """Over `dims`, in `wide_type`."""
    if torch.compiler.is_compiling():  # which fuses all of this
        return widened(x).square().sum(dims, keepdim=keepdim)
    return torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim, dtype=wide_type(x)).square()  # without a wide copy
