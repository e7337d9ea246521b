"""How long the search for copies takes among 100,000 images, once they are decoded.

python benchmarks/copies.py results/cpu.json      # adds the key `copies`, keeps the others

`seconds` is the processor time of all threads together, which does not depend on what else the machine does: on one
idle core the search takes that long, on two about half. `elapsed` is by the clock.

Two sets of the same size: random structure, whose hashes are random; and drawn birds, whose hashes are alike. Every
hundredth image is a copy of another one (brightened, cropped by 2 %), and the search must find it.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from sic.data.birds import sample_scene, species
from sic.data.drawing import render
from sic.data.duplicates import SIDE, Fingerprint, copies_within
from sic.machines import cores

sys.path.append(str(Path(__file__).parent))
from record import add  # noqa: E402

IMAGES = 100_000
EVERY = 100
"""One image in so many is a copy."""


def structure(number: int) -> np.ndarray:
    """Smooth noise, N×SIDE×SIDE."""
    rng = np.random.default_rng(0)
    blocks = []
    for start in range(0, number, 1000):
        noise = rng.normal(size=(min(1000, number - start), SIDE, SIDE)).astype(np.float32)
        smooth = gaussian_filter(noise, (0, 1, 1)) + 4 * gaussian_filter(noise, (0, 4, 4))
        blocks.append((128 + 100 * smooth).clip(0, 255).astype(np.uint8))
    return np.concatenate(blocks)


def drawn(start: int, number: int = 500) -> np.ndarray:
    rng, kinds = np.random.default_rng((1, start)), species(50)
    scenes = [sample_scene(i % 50, kinds[i % 50], rng) for i in range(number)]
    return np.stack([np.asarray(Image.fromarray(render(scene, SIDE).image).convert("L")) for scene in scenes])


def birds(number: int) -> np.ndarray:
    """Birds in grey, N×SIDE×SIDE, each in eight views: turned and mirrored."""
    starts = range(0, -(-number // 8), 500)
    with ProcessPoolExecutor(cores()) as pool:
        pictures = np.concatenate(list(pool.map(drawn, starts)))
    views = [np.rot90(some, turn, (1, 2)) for some in (pictures, pictures[:, :, ::-1]) for turn in range(4)]
    return np.concatenate(views)[:number]


def with_copies(pictures: np.ndarray) -> tuple[list[Fingerprint], int]:
    """Fingerprints; every hundredth picture is replaced by a copy of the one before it."""
    prints = []
    for place, picture in enumerate(pictures):
        if place % EVERY == EVERY - 1:
            image = Image.fromarray(pictures[place - 1]).crop((1, 0, SIDE, SIDE - 1)).resize((SIDE, SIDE))
            picture = np.minimum(np.asarray(image) * 1.1, 255).astype(np.uint8)
        prints.append(Fingerprint((256, 256), picture.tobytes()[:2000], np.ascontiguousarray(picture)))
    return prints, len(pictures) // EVERY


def measure(pictures: np.ndarray) -> dict[str, Any]:
    os.environ["SIC_CACHE_GB"] = "0"  # or a second run would find the result of the first
    prints, planted = with_copies(pictures)
    start, work = time.monotonic(), time.process_time()
    sets = copies_within(prints)
    found = {tuple(one[:2]) for one in sets}
    return {
        "images": len(prints),
        "seconds": round(time.process_time() - work, 1),
        "elapsed": round(time.monotonic() - start, 1),
        "planted": planted,
        "planted_found": sum((p - 1, p) in found for p in range(EVERY - 1, len(prints), EVERY)),
        "other_sets": len(sets) - sum((p - 1, p) in found for p in range(EVERY - 1, len(prints), EVERY)),
    }


def main(file: Path, images: int = IMAGES) -> None:
    result: dict[str, Any] = {"command": "python benchmarks/copies.py results/cpu.json", "cores": cores()}
    for name, pictures in (("random", structure), ("birds", birds)):
        result[name] = measure(pictures(images))
        print(name, result[name], flush=True)
    result["seconds"] = max(result[name]["seconds"] for name in ("random", "birds"))
    add(file, {"copies": result})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
