"""Costs on a CPU, as ratios to plain torch, measured in turns in one run.

    python benchmarks/cpu.py [--rounds 5] [--out results/cpu.json]

`explain_cold`, `predict_cold`: seconds of `sic explain photos-small IMAGE` (`sic predict`) in a new process, beside a
process that imports torch and torchvision and nothing else. `embed`: images/s of the small network for photographs and
of a conventional network of the same shape. `step`: images/s forward and backward, without an optimiser. `explain`: one
explanation in forward passes of that conventional network on one image. Both have channels-last inputs, as `sic` has
them on a CPU. `embed_variants`: images/s of embedding with bfloat16, contiguous inputs and torch.compile. The same of
the ResNet50 under `photos`. Medians; adds them to results/cpu.json.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import record
import torch
from command import as_typed, draw_birds

import sic
from sic.backbones import Backbone, create
from sic.backbones.distilled import PHOTOS, PHOTOS_SMALL

SIZE, BATCH = 160, 16


def in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round; the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> float:
    """Median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(seconds[name], seconds[base], strict=True))


def variants(network: Backbone, images: torch.Tensor, rounds: int) -> dict[str, float]:
    """Images/s of embedding in other ways; the first round, which compiles, does not count."""
    compiled = torch.compile(network)

    def in_bfloat16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            network(images)

    works: dict[str, Callable[[], object]] = {
        "float32": lambda: network(images),
        "bfloat16": in_bfloat16,
        "contiguous": lambda: network.pooled(network.prepared(images).contiguous()),
        "compiled": lambda: compiled(images),
    }
    with torch.inference_mode():
        seconds = in_turns(works, rounds)
    return {way: BATCH / statistics.median(each) for way, each in seconds.items()}


def measured(name: str, image: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The figures of one of the networks that come with sic."""
    predict = [sys.executable, "-m", "sic", "predict", name, str(image)]
    explain = [sys.executable, "-m", "sic", "explain", name, str(image), "--out", str(image.with_name("why.png"))]
    cold = in_turns(
        {
            "explain": lambda: subprocess.run(explain, check=True, capture_output=True),
            "predict": lambda: subprocess.run(predict, check=True, capture_output=True),
            "imports": lambda: subprocess.run([sys.executable, "-c", "import torch, torchvision"], check=True),
        },
        rounds,
    )
    model = sic.load(name)
    plain = create(model.config.backbone, "conventional").eval()
    images, own = torch.rand(BATCH, 3, SIZE, SIZE), model.classifier.backbone
    single = torch.rand(1, 3, model.config.preprocessing.size, model.config.preprocessing.size)
    target = torch.zeros(1, dtype=torch.long)
    with torch.inference_mode():
        embed = in_turns({"sic": lambda: own(images), "plain": lambda: plain(images)}, rounds)

    def step(network: torch.nn.Module) -> Callable[[], None]:
        return lambda: network(images).sum().backward()

    steps = in_turns({"sic": step(own), "plain": step(plain)}, rounds)

    def forward() -> None:
        with torch.inference_mode():
            plain(single)

    one = in_turns({"sic": lambda: model.classifier.explain(single, target), "plain": forward}, rounds)
    return {
        "explain_cold": {
            "seconds": statistics.median(cold["explain"]),
            "imports_seconds": statistics.median(cold["imports"]),
            "ratio_to_imports": ratio(cold, "explain", "imports"),
        },
        "predict_cold": {
            "seconds": statistics.median(cold["predict"]),
            "ratio_to_imports": ratio(cold, "predict", "imports"),
        },
        "step": {
            "images_per_s": BATCH / statistics.median(steps["sic"]),
            "plain_images_per_s": BATCH / statistics.median(steps["plain"]),
            "ratio": ratio(steps, "sic", "plain"),
            "size": SIZE,
        },
        "embed_variants": variants(own, images, rounds),
        "embed": {
            "images_per_s": BATCH / statistics.median(embed["sic"]),
            "plain_images_per_s": BATCH / statistics.median(embed["plain"]),
            "ratio": ratio(embed, "sic", "plain"),
            "size": SIZE,
        },
        "explain": {
            "seconds": statistics.median(one["sic"]),
            "forward_passes": ratio(one, "sic", "plain"),
            "size": single.shape[-1],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/cpu.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw_birds(folder, 2, 1, 1, 224)
        image = next(Path(folder).rglob("*.png"))
        small, large = (measured(name, image, options.rounds) for name in (PHOTOS_SMALL, PHOTOS))
    about = {"measured_by": as_typed(), "cores": torch.get_num_threads()}
    record.add(options.out, {what: {**small[what], PHOTOS: large[what], **about} for what in small})
    print(options.out.read_text())


if __name__ == "__main__":
    main()
