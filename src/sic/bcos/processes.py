"""Statistics of a batch that several processes share."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mean_of_all(means: Tensor, images: int) -> Tensor:
    """Means over the `images` of this process, a vector → over those of all processes that train together."""
    sums = _SumOfAll.apply(torch.cat([means, means.new_ones(1)]) * images)
    return sums[:-1] / sums[-1]


class _SumOfAll(torch.autograd.Function):
    """What one process puts in changes the outputs of all, so their gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # type: ignore[override]
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.clone()
        dist.all_reduce(total)
        return total
