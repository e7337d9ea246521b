"""Where a model is computed: cores, device, arithmetic; the machines that train it, and which of their processes
this is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def best_device() -> str:
    """Where to compute if nobody says where."""
    import torch  # not above: `sic --help` does without

    return "cuda" if torch.cuda.is_available() else "cpu"


def exact_arithmetic() -> None:
    """Contributions add up only as exactly as the arithmetic is: no TF32 on GPUs."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def fast_products() -> Iterator[None]:
    """Matrix products on a GPU in TF32, for training steps; nothing here may end up in an explanation."""
    import torch

    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass(frozen=True)
class Machines:
    """How many devices on how many machines, one process each."""

    devices: int = 1
    nodes: int = 1

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    @property
    def rank(self) -> int:
        """The number of this process among all, known from its environment before they have found each other."""
        if self.processes == 1:
            return 0
        for name in ("RANK", "SLURM_PROCID"):  # torchrun's and SLURM's
            if name in os.environ:
                return int(os.environ[name])
        return int(os.environ.get("NODE_RANK", 0)) * self.devices + int(os.environ.get("LOCAL_RANK", 0))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0
