"""Several processes that train one model together: what each of them does, and putting that together."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sic.bcos.processes import processes


@dataclass(frozen=True)
class Share:
    """The part of a whole that is this process's; parts differ by one at most, and are in order."""

    rank: int = 0
    processes: int = 1

    def of(self, total: int) -> slice:
        """
        >>> [Share(rank, 3).of(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(total * self.rank // self.processes, total * (self.rank + 1) // self.processes)


def gathered(part: Tensor, total: int | None = None) -> Tensor:
    """The whole of which every process has its share; `total`: its length, if it is known without asking the others.

    Every process must go on to the same loss of the whole: gradients are then right once they are averaged over
    processes, for what comes before (each has its share of them) and for what follows (all have the same).
    """
    if processes() == 1:
        return part
    if total is None:
        count = torch.tensor(len(part), device=part.device)
        dist.all_reduce(count)
        total = int(count)
    return _Gathered.apply(part, total)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, total: int) -> Tensor:  # type: ignore[override]
        number = processes()
        shares = [Share(rank, number).of(total) for rank in range(number)]
        lengths = [share.stop - share.start for share in shares]
        ctx.share, ctx.number = shares[dist.get_rank()], number
        padded = F.pad(part, [0, 0] * (part.dim() - 1) + [0, max(lengths) - len(part)])
        parts = [torch.empty_like(padded) for _ in range(number)]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        # The others have the same gradient, so there is nothing to be asked. Averaging will divide by their number.
        return gradient[ctx.share] * ctx.number, None
