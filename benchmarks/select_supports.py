"""How long does choosing the supports take, and is the choice as good as scikit-learn's? Both in one run, on latents of
1,000 classes × 1,300 images × 128 numbers, which lie around a few points per class.

    python benchmarks/select_supports.py [--small] [--out results/select_supports.json]

Without a GPU the batched way is measured on the CPU, where `sic` itself uses scikit-learn.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from command import as_typed
from numpy.typing import NDArray

from sic.supports import select

SUPPORTS = 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def latents(classes: int, images: int, size: int) -> NDArray[np.float32]:
    """Non-negative, as latents are; each class has five modes that overlap."""
    rng = np.random.default_rng(0)
    modes = rng.gamma(1, 1, (classes, 5, size)).astype(np.float32)
    rows = np.repeat(np.arange(classes), images)
    noise = rng.standard_normal((len(rows), size), dtype=np.float32)
    return np.maximum(modes[rows, rng.integers(0, 5, len(rows))] + noise, 0)


def inertia(points: NDArray[np.float32], chosen: NDArray[np.intp], images: int) -> NDArray[np.float64]:
    """Per class: squared distances of its images from the nearest of its supports."""
    result = []
    for start, rows in zip(range(0, len(points), images), chosen.reshape(-1, SUPPORTS), strict=True):
        distances = ((points[start : start + images, None] - points[rows]) ** 2).sum(axis=2)
        result.append(distances.min(axis=1).sum(dtype=np.float64))
    return np.array(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 classes × 200 images")
    parser.add_argument("--out", type=Path, default=Path("results/select_supports.json"))
    arguments = parser.parse_args()
    classes, images, size = (20, 200, 128) if arguments.small else (1000, 1300, 128)
    points = latents(classes, images, size)
    candidates = {label: range(label * images, (label + 1) * images) for label in range(classes)}
    few = {label: candidates[label] for label in range(2)}
    seconds, chosen = {}, {}
    for name, device in (("batched", DEVICE), ("scikit-learn", None)):
        select(points, few, SUPPORTS, device=device)  # libraries are loaded, the device is awake
        start = time.perf_counter()
        chosen[name] = select(points, candidates, SUPPORTS, device=device)[0]
        seconds[name] = time.perf_counter() - start
    found = {name: inertia(points, rows, images) for name, rows in chosen.items()}
    ratios = found["batched"] / found["scikit-learn"]
    content = {
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "classes": classes,
        "images_per_class": images,
        "latent": size,
        "supports_per_class": SUPPORTS,
        "seconds": seconds,
        "inertia_ratio": {"all": found["batched"].sum() / found["scikit-learn"].sum(), "worst_class": ratios.max()},
        "same_rows": float(np.isin(chosen["batched"], chosen["scikit-learn"]).mean()),
    }
    print(json.dumps(content, indent=1))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
