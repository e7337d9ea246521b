"""Two processes give what one gives."""

import csv
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

import sic
import sic.data
from sic import training
from sic.bcos import BatchNormUncentred2d
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.data.transforms import TrainingTransform
from sic.machines import Machines
from sic.settings import Settings
from sic.training.batches import Share, TrainingBatches, Views, gathered, support_candidates
from sic.training.trainer import fits_on_gpu
from tests.models import small_settings
from tests.training.test_batches import SAMPLES
from tests.waiting import LONG, wait_until

PIXELS = [np.random.default_rng(i).integers(0, 256, (6 + i % 3, 8, 3), np.uint8) for i in range(45)]


@pytest.mark.parametrize(
    ("change", "devices", "images", "expected"),
    [
        ({}, 1, 1000, True),
        ({}, 1, 1001, False),
        ({"size": 64}, 1, 1000, False),
        ({}, 2, 1000, False),
        ({"augmentation": "photo"}, 1, 1000, False),
    ],
)
def test_a_gpu_holds_the_images_that_need_a_tenth_of_its_free_memory(
    change: dict[str, Any], devices: int, images: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10 * 1000 * 3 * 32**2
    settings, machines = small_settings(**{"augmentation": "affine", **change}), Machines(devices)
    assert not fits_on_gpu(1, settings, machines)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 10 * free))
    assert fits_on_gpu(images, settings, machines) == expected


def batches(augmentation: str, share: Share) -> TrainingBatches:
    preprocessing = Preprocessing(4, 6)
    made = TrainingBatches(
        PIXELS, targets(SAMPLES, 3), support_candidates(SAMPLES), preprocessing,
        TrainingTransform(augmentation, preprocessing), 11, 3, 0,  # type: ignore[arg-type]
    )  # fmt: skip
    made.share = share
    return made


@pytest.mark.parametrize("augmentation", ["none", "affine", "photo", "xray"])
@pytest.mark.parametrize("processes", [2, 3])
def test_shares_of_a_batch_are_the_batch(augmentation: str, processes: int) -> None:
    whole = batches(augmentation, Share())[1, 2]
    parts = [batches(augmentation, Share(rank, processes))[1, 2] for rank in range(processes)]
    assert torch.equal(torch.cat([part.queries for part in parts]), whole.queries)
    assert torch.equal(torch.cat([part.supports for part in parts]), whole.supports)
    for part in parts:
        for name in ("rows", "targets", "support_targets", "support_classes"):
            assert torch.equal(getattr(part, name), getattr(whole, name))


def test_shares_of_views_are_the_views() -> None:
    views = [Views(PIXELS, targets(SAMPLES, 3), Preprocessing(4, 6)) for _ in range(5)]
    for rank in range(4):
        views[rank].share = Share(rank, 4)
    shared = [views[rank][i][0] for rank in range(4) for i in range(len(views[rank]))]
    assert torch.equal(torch.stack(shared), torch.stack([views[4][i][0] for i in range(45)]))


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"RANK": "5", "LOCAL_RANK": "1"}, 5), ({"SLURM_PROCID": "2"}, 2), ({"NODE_RANK": "1"}, 4)],
)
def test_who_a_process_is(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Machines(4, 2).rank == rank and Machines(4, 2).first == (rank == 0)
    assert Machines().first  # alone it is the first, whatever the number of its task


def network() -> nn.Module:
    torch.manual_seed(0)
    norm = BatchNormUncentred2d(4, bias=True)
    norm.progress = 0.5
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Conv2d(4, 4, 3), BatchNormUncentred2d(4)).double()


def images() -> Tensor:
    return torch.rand(7, 3, 6, 6, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def loss_of(features: Tensor) -> Tensor:
    """One in which every image has to do with every other."""
    pooled = features.mean(dim=(2, 3))
    return (pooled @ pooled.T).square().sum()


def process(rank: int, file: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = network()
    ready = nn.parallel.DistributedDataParallel(model)
    loss = loss_of(gathered(ready(images()[Share(rank, 2).of(7)]), 7))
    loss.backward()  # type: ignore[no-untyped-call]
    state = {name: parameter.grad for name, parameter in model.named_parameters()} | dict(model.named_buffers())
    torch.save({**state, "loss": loss.detach(), "asked": gathered(torch.arange(3 + rank))}, f"{out}{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    # Forked, because what they need is loaded here.
    multiprocessing.start_processes(
        process, (str(tmp_path / "meet"), str(tmp_path / "state")), nprocs=2, start_method="fork"
    )
    model = network()
    loss = loss_of(model(images()))
    loss.backward()  # type: ignore[no-untyped-call]
    expected = {name: parameter.grad for name, parameter in model.named_parameters()} | dict(model.named_buffers())
    for rank in range(2):
        found = torch.load(tmp_path / f"state{rank}", weights_only=True)
        assert found.pop("asked").tolist() == [0, 1, 2, 0, 1, 2, 3]
        assert torch.allclose(found.pop("loss"), loss)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert value is not None and torch.allclose(found[name], value, rtol=1e-9, atol=1e-12), name


def command(images: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "sic", "train", str(images), "--out", str(out), "--workers", "0", *more]


SMALL = ("--backbone", "resnet_tiny", "--size", "32", "--batch-size", "9", "--lr", "1e-3")


def assert_alike(one: Path, two: Path) -> None:
    """The same training, but for rounding."""
    states = [sic.load(folder).classifier.encoder.state_dict() for folder in (one, two)]
    assert states[0].keys() == states[1].keys()
    apart = torch.cat([(states[1][name] - value).abs().flatten() for name, value in states[0].items()])
    # Adam takes a whole step also where a gradient is little but rounding: a few weights may be a step apart.
    assert (apart < 1e-5).float().mean() > 0.999 and apart.max() < 2e-4
    rows = [next(csv.DictReader((folder / "history.csv").open())) for folder in (one, two)]
    assert float(rows[0]["train_loss"]) == pytest.approx(float(rows[1]["train_loss"]), rel=1e-4)
    assert not list(two.glob("pixels*"))


@pytest.mark.slow
def test_two_processes_train_what_one_trains(bird_folders: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(bird_folders, tmp_path / "2", *SMALL, "--epochs", "1", "--devices", "2"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("Next: sic explain") == done.stderr.count("class folders") == 1  # only one of them talks
    settings = training.recorded_settings(tmp_path / "2", {})
    assert settings.support_source == "exact"
    training.fit(sic.data.open(bird_folders), settings, tmp_path / "1", workers=0)
    assert_alike(tmp_path / "1", tmp_path / "2")


def fit_as_one_of_two(rank: int, images: Path, settings: Settings, out: Path, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    training.fit(sic.data.open(images), settings, out, workers=0, machines=Machines(2))


@pytest.mark.slow
def test_two_processes_share_a_bank(bird_folders: Path, tmp_path: Path) -> None:
    said = {"backbone": "resnet_tiny", "size": 32, "batch_size": 9, "lr": 1e-3, "epochs": 1, "support_source": "bank"}
    data = sic.data.open(bird_folders)
    settings = training.choose(data, said)[0]
    with socket.create_server(("localhost", 0)) as found:
        port = found.getsockname()[1]
    multiprocessing.start_processes(
        fit_as_one_of_two, (bird_folders, settings, tmp_path / "2", port), nprocs=2, start_method="fork"
    )
    training.fit(data, settings, tmp_path / "1", workers=0)
    assert_alike(tmp_path / "1", tmp_path / "2")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for the processes where Linux lists them")
def test_one_process_lost_is_one_sentence_and_resumes(bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    parts = subprocess.Popen(
        command(bird_folders, out, *SMALL, "--epochs", "40", "--devices", "2"), stderr=subprocess.PIPE, text=True
    )
    checkpoint = out / "checkpoints" / "last.ckpt"
    wait_until(checkpoint.is_file, parts)
    second = max(children(parts.pid))
    assert b"RANK=1\0" in Path(f"/proc/{second}/environ").read_bytes()
    os.kill(second, signal.SIGKILL)
    said = parts.communicate(timeout=LONG)[1]
    assert parts.returncode == 1 and "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("sic:")] == [said.splitlines()[-1]]
    assert "--resume" in said.splitlines()[-1]
    last = torch.load(checkpoint, weights_only=True)["epoch"]

    class Interrupting(training.Silent):
        def advance(self, task: str, done: int, total: int, note: str = "") -> None:
            if task == "training" and not note.startswith(f"epoch {last + 2}"):  # the first of those that are left
                raise KeyboardInterrupt

    settings = training.recorded_settings(out, {})
    with pytest.raises(KeyboardInterrupt):
        training.fit(sic.data.open(bird_folders), settings, out, resume=True, workers=0, reporter=Interrupting())
    assert torch.load(checkpoint, weights_only=True)["epoch"] == last + 1
