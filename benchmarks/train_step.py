"""What does a training step of SIC cost beside one of a plain network? Both in one run, on the same machine.

    python benchmarks/train_step.py [--backbones resnet50,densenet121,vitc_b] [--plot docs/pictures/classes.png]

| key | queries | classes | supports | the plain network sees |
|---|---|---|---|---|
| exact_392 | 32 | 120 | 360 images, embedded with the queries | 392 images |
| exact_92 | 32 | 20 | 60 images, embedded with the queries | 92 images |
| bank_120 | 256 | 120 | remembered latents | 256 images |
| bank_1000 | 256 | 1000 | remembered latents | 256 images |

Other backbones than the first: exact_392 only. `ratio`: time of a step (forward, backward, AdamW) over that of the
plain network; `memory_ratio`: the same of the peak of reserved device memory; bank_1000's `step_ratio`: its time over
that with 120 classes. The plain network is the backbone as its authors made it, with a linear classifier. On a GPU all
is compiled, bf16, channels-last; all at the same time, so `first_s` is longer than it would be alone. Ours is replayed
as CUDA graphs where `sic train` does that (all cases but exact_392); `plain_graphs` is the plain network replayed too.
Images are random and on the device: no loader is measured. Adds to results/speed.json; the first backbone's figures are
at its top, the others' under their names. `--exact`: exact_392 of every backbone, each under its name.
`--small`: a dry run on a CPU.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed
from torch import Tensor, nn

from sic import backbones
from sic.methods import SIC
from sic.settings import Settings
from sic.training.base import binary_loss
from sic.training.batches import Batch
from sic.training.sic import SICTraining, SupportBank
from sic.training.trainer import worth_replaying

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PER_CLASS = 3


@dataclass(frozen=True)
class Case:
    source: str
    queries: int
    classes: int

    @property
    def images(self) -> int:
        """That go through the network."""
        return self.queries + (PER_CLASS * self.classes if self.source == "exact" else 0)


CASES = {
    "exact_392": Case("exact", 32, 120),
    "exact_92": Case("exact", 32, 20),
    "bank_120": Case("bank", 256, 120),
    "bank_1000": Case("bank", 256, 1000),
}
SWEEP = (5, 20, 60, 120, 400, 1000)
"""Numbers of classes for the plot."""
LARGEST_EXACT = 120
"""Beyond that the exact step is left out of the plot: it is a straight line."""


@dataclass
class Measured:
    ms: float
    first_s: float
    """The first step, in which everything is compiled."""
    mib: float | None
    """Peak of what was reserved on the device."""


def one_hot(number: int, classes: int) -> Tensor:
    return torch.eye(classes)[torch.randint(classes, (number,))].to(DEVICE)


def pixels(number: int, size: int) -> Tensor:
    return torch.randint(256, (number, 3, size, size), dtype=torch.uint8, device=DEVICE)


def ours(backbone: str, case: Case, size: int, compiled: bool) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The module as `sic train` would make it, and the loss of its step."""
    images = 20 * case.classes
    network = backbones.create(backbone)
    network.graphs = worth_replaying(case.images, size)
    classifier = SIC(network, case.classes, PER_CLASS * case.classes)
    settings = Settings(
        backbone=backbone, size=size, resize=size, fit="crop", epochs=1, lr=1e-4, temperature=30.0,
        batch_size=case.queries, recipe="paper", augmentation="none", support_source=case.source, compiled=compiled,  # type: ignore[arg-type]
    )  # fmt: skip
    candidates = {label: list(range(20 * label, 20 * label + 20)) for label in range(case.classes)}
    module = SICTraining(classifier, settings, candidates, multi_label=False).to(DEVICE).train()
    module.steps_per_epoch = 1
    supports = case.images - case.queries
    labels = torch.arange(case.classes, device=DEVICE).repeat_interleave(PER_CLASS)[:supports]
    rows = torch.randperm(images, device=DEVICE)[: case.queries]
    targets = torch.eye(case.classes, device=DEVICE)[rows // 20]
    batch = Batch(
        pixels(case.queries, size), None, rows, targets, pixels(supports, size),
        20 * labels, torch.eye(case.classes, device=DEVICE)[labels], labels, torch.arange(9, device=DEVICE)[None],
    )  # fmt: skip
    if case.source == "bank":
        module.bank = SupportBank(torch.rand(images, 128, device=DEVICE), candidates, PER_CLASS, 0)
    return module, lambda: module.training_step(batch, 1)


def plain(
    backbone: str, case: Case, size: int, compiled: bool, graphs: bool = False
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The conventional network with as many images, and its loss."""
    network = backbones.create(backbone, "conventional")
    network.compiled, network.graphs = compiled, graphs
    module = nn.Sequential(network, nn.Linear(network.features, case.classes))
    module = module.to(DEVICE, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images, targets = pixels(case.images, size), one_hot(case.images, case.classes)

    def loss() -> Tensor:
        prepared = (images.float() / 255).contiguous(memory_format=torch.channels_last)
        return binary_loss(module(prepared).float(), targets)

    return module, loss


class Step:
    """A module with its optimiser, warmed up: compiled, and its fastest convolutions found."""

    def __init__(self, made: tuple[nn.Module, Callable[[], Tensor]]) -> None:
        module, self.loss = made
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0, fused=DEVICE == "cuda")
        self.first_s = self._timed()
        for _ in range(2):
            self._timed()

    def measured(self, steps: int) -> Measured:
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        ms = 1000 * statistics.median(self._timed() for _ in range(steps))
        return Measured(ms, self.first_s, torch.cuda.max_memory_reserved() / 2**20 if DEVICE == "cuda" else None)

    def _timed(self) -> float:
        _wait()
        began = time.perf_counter()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            value = self.loss()
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        _wait()
        return time.perf_counter() - began


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


MAKERS: dict[str, Callable[..., Any]] = {"ours": ours, "plain": plain, "plain_graphs": partial(plain, graphs=True)}
WHO = {
    "exact_392": ("ours", "plain"),
    "exact_92": ("ours", "plain", "plain_graphs"),
    "bank_120": ("ours", "plain"),
    "bank_1000": ("ours",),
}
"""Who is measured in which case."""


def work(task: list[str], arguments: argparse.Namespace) -> None:
    """In a process of its own: warm up, say so, and measure when told to."""
    backbone, name, who = task
    torch.manual_seed(0)
    step = Step(MAKERS[who](backbone, CASES[name], arguments.size, arguments.compiled))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(step.measured(arguments.steps))), flush=True)


def measure_all(
    tasks: list[tuple[str, str, str]], arguments: argparse.Namespace
) -> dict[tuple[str, str, str], Measured]:
    """Compiling takes a processor, not the device: all at once. Then one after the other has the device for itself."""
    share = str(max(1, len(os.sched_getaffinity(0)) // len(tasks)))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": share, "OMP_NUM_THREADS": share}
    options = ["--size", str(arguments.size), "--steps", str(arguments.steps)]
    options += [] if arguments.compiled else ["--no-compile"]
    workers = {
        task: subprocess.Popen(
            [sys.executable, __file__, "--task", *task, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )  # fmt: skip
        for task in tasks
    }
    try:
        for task, worker in workers.items():
            print("warmed up:" if _line(worker) == "ready" else "failed:", *task, flush=True)
        print("measuring", flush=True)
        time.sleep(3)
        found = {}
        for task, worker in workers.items():
            if worker.poll() is not None:
                continue
            found[task] = Measured(**json.loads(_line(worker, go=True)))
            print(*task, found[task], flush=True)
            worker.wait()
        return found
    finally:
        for worker in workers.values():
            worker.kill()


def _line(worker: "subprocess.Popen[str]", go: bool = False) -> str:
    assert worker.stdin is not None and worker.stdout is not None
    if go:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return worker.stdout.readline().strip()


def compared(found: dict[tuple[str, str, str], Measured], backbone: str) -> dict[str, Any]:
    """The figures of one backbone, case by case."""
    result: dict[str, Any] = {}
    for name, case in CASES.items():
        if (backbone, name, "ours") not in found:
            continue
        first = found[backbone, name, "ours"]
        result[name] = {"queries_per_s": 1000 * case.queries / first.ms, **asdict(first)}
        if (second := found.get((backbone, name, "plain"))) is not None:
            result[name] |= {"ratio": first.ms / second.ms, "plain": asdict(second)}
            if first.mib is not None and second.mib is not None:
                result[name]["memory_ratio"] = first.mib / second.mib
        if (graphs := found.get((backbone, name, "plain_graphs"))) is not None:
            result[name]["plain_graphs"] = asdict(graphs)
        if name == "bank_1000":
            result[name]["step_ratio"] = first.ms / found[backbone, "bank_120", "ours"].ms
    return result


def sweep(backbone: str, size: int, steps: int) -> dict[str, dict[int, float]]:
    """Milliseconds of a step with 32 queries by the number of classes, uncompiled (each shape would be compiled)."""
    found: dict[str, dict[int, float]] = {"exact": {}, "bank": {}}
    for source, times in found.items():
        for classes in SWEEP:
            if source == "bank" or classes <= LARGEST_EXACT:
                case = Case(source, 32, classes)
                times[classes] = Step(ours(backbone, case, size, False)).measured(steps).ms
                gc.collect()
                print(backbone, source, classes, times[classes], flush=True)
    return found


def draw(found: dict[str, dict[int, float]], backbone: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    names = {"exact": "exact: embeds 3 images of every class", "bank": "bank: remembers latents"}
    for (source, times), marker in zip(found.items(), "os", strict=True):
        axes.plot(list(times), list(times.values()), marker=marker, label=names[source])
    axes.set(xlabel="classes", ylabel="ms", title=f"A training step with 32 queries, {backbone}, uncompiled")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--small", action="store_true", help="a dry run: small network, small images, three steps")
    parser.add_argument("--exact", action="store_true", help="exact_392 only, every backbone's under its name")
    parser.add_argument("--plot", type=Path, help="also draw the cost by the number of classes, of the first backbone")
    parser.add_argument("--out", type=Path, default=Path("results/speed.json"))
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.small:
        arguments.backbones, arguments.size, arguments.steps, arguments.compiled = "resnet_tiny", 32, 3, False
    torch.backends.cudnn.benchmark = True
    arguments.compiled = arguments.compiled and DEVICE == "cuda"
    if arguments.task:
        work(arguments.task, arguments)
        return
    about: dict[str, Any] = {
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "torch": torch.__version__,
        "compiled": arguments.compiled,
        "size": arguments.size,
    }
    others = arguments.backbones.split(",")
    if not arguments.exact:
        first = others.pop(0)
        found = measure_all([(first, name, who) for name in CASES for who in WHO[name]], arguments)
        about["backbone"] = first
        if arguments.plot is not None:
            about["classes"] = sweep(first, arguments.size, max(3, arguments.steps // 3))
            draw(about["classes"], first, arguments.plot)
        print("measured", flush=True)
        record.add(arguments.out, {**compared(found, first), "train_step": about})
    for name in others:
        found = measure_all([(name, "exact_392", who) for who in WHO["exact_392"]], arguments)
        print("measured", flush=True)
        record.add(arguments.out, {name: {**compared(found, name), "command": as_typed()}})


if __name__ == "__main__":
    main()
