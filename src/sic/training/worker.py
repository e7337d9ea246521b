"""Processes that train: a trial alone with its log, a GPU or a share of the cores for each, ended as Ctrl-C would."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from sic.training.grid import Point

LOST = re.compile(r"The fit has collapsed: .*?(?= It will hardly recover|$)|The (loss|latents) became NaN.*", re.M)
"""What a fit says that would end in the same way every time."""


@dataclass
class TrialProcess:
    """A process at work on a trial. `log` is open and locked until its end is in the books."""

    number: int
    point: Point
    folder: Path
    slot: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    start: int
    """Where in the log this process began."""
    began: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        with open(self.log.name, "rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace")


def locked_log(folder: Path) -> IO[bytes] | None:
    """The log beside a trial's folder, open and ours alone; None if a process that trains there has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log").open("ab")
    if lock_descriptor(log.fileno(), blocking=False):  # the process that writes to it inherits the lock
        return log
    log.close()
    return None


def stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """As Ctrl-C would, so that they can clean up; all of them may be continued."""
    # A script's `… &` ignores Ctrl-C, and so does all that it starts.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for process in processes:
        process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
    deadline = time.monotonic() + 20
    for process in processes:
        try:
            process.wait(timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def reason_of(said: str, code: int | None) -> str:
    """The last sentence of a process that failed."""
    if code is not None and code < 0:
        return f"Its process was killed (signal {-code}); if that was for want of memory, run fewer at a time."
    sentences = [line.removeprefix("sic: ") for line in said.splitlines() if line.startswith("sic: ")]
    return sentences[-1] if sentences else f"It ended with code {code}; its log says more."


def environment(slot: int, workers: int) -> dict[str, str]:
    """Of the process in one of `workers` slots: a GPU of its own while there are enough, else its share of cores."""
    import torch

    content = dict(os.environ)
    number = torch.cuda.device_count()
    if number > 0:
        visible = content.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",")[:number] if visible else [str(gpu) for gpu in range(number)]
        content["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    elif workers > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        content.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
    return content
