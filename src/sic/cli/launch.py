"""Running `sic train` in one process per device of this machine, unless torchrun or SLURM has started them."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sic.errors import SicError
from sic.machines import Machines

RUN_ID = "sic"
"""By which a process knows that we started it."""
FAILED = 75
"""Exit code of a process that leaves it to another to say why."""


def started() -> bool:
    """Whether torchrun, SLURM or Lightning has started this process as one of several."""
    return "LOCAL_RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", 1)) > 1


def machines_of(devices: int | None, nodes: int | None) -> Machines:
    """As many as were said, or else as torchrun says."""
    return Machines(
        devices or int(os.environ.get("LOCAL_WORLD_SIZE", 1)), nodes or int(os.environ.get("GROUP_WORLD_SIZE", 1))
    )


@contextmanager
def one_voice(machines: Machines) -> Iterator[None]:
    """What goes wrong for all processes alike is said once: by the first of them, or by `launch`."""
    try:
        yield
    except (SicError, KeyboardInterrupt) as error:
        from sic.training.trainer import LostProcess

        launched = os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID
        if launched and isinstance(error, LostProcess | KeyboardInterrupt):
            raise SystemExit(FAILED) from None
        if not machines.first:
            time.sleep(5)  # so that nobody ends the first one before it has spoken
            raise SystemExit(FAILED) from None
        raise


def launch(machines: Machines, arguments: Sequence[str]) -> int:
    """Run `sic` with these arguments once per device; the exit code when all have ended."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if machines.nodes > 1:
        raise SicError(
            "--nodes needs a launcher on every machine: `srun sic train …` in a SLURM job, or `torchrun --nnodes "
            f"{machines.nodes} --nproc-per-node {machines.devices} --rdzv-endpoint HOST:PORT -m sic train …`."
        )
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        1, 1, machines.devices, run_id=RUN_ID, rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
        max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "sic", *arguments)
    except ChildFailedError as error:
        first = error.failures.get(0)
        if first is not None and first.exitcode > 0 and first.exitcode != FAILED:
            return first.exitcode  # it has said why
        from sic.training.trainer import LostProcess

        raise LostProcess from None
    except SignalException as signal:
        return 128 + signal.sigval
    return 0
