"""How Lightning trains one model in several processes, and what happens when one of them is gone."""

from collections.abc import Sequence
from typing import Any

import lightning
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from sic.errors import SicError
from sic.machines import Machines
from sic.training.base import Training
from sic.training.batches import TrainingBatches, Views
from sic.training.ranks import Share


class LostProcess(SicError):
    """Another process has ended before its time."""

    def __init__(self) -> None:
        super().__init__(
            "A process of this run has ended, and the others with it; the same command with --resume continues after "
            "the last finished epoch."
        )


def lost(error: RuntimeError) -> bool:
    """Whether an error says that another process does not answer."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "closed by peer"))


class SharingOut(lightning.Callback):
    """Tells data sets, once that is known, which part of them is for this process."""

    def __init__(self, parts: Sequence[TrainingBatches | Views]) -> None:
        self.parts = parts

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        for part in self.parts:
            smallest = part.batch_size if isinstance(part, TrainingBatches) else len(part.pixels)
            if smallest < trainer.world_size:
                raise SicError(f"{trainer.world_size} processes cannot share {smallest} images; use fewer --devices.")
            part.share = Share(trainer.global_rank, trainer.world_size)


def strategy(module: Training, machines: Machines, gpu: bool) -> Any:
    """Lightning's, for so many processes."""
    if machines.processes == 1:
        return "auto"
    if not module.shared:
        raise SicError(f"--method {module.settings.method} trains on one device; leave --devices and --nodes out.")
    conventional = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in module.modules())
    if conventional and not gpu:
        raise SicError("A conventional network's batch norms need GPUs to be shared; leave --devices and --nodes out.")
    return DDPStrategy(find_unused_parameters=module.settings.fading > 0)  # biases that have faded are unused
