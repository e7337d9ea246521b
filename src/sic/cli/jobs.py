"""Processes of `sic`: several commands at a time, each with a log; or one training in a process per device."""

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
"""Seconds between two looks at what runs."""
PROGRAM = (sys.executable, "-m", "sic")
PATIENCE = 20.0
"""Seconds that a process has to clean up when it is told to end."""
RUN_ID = "sic"
"""By which a process knows that we started it."""
FAILED = 75
"""Exit code of a process that leaves it to another to say why."""


@dataclass(frozen=True)
class Job:
    """A command. Its log is locked while it runs: of several processes that share the work, one runs it."""

    name: str
    command: Callable[[], Sequence[str]]
    """The arguments of `sic`, asked for when it starts."""
    log: Path
    finished: Callable[[], bool] = lambda: False
    """Whether there is nothing to do, because another process has done it meanwhile."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    job: Job
    reason: str | None
    """Why it failed; None: it did not."""
    seconds: float


@dataclass
class _Running:
    job: Job
    slot: int
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    start: int
    """Where in the log this process began."""
    began: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        with self.job.log.open("rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace")


def leave_when_told() -> None:
    """Handle SIGTERM like Ctrl-C: processes that this one has started end with it."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def run_jobs(
    jobs: Sequence[Job], at_once: int, talker: Talker, watch: Callable[[Job, str], str | None] = lambda job, said: None
) -> Iterator[Ended]:
    """Run jobs, `at_once` at a time, and yield each when it has ended; wait for those that other processes run.

    `watch(job, said)` sees a job's output now and then; the sentence that it returns ends the job as failed. Closing
    the generator, and whatever ends this process but SIGKILL, ends the jobs that run.
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
                talker.say(f"Waiting for {elsewhere} that another process runs.")
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
    """Run all of them; one that fails is named when the others have ended."""
    failed = []
    for ended in run_jobs(jobs, at_once, talker):
        if ended.reason is not None:
            failed.append(f"{ended.job.name} failed: {ended.reason}")
            talker.warn(failed[-1])
    if failed:
        others = len(failed) - 1
        more = f" So did {others} other{'s' if others > 1 else ''}." if others else ""
        raise SicError(f"{failed[0]}{more} The same command continues where this one ended.")


def locked(log: Path) -> IO[bytes] | None:
    """The log, open to append and locked; None if another process has locked it.

    Processes that inherit it hold the lock, too: a job that outlives its starter is not started a second time.
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
    said = one.said()  # after that: its last words are there
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
    """As Ctrl-C would, so that they can clean up; all of them may be continued."""
    # A script's `… &` ignores Ctrl-C, and so does all that it starts.
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
    """The last sentence of a process that failed."""
    if code is not None and code < 0:
        return f"Its process was killed (signal {-code}); if it ran out of memory, run fewer at a time."
    sentences = [line.removeprefix("sic: ") for line in said.splitlines() if line.startswith("sic: ")]
    return sentences[-1] if sentences else f"It ended with code {code}; its log says more."


def environment_of(slot: int, at_once: int) -> dict[str, str]:
    """Of the process in one of `at_once` slots: a GPU of its own while there are enough, else its share of cores."""
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
