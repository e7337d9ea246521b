"""Several commands of `sic` at a time, each with a log, on a GPU or on its share of the cores."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from sic.cli.console import Talker
from sic.errors import SicError

LOOK = 0.5
"""Seconds between two looks at what runs."""


@dataclass(frozen=True)
class Job:
    name: str
    arguments: list[str]
    """Of `sic`."""
    log: Path


@dataclass
class Running:
    job: Job
    slot: int
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]


def leave_when_told() -> None:
    """As Ctrl-C does: processes that this one has started end with it, also when a scheduler ends it."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def run_jobs(jobs: Sequence[Job], at_once: int, talker: Talker) -> None:
    """Run all of them; one that fails is named when the others have ended. What ends this ends them, too."""
    from sic.training.worker import reason_of, stop

    leave_when_told()
    waiting, running, failed = list(jobs), list[Running](), list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                slot = min(set(range(at_once)) - {one.slot for one in running})
                running.append(_start(waiting.pop(0), slot, at_once))
                talker.say(f"{running[-1].job.name} … (log: {running[-1].job.log})")
            time.sleep(LOOK)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                one.log.close()
                if one.process.returncode:
                    said = one.job.log.read_text(encoding="utf-8", errors="replace")
                    failed.append(f"{one.job.name} failed: {reason_of(said, one.process.returncode)}")
                    talker.warn(failed[-1])
                talker.advance("runs", len(jobs) - len(waiting) - len(running), len(jobs))
    finally:
        stop([one.process for one in running])
        for one in running:
            one.log.close()
    if failed:
        others = len(failed) - 1
        more = f" So did {others} other{'s' if others > 1 else ''}." if others else ""
        raise SicError(f"{failed[0]}{more} The same command continues where this one ended.")


def _start(job: Job, slot: int, at_once: int) -> Running:
    from sic.training.worker import environment

    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = job.log.open("wb")
    command = [sys.executable, "-m", "sic", *job.arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(slot, at_once)
    )
    return Running(job, slot, process, log)
