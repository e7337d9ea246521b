"""`sic search` from the outside: what it says, writes and survives."""

import csv
import inspect
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sic.cli.search import SETTINGS
from sic.cli.train import train
from sic.training.of_method import FLAGS
from sic.training.settings import Settings
from tests.cli.conftest import Sic

pytest.importorskip("optuna")

SMALL = ["--epochs", 2, "--backbone", "resnet_tiny", "--size", 32, "--batch-size", 16, "--seed", 3]


def test_every_flag_of_train_is_a_setting_that_search_and_compare_pass_on() -> None:
    settings = {*Settings.__dataclass_fields__, "size", "fit"}
    of_the_run = {"data", "layout", "group", "roi", "out", "workers", "devices", "nodes", "resume", "json"}
    flags = set(inspect.signature(train).parameters) - of_the_run
    assert {SETTINGS.get(name, name) for name in flags} <= settings
    assert {flag.replace("-", "_"): setting for setting, flag in FLAGS.items()} == SETTINGS


@pytest.mark.slow
def test_wrong_calls_get_one_sentence_and_leave_nothing(sic: Sic, bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for flags, words in (
        (["--lr", "fast"], "--lr"),
        (["--lr", "0.1,,0.2"], "--lr"),
        (["-T", "10,-3"], "--temperature"),
        (["--recipe", "magic"], "--recipe"),
        (["--backbone", "resnet9000"], "resnet9000"),
    ):
        said = sic.refuse("search", bird_folders, "--out", out, *flags)
        assert words in said and "should not have happened" not in said
        assert not out.exists()
    assert "inside the images" in sic.refuse("search", bird_folders, "--out", bird_folders / "search")
    assert not (bird_folders / "search").exists()


@pytest.mark.slow
def test_without_optuna_it_says_how_to_get_it(sic_apart: Sic, bird_folders: Path, tmp_path: Path) -> None:
    (tmp_path / "optuna.py").write_text("raise ImportError")
    done = sic_apart("search", bird_folders, "--out", tmp_path / "out", code=1, PYTHONPATH=_path(tmp_path))
    assert "pip install 'sic[search]'" in done.stderr
    assert not (tmp_path / "out").exists()


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.slow
def test_a_search_from_end_to_end(sic: Sic, bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "a search"
    flags = ["--out", out, "--no-antialias", "--no-support-images"]
    said = sic.json("search", bird_folders, *flags, *SMALL, "--lr", "3e-3,1e-4", "-T", 1, "--workers", 2)
    assert said["score"] == "accuracy" and len(said["trials"]) == 2
    assert [(t["lr"], t["temperature"], t["state"]) for t in said["trials"]] == [
        (0.003, 1, "finished"),
        (0.0001, 1, "finished"),
    ]
    assert said["best"]["score"] == max(t["score"] for t in said["trials"])
    for trial in said["trials"]:
        model = Path(trial["model"])
        assert _figures(model)["validation"]["accuracy"] == trial["score"]
        assert not list((model / "supports").glob("*.png"))
    with Image.open(said["plot"]) as picture:
        assert min(picture.size) > 250
    rows = list(csv.DictReader(Path(said["table"]).read_text().splitlines()))
    assert [float(row["score"]) for row in rows] == [t["score"] for t in said["trials"]]
    # The command that it gives makes the winner again.
    command = shlex.split(said["command"])
    assert command[0] == "sic"
    sic(*command[1:])
    assert _figures(out / "best")["validation"]["accuracy"] == said["best"]["score"]
    # Nothing is left to do; the flags need not be said again, and others are refused.
    before = (out / "trials" / "lr0.003-T1" / "config.json").stat().st_mtime_ns
    done = sic("search", bird_folders, "--out", out)
    assert "finished" in done.stdout and "sic train" in done.stdout
    assert (out / "trials" / "lr0.003-T1" / "config.json").stat().st_mtime_ns == before
    assert "--epochs" in sic.refuse("search", bird_folders, "--out", out, "--epochs", 9)


def _figures(model: Path) -> dict[str, Any]:
    from sic.directory import read_config

    return read_config(model)[0].figures


def _started(bird_folders: Path, out: Path, epochs: int) -> "subprocess.Popen[str]":
    """A search that is in the second epoch of its first trial."""
    flags = ["--epochs", epochs, "--backbone", "resnet_tiny", "--size", 40, "--batch-size", 4, "--lr", "3e-3,0.001"]
    command = [sys.executable, "-m", "sic", "search", bird_folders, "--out", out, *flags, "-T", 1]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    history = out / "trials" / "lr0.003-T1" / "history.csv"
    deadline = time.monotonic() + 120
    while not history.is_file():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_kill_and_continue_gives_the_uninterrupted_result(
    sic: Sic, sic_apart: Sic, bird_folders: Path, tmp_path: Path
) -> None:
    process = _started(bird_folders, tmp_path / "search", 4)
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    said = sic.json("search", bird_folders, "--out", tmp_path / "search")
    assert [t["state"] for t in said["trials"]] == ["finished", "finished"]
    assert "Resuming" in (tmp_path / "search" / "trials" / "lr0.003-T1.log").read_text()
    flags = ["--epochs", 4, "--backbone", "resnet_tiny", "--size", 40, "--batch-size", 4, "--lr", 0.003, "-T", 1]
    whole = sic_apart.json("train", bird_folders, "--out", tmp_path / "whole", *flags)
    assert said["trials"][0]["score"] == whole["accuracy"]
    weights = [folder / "model.safetensors" for folder in (tmp_path / "whole", Path(said["trials"][0]["model"]))]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_search_that_continues(bird_folders: Path, tmp_path: Path, way: signal.Signals) -> None:
    from sic.training.search import Search

    process = _started(bird_folders, tmp_path / "search", 40)
    process.send_signal(way)  # to the search alone: it ends its trials
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + way
    assert "Traceback" not in said
    if way == signal.SIGINT:
        assert "same command" in said.splitlines()[-1]
    assert {trial.state for trial in Search(tmp_path / "search").trials()} == {"waiting"}
    assert not (tmp_path / "search" / "trials" / "lr0.003-T1" / "pixels.bin").exists()
