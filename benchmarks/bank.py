"""Does a model whose supports came from the bank know as much as one of the exact step? At equal cost: both see as many
images in training, queries and supports taken together.

    python benchmarks/bank.py [--classes 24] [--epochs 15] [--seeds 0 1 2] [--out results/bank.json]

On birds drawn for it; accuracy and the FunnyBirds scores of the test images.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from command import as_typed, draw_birds, sic

SUPPORTS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=24)
    parser.add_argument("--images", type=int, default=60, help="of each class, to train on")
    parser.add_argument("--test", type=int, default=20, help="of each class, to measure on")
    parser.add_argument("--epochs", type=int, default=15, help="of the exact step")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/bank.json"))
    arguments = parser.parse_args()
    more = 1 + SUPPORTS * arguments.classes / arguments.batch_size
    epochs = {"exact": arguments.epochs, "bank": round(arguments.epochs * more)}
    content: dict[str, Any] = {"command": as_typed(), "epochs": epochs, "runs": []}
    with tempfile.TemporaryDirectory() as scratch:
        birds = f"{scratch}/birds"
        draw_birds(birds, arguments.classes, arguments.images, arguments.test, arguments.size)
        given = ["--size", str(arguments.size), "--batch-size", str(arguments.batch_size), "--backbone", "resnet_small"]
        for seed in arguments.seeds:
            for source in epochs:
                model = f"{scratch}/{source}-{seed}"
                own = ["--support-source", source, "--epochs", str(epochs[source]), "--seed", str(seed)]
                trained = sic("train", birds, *given, *own, "--out", model)
                scores = sic("evaluate", model, birds, "--only", "funnybirds")["funnybirds"]["contributions"]
                figures = {"accuracy": trained["figures"]["test"]["accuracy"]}
                figures |= {name: score for name, score in scores.items() if isinstance(score, float)}
                content["runs"].append({"source": source, "seed": seed, **figures, "seconds": trained["seconds"]})
                print(source, seed, figures["accuracy"], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
