"""How much memory does a fit take on a CPU? The highest sum over all processes of a run, loaders included.

    python benchmarks/fit_memory.py [--images 1000] [--size 224] [--backbone resnet50] [--recipes frozen tuned]

Trains on random images with random weights, which take as much memory as any others, and writes `fit_frozen` and
`fit_tuned` to results/cpu.json. Memory that processes share is counted once (proportional set size); Linux only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import as_typed
from PIL import Image
from record import add

from sic import backbones
from sic.backbones.distilled import Distilled

NAMES = {"frozen": "fit_frozen", "tuned": "fit_tuned"}
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--recipes", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--minutes", type=float, help="stop each fit then: the peak is reached in the first steps")
    parser.add_argument("--out", type=Path, default=Path("results/cpu.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        photos, weights = Path(scratch, "photos"), Path(scratch, "weights.safetensors")
        draw(photos, arguments.images, arguments.size + 32)
        network = backbones.create(arguments.backbone, "bcosified", measure=False).network
        Distilled(arguments.backbone, network.state_dict()).write(weights)
        for recipe in arguments.recipes:
            command = [
                "train",
                str(photos),
                "--weights",
                str(weights),
                "--recipe",
                recipe,
                "--size",
                str(arguments.size),
            ]
            if recipe != "frozen":
                command += ["--epochs", "1"]
            peak, seconds, whole = watched([*command, "--out", str(Path(scratch, recipe))], arguments.minutes)
            shown = " ".join(["sic", *command]).replace(scratch + "/", "")
            figures: dict[str, Any] = {"peak_gb": round(peak / 1e9, 2), "seconds": round(seconds), "command": shown}
            figures["finished"] = whole
            about = {"images": arguments.images, "classes": CLASSES, "cores": os.cpu_count(), "measured_by": as_typed()}
            add(arguments.out, {NAMES[recipe]: {**figures, **about}})
            print(NAMES[recipe], figures)


def draw(folder: Path, number: int, side: int) -> None:
    """Random blobs, no two alike."""
    rng = np.random.default_rng(0)
    for index in range(number):
        home = folder / f"class{index % CLASSES}"
        home.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).save(home / f"{index}.jpg")


def watched(arguments: list[str], minutes: float | None) -> tuple[float, float, bool]:
    """Peak memory in bytes, and seconds, of a command of sic, and whether it came to its end."""
    before = time.monotonic()
    environment = {**os.environ, "SIC_CACHE_GB": "0"}  # as for images that were never decoded before
    process = subprocess.Popen([sys.executable, "-m", "sic", *arguments], stdout=subprocess.DEVNULL, env=environment)
    peak = 0.0
    while process.poll() is None:
        now = sum(map(memory_of, family(process.pid)))
        if now > 1.02 * peak:
            print(f"{time.monotonic() - before:.0f} s: {now / 1e9:.2f} GB", file=sys.stderr)
        peak = max(peak, now)
        if minutes is not None and time.monotonic() - before > 60 * minutes:
            process.terminate()
            process.wait()
            return peak, time.monotonic() - before, False
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"sic {' '.join(arguments)} failed")
    return peak, time.monotonic() - before, True


def family(parent: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [parent, *(each for child in children for each in family(int(child)))]


def memory_of(process: int) -> float:
    """Proportional set size in bytes; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0.0


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
