"""Run several commands in parallel, each with a log, or one training with a process per device."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from sic.cli.console import Talker
from sic.errors import SicError
from sic.machines import Machines, cores

LOOK = 0.5
"""Seconds between two looks at the running processes."""
PROGRAM = (sys.executable, "-m", "sic")
PATIENCE = 20.0
"""Seconds that a process gets to clean up before it is killed."""
RUN_ID = "sic"
"""The id that tells a process that `launch` started it."""
FAILED = 75
"""Exit code of a process whose error another process reports."""


@dataclass(frozen=True)
class Job:
    """A command. Its log is locked while it runs, so that only one of several processes runs it."""

    name: str
    command: Callable[[], Sequence[str]]
    """Returns the arguments of `sic` when the job starts."""
    log: Path
    finished: Callable[[], bool] = lambda: False
    """Whether another process has finished it meanwhile."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    job: Job
    reason: str | None
    """Why it failed; None if it did not."""
    seconds: float


@dataclass
class _Running:
    job: Job
    slot: int
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    start: int
    """The position in the log at which this process began."""
    began: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        with self.job.log.open("rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace")


def leave_when_told() -> None:
    """Handle SIGTERM like Ctrl-C, so that child processes end, too."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def run_jobs(
    jobs: Sequence[Job], at_once: int, talker: Talker, watch: Callable[[Job, str], str | None] = lambda job, said: None
) -> Iterator[Ended]:
    """Run jobs, `at_once` at a time, and yield each when it has ended; wait for jobs that other processes run.

    `watch(job, output)` is called from time to time; a sentence that it returns ends the job as failed. Closing the
    generator ends the running jobs, and so does every end of this process except SIGKILL.
    """
    leave_when_told()
    waiting, running = list(jobs), list[_Running]()
    told = False
    try:
        while waiting or running:
            waiting = [job for job in waiting if not job.finished()]
            elsewhere = 0
            for job in list(waiting):
                if len(running) == at_once:
                    break
                slot = min(set(range(at_once)) - {one.slot for one in running})
                started = _start(job, slot, at_once)
                if started is None:
                    elsewhere += 1
                    continue
                waiting.remove(job)
                running.append(started)
                talker.say(f"{job.name} … (log: {job.log})")
            if elsewhere and not running and not told:
                talker.say(f"Waiting for {elsewhere} jobs of another process.")
                told = True
            if waiting or running:
                time.sleep(LOOK)
            for one in list(running):
                ended = _look(one, watch)
                if ended is not None:
                    running.remove(one)
                    talker.advance("runs", len(jobs) - len(waiting) - len(running), len(jobs))
                    yield ended
    finally:
        _stop([one.process for one in running])
        for one in running:
            one.log.close()


def run_all(jobs: Sequence[Job], at_once: int, talker: Talker) -> None:
    """Run all jobs; raise an error for those that failed when all have ended."""
    failed = []
    for ended in run_jobs(jobs, at_once, talker):
        if ended.reason is not None:
            failed.append(f"{ended.job.name} failed: {ended.reason}")
            talker.warn(failed[-1])
    if failed:
        others = len(failed) - 1
        more = f" So did {others} other{'s' if others > 1 else ''}." if others else ""
        raise SicError(f"{failed[0]}{more} Run the same command again to continue.")


def locked(log: Path) -> IO[bytes] | None:
    """The log, open to append and locked; None if another process has locked it.

    Processes that inherit the file hold the lock, too, so a job that outlives its parent is not started again.
    """
    from filelock import lock_descriptor

    log.parent.mkdir(parents=True, exist_ok=True)
    file = log.open("ab")
    if lock_descriptor(file.fileno(), blocking=False):
        return file
    file.close()
    return None


def _start(job: Job, slot: int, at_once: int) -> _Running | None:
    """None if another process runs it."""
    log = locked(job.log)
    if log is None:
        return None
    try:
        command = [*PROGRAM, *job.command()]
        environment = environment_of(slot, at_once)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    except BaseException:
        log.close()
        raise
    return _Running(job, slot, process, log, log.tell())


def _look(one: _Running, watch: Callable[[Job, str], str | None]) -> Ended | None:
    """None while it runs."""
    code = one.process.poll()
    said = one.said()  # after `poll`, so that the output is complete
    reason = watch(one.job, said)
    if code is None and reason is None:
        return None
    if code is None:
        _stop([one.process])
    one.log.close()
    if reason is None and code != 0:
        reason = _reason(said, code)
    return Ended(one.job, reason, round(time.monotonic() - one.began, 1))


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Interrupt processes as Ctrl-C does, so that they can clean up and be continued."""
    # Background processes of a script (`… &`) and their children ignore SIGINT.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for process in processes:
        process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reason(said: str, code: int | None) -> str:
    """The last error message of a process that failed."""
    if code is not None and code < 0:
        return f"Its process was killed (signal {-code}); if it ran out of memory, run fewer at a time."
    sentences = [line.removeprefix("sic: ") for line in said.splitlines() if line.startswith("sic: ")]
    return sentences[-1] if sentences else f"It ended with code {code}; its log says more."


def environment_of(slot: int, at_once: int) -> dict[str, str]:
    """The environment of the process in a slot: one of the GPUs, or without any its share of the cores."""
    import torch

    content = dict(os.environ)
    number = torch.cuda.device_count()
    if number > 0:
        visible = content.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",")[:number] if visible else [str(gpu) for gpu in range(number)]
        content["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    elif at_once > 1:
        content.setdefault("OMP_NUM_THREADS", str(max(1, cores() // at_once)))
    return content


def started() -> bool:
    """Whether torchrun, SLURM or Lightning has started this process as one of several."""
    return "LOCAL_RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", 1)) > 1


def machines_of(devices: int | None, nodes: int | None) -> Machines:
    """The given numbers of devices and nodes; by default those of torchrun."""
    return Machines(
        devices or int(os.environ.get("LOCAL_WORLD_SIZE", 1)), nodes or int(os.environ.get("GROUP_WORLD_SIZE", 1))
    )


@contextmanager
def one_voice(machines: Machines) -> Iterator[None]:
    """Report an error of all processes once, by the first of them or by `launch`."""
    try:
        yield
    except (SicError, KeyboardInterrupt) as error:
        from sic.training.trainer import LostProcess

        launched = os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID
        if launched and isinstance(error, LostProcess | KeyboardInterrupt):
            raise SystemExit(FAILED) from None
        if not machines.first:
            time.sleep(5)  # the launcher must not end the first process before it has reported the error
            raise SystemExit(FAILED) from None
        raise


def launch(machines: Machines, arguments: Sequence[str]) -> int:
    """Run `sic` with these arguments once per device; returns the exit code."""
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
            return first.exitcode  # it has reported the error
        from sic.training.trainer import LostProcess

        raise LostProcess from None
    except SignalException as signal:
        return 128 + signal.sigval
    return 0
