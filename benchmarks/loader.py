"""Does the GPU wait for images? Images per second of the loader alone beside those of the training step alone.

    python benchmarks/loader.py [--out results/loader.json] [--small]

Random JPEGs of the usual shape of photographs, read once into the cache as any fit does; the paper's augmentation for
photographs at 224 px, ResNet50, 32 queries and 3 supports of 20 classes a step. "loader": batches as they arrive from
the worker processes. "moved": the same with their way to the device and the augmentation there. "step": training steps
on one batch that is there already. "fit": both, one after the other, as in a training.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import sic.data
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.data.transforms import TrainingTransform
from sic.machines import exact_arithmetic
from sic.training import Silent, choose
from sic.training.base import Training
from sic.training.batches import Batch, TrainingBatches, training_loader
from sic.training.choose import loader_workers
from sic.training.data import gather
from sic.training.fit import _config, _module

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(folder: Path, classes: int, each: int) -> None:
    """JPEGs of 500×375 px, blurred noise: as long to decode as photographs."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(each):
            coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
            picture.save(folder / f"class {label}" / f"{number}.jpg", quality=92)


def rate(work: Callable[[], int], seconds: float) -> float:
    """Images per second of `work`, which returns how many it handled, over about `seconds`."""
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    begun, images = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        images += work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return images / (time.monotonic() - begun)


def on_device(batch: Batch, module: Training) -> Batch:
    moved: Batch = module.transfer_batch_to_device(batch, torch.device(DEVICE), 0)
    return module.on_after_batch_transfer(moved, 0)


def step(module: Training, optimiser: torch.optim.Optimizer, batch: Batch) -> int:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        loss = module.training_step(batch, 1)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    module._losses.clear()
    return len(batch.queries) + len(batch.supports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="a small network on few small images: does it run?")
    parser.add_argument("--workers", type=int, default=loader_workers())
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    small = arguments.small
    said: dict[str, Any] = {"backbone": "resnet_tiny" if small else "resnet50", "size": 32 if small else 224}
    said |= {"recipe": "paper"}
    said |= {"batch_size": 32, "temperature": 30.0, "epochs": 1000}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photos"
        draw(folder, 20, 8 if small else 100)
        data = sic.data.open(folder)
        settings, _ = choose(data, said)
        begun = time.monotonic()
        material = gather(data, settings, Path(scratch) / "pixels.bin", arguments.workers, Silent())
        decoded = (len(material.train) + len(material.validation)) / (time.monotonic() - begun)
        exact_arithmetic()
        module = _module(_config(data, settings, material), settings, material, None).to(DEVICE).train()
        transform = module.transform = TrainingTransform(settings.augmentation, Preprocessing.of(settings))
        train_targets = targets(material.train.samples, len(data.classes))
        batches = TrainingBatches(
            material.train,
            train_targets,
            material.candidates,
            Preprocessing.of(settings),
            transform,
            settings.batch_size,
            settings.supports_per_class,
            settings.seed,
            on_device=DEVICE == "cuda",
        )
        module.steps_per_epoch = len(batches)
        optimiser = torch.optim.AdamW(module.parameters(), lr=settings.lr, weight_decay=0.0)
        torch.backends.cudnn.benchmark = True
        type(module).global_step = property(lambda self: 0)  # type: ignore[assignment, method-assign]  # no trainer

        def arriving() -> Any:
            loader = training_loader(batches, arguments.workers, 0)
            while True:
                yield from loader

        stream = arriving()

        def load() -> int:
            batch = next(stream)
            return len(batch.queries) + len(batch.supports)

        def load_and_move() -> int:
            batch = on_device(next(stream), module)
            return len(batch.queries) + len(batch.supports)

        standing = on_device(next(stream), module)
        found = {
            "decoding": decoded,
            "loader": rate(load, arguments.seconds),
            "moved": rate(load_and_move, arguments.seconds),
            "step": rate(lambda: step(module, optimiser, standing), arguments.seconds),
            "fit": rate(lambda: step(module, optimiser, on_device(next(stream), module)), arguments.seconds),
        }
        stream.close()
    content = {
        "command": "python benchmarks/loader.py",
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "torch": torch.__version__,
        "workers": arguments.workers,
        "backbone": settings.backbone,
        "size": settings.size,
        "images_per_s": {name: round(value, 1) for name, value in found.items()},
        "loader_over_step": round(found["moved"] / found["step"], 2),
        "fit_over_step": round(found["fit"] / found["step"], 3),
    }
    print(json.dumps(content, indent=1))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
