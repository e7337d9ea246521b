"""Several commands at a time."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sic.cli.console import Talker
from sic.cli.entries import training_jobs
from sic.cli.jobs import Job, environment_of, run_all
from sic.data.layouts.funnybirds import write_funnybirds
from sic.errors import SicError
from tests.cli.conftest import Sic
from tests.waiting import LONG, wait_until


def job(folder: Path, name: str, *arguments: str) -> Job:
    return Job(name, lambda: arguments, folder / f"{name}.log")


@pytest.mark.slow
def test_one_that_fails_is_named_and_the_others_come_through(tmp_path: Path) -> None:
    few = ["--classes", "2", "--train", "1", "--test", "1", "--size", "32"]
    drawn = [job(tmp_path, f"drawn {i}", "data", "birds", str(tmp_path / str(i)), *few) for i in range(2)]
    failing = job(tmp_path, "failing", "data", "check", str(tmp_path / "nowhere"))
    with pytest.raises(SicError, match=r"failing failed: .*nowhere.* Run the same command again"):
        run_all([drawn[0], failing, drawn[1]], 2, Talker())
    assert all((tmp_path / str(i) / "classes.json").is_file() for i in range(2))


def test_each_worker_has_a_gpu_while_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [environment_of(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [environment_of(slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["5", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment_of(0, 10_000)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment_of(0, 1)


def test_there_is_a_job_for_every_method_and_seed(tmp_path: Path) -> None:
    special = ["bcos:lr=0.01", "sic:T=3"]
    jobs = training_jobs(["sic", "bcos:a", "bcos:b"], [0, 4], special, tmp_path, ["--epochs", "2"])
    assert [job.name for job in jobs] == ["sic, seed 0", "bcos, seed 0", "sic, seed 4", "bcos, seed 4"]
    assert jobs[3].log == tmp_path / "runs" / "bcos-seed4.log"
    own = ["--train", "bcos:a,bcos:b", "--seeds", "4", "--set", "bcos:lr=0.01"]
    assert list(jobs[3].command()) == ["compare", *own, "--epochs", "2", "--part"]


@pytest.mark.slow
def test_methods_trained_at_the_same_time_are_those_trained_one_by_one(sic: Sic, tmp_path: Path) -> None:
    birds = tmp_path / "birds"
    write_funnybirds(birds, classes=3, train=8, test=2, size=32)

    def compare(out: str, *more: object) -> dict[str, Any]:
        small = ["--epochs", 2, "--backbone", "resnet_tiny", "--size", 32, "--workers", 1, "--set", "bcos:lr=0.01"]
        flags = ["--data", birds, "--seeds", 1, "--only", "accuracy", "--out", tmp_path / out, *small]
        found: dict[str, Any] = sic.json("compare", "--train", "sic,bcos", *flags, *more, OMP_NUM_THREADS="1")
        return found

    together = compare("together", "--jobs", 2)
    assert together["methods"] == compare("alone")["methods"]
    assert together["seeds"] == {"sic": [1], "bcos": [1]}
    assert all((tmp_path / "together" / "runs" / f"{name}-seed1.log").is_file() for name in ("sic", "bcos"))
    settings = json.loads((tmp_path / "together" / "runs" / "bcos-seed1" / "run.json").read_text())["settings"]
    assert settings["lr"] == 0.01 and settings["seed"] == 1 and settings["epochs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("how", "in_script"), [("SIGINT", False), ("SIGTERM", False), ("SIGTERM", True)])
def test_what_ends_it_ends_all_of_them(how: str, in_script: bool, tmp_path: Path) -> None:
    script = f"""
import signal, sys
from pathlib import Path
from sic.cli import jobs
from sic.cli.console import Talker
{"signal.signal(signal.SIGINT, signal.SIG_IGN)" if in_script else ""}  # as behind `&`
jobs.PROGRAM = (sys.executable, "-S", "-c", "import time; print('here', flush=True); time.sleep(3600)")
logs = [Path({str(tmp_path)!r}, f"{{i}}.log") for i in range(2)]
jobs.run_all([jobs.Job(log.name, lambda log=log: [str(log)], log) for log in logs], 2, Talker())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    wait_until(lambda: all("here" in _text(tmp_path / f"{i}.log") for i in range(2)), process)
    process.send_signal(signal.Signals[how])
    # SIGINT: as Python ends where nobody catches its KeyboardInterrupt.
    assert process.wait(LONG) == (-signal.SIGINT if how == "SIGINT" else 128 + signal.SIGTERM)
    assert not any(str(tmp_path) in _text(file) for file in Path("/proc").glob("[0-9]*/cmdline"))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it is not there yet, or no longer
        return ""
