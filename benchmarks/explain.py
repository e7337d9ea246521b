"""What does explaining an image cost? Explanations of the predicted class against plain forward passes of a
conventional network of the same shape: same images, same batches, float32 without TF32, in turns in one run.

    python benchmarks/explain.py [--small] [--out results/speed.json]

`--small` is for a CPU: few and small images, a small network. Weights are random, which costs the same.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed
from torch import Tensor, nn

from sic import backbones
from sic.bcos.norms import BatchNormUncentred2d
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.explain import images_at_once
from sic.machines import exact_arithmetic
from sic.methods import SIC
from sic.model import Model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, SUPPORTS = 120, 3


@torch.no_grad()
def settle(network: nn.Module, images: Tensor) -> None:
    """Norms that have seen a batch: activations of an untrained network would die out, and zeros are fast."""
    for module in network.modules():
        if isinstance(module, BatchNormUncentred2d | nn.BatchNorm2d):
            module.momentum = 1.0
    network.train()(images)
    network.eval()


def sic_model(backbone: str, size: int, images: Tensor) -> Model:
    """Random weights; the supports are latents of some of the images."""
    config = Config(backbone, [str(c) for c in range(CLASSES)], "single", Preprocessing(size, size), SUPPORTS, 1.0)
    classifier = build(config, CLASSES * SUPPORTS).to(DEVICE)
    assert isinstance(classifier, SIC)
    settle(classifier, images[:8])
    with torch.no_grad():
        latents = classifier.encoder(images[:8])
    rows = torch.arange(CLASSES * SUPPORTS)
    classifier.set_supports(latents[rows.to(DEVICE) % len(latents)], (rows // SUPPORTS).to(DEVICE))
    return Model(classifier, config, [])


def conventional(backbone: str, images: Tensor) -> nn.Module:
    body = backbones.create(backbone, "conventional")
    network = nn.Sequential(body, nn.Linear(body.features, CLASSES)).to(DEVICE)
    settle(network, images[:8])
    return network


def measured(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and bytes of GPU memory above what was there before (0 on a CPU)."""
    before = 0
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="8 images of 64 px, resnet18")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/speed.json"))
    arguments = parser.parse_args()
    backbone, size, number = ("resnet18", 64, 8) if arguments.small else ("resnet50", 224, 256)
    exact_arithmetic()
    torch.manual_seed(0)
    images = torch.rand(number, 3, size, size, device=DEVICE)
    model, plain = sic_model(backbone, size, images), conventional(backbone, images)
    at_once = images_at_once(model.classifier, images[0])

    def explain() -> None:
        list(model.contributions(images))

    @torch.no_grad()
    def forward(network: nn.Module) -> None:
        for batch in images.split(at_once):
            network(batch)

    works: dict[str, Callable[[], None]] = {
        "explanations": explain,
        "conventional forward": lambda: forward(plain),
        "SIC forward": lambda: forward(model.classifier),
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in works}
    for turn in range(arguments.rounds + 1):
        for name, work in works.items():
            result = measured(work)
            if turn > 0:  # the first round warms up
                found[name].append(result)
    content: dict[str, Any] = {
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "backbone": backbone,
        "size": size,
        "images": number,
        "images_at_once": at_once,
        "largest_residual": max(found.residual.abs().max().item() for _, found in model.contributions(images)),
    }
    plain_seconds = statistics.median(seconds for seconds, _ in found["conventional forward"])
    for name, results in found.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        memory = max(memory for _, memory in results)
        content[name] = {
            "images_per_second": number / seconds,
            "seconds": [seconds for seconds, _ in results],
            "ratio_to_conventional_forward": seconds / plain_seconds,
            "peak_memory_gib": memory / 2**30 if DEVICE == "cuda" else None,
        }
        print(f"{name:<22}{number / seconds:>9.1f} images/s, {seconds / plain_seconds:.2f} × conventional forward")
    per_second = content["explanations"]["images_per_second"]
    record.add(arguments.out, {f"explain_{number}": {"per_s": per_second, **content}})


if __name__ == "__main__":
    main()
