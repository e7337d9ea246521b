"""Do explanations add up for every family of backbones? Trains each for a moment on drawn birds and measures.

    python benchmarks/families.py [--out results/families.json]

What is measured is `sic verify` (completeness in both precisions, and the share of the evidence that no pixel has); the
accuracy only shows that there is evidence to speak of.
"""

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from command import as_typed, draw_birds, sic

FAMILIES: dict[str, list[str]] = {
    "resnet18": [],
    "resnet18 antialiased": ["--antialias"],
    "resnext50_32x4d": [],
    "densenet121": [],
    "convnext_tiny": [],
    "vgg11": [],
    "vitc_ti": [],
    "resnet_small": [],
    "vit_small": [],
    "timm/tf_efficientnet_lite0 bcosified": ["--form", "bcosified"],
    "timm/mobilenetv3_small_050 bcosified": ["--form", "bcosified"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/families.json"))
    parser.add_argument("--size", default="64")
    parser.add_argument("--parallel", type=int, default=1, help="families at a time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(arguments.parallel) as pool:
        birds = f"{scratch}/a few birds"
        draw_birds(birds, classes=4, train=100, test=6, size=int(arguments.size))

        def verified(family: str) -> dict[str, Any]:
            model = tempfile.mkdtemp(dir=scratch)
            given = ["--backbone", family.split()[0], "--size", arguments.size, "--epochs", "15", "--lr", "3e-4"]
            trained = sic("train", birds, "--out", model, *given, *FAMILIES[family])
            measured = sic("verify", model, "--no-compiled")
            completeness = measured["axioms"]["completeness"]
            kept = {k: v for k, v in completeness.items() if k.startswith(("residual", "mean", "input"))}
            print(family, measured["passed"], kept, flush=True)
            figures = {"passed": measured["passed"], "images": measured["images"], "accuracy": trained["accuracy"]}
            return {**figures, **kept}

        found = dict(zip(FAMILIES, pool.map(verified, FAMILIES), strict=True))
    content = {"command": as_typed(), "families": found}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
