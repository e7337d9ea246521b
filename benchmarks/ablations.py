"""What does each part of SIC do? One thing is changed at a time, everything else stays, on birds drawn for it.

    python benchmarks/ablations.py [--seeds 0 1 2] [--only "no ReLU" …] [--out results/ablations]

Accuracy and the FunnyBirds scores of the test images, and the share of what supports are made of that is negative.
Writes ablations.json and the table, ablations.md. Runs that are finished are not trained again.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from command import as_typed, draw_birds, sic

from sic import load
from sic.evaluate.compare import cell
from sic.evaluate.metrics import METRICS, Metric

VARIANTS: dict[str, list[str]] = {
    "SIC as it is (3 supports, B = 2, T = 1)": [],
    "no ReLU": ["--no-relu"],
    "1 support": ["--supports", "1"],
    "5 supports": ["--supports", "5"],
    "10 supports": ["--supports", "10"],
    "B = 1": ["--b", "1"],
    "B = 1.5": ["--b", "1.5"],
    "B = 2.5": ["--b", "2.5"],
    "T = 0.3": ["--temperature", "0.3"],
    "T = 3": ["--temperature", "3"],
    "T = 10": ["--temperature", "10"],
    "cross-entropy": ["--loss", "ce"],
    "centroids instead of images": ["--inference-supports", "centroid"],
    "random images instead of nearest": ["--inference-supports", "random"],
    "recipe of the paper": ["--recipe", "paper", "--augmentation", "affine"],
}
NEGATIVE = Metric("negative_mass", "negative share of supports", "negative contributions", False, percent=True)
COLUMNS = (*(METRICS[key] for key in ("accuracy", "similar_case", "Com", "Cor", "Con")), NEGATIVE)


def measured(name: str, seed: int, birds: Path, runs: Path, flags: list[str]) -> dict[str, Any]:
    model = runs / f"{list(VARIANTS).index(name)}-seed{seed}"
    said = model.with_suffix(".json")
    if not said.is_file():
        trained = sic("train", str(birds), *flags, *VARIANTS[name], "--seed", str(seed), "--out", str(model))
        scores = sic("evaluate", str(model), str(birds), "--only", "funnybirds")["funnybirds"]["contributions"]
        test = trained["figures"]["test"]
        masses = [s.negative_mass for s in load(model).overview().supports if s.negative_mass is not None]
        figures = {"accuracy": test["accuracy"], "similar_case": test["similar_case"]}
        figures |= {key: scores[key] for key in ("Com", "Cor", "Con")}
        figures["negative_mass"] = statistics.fmean(masses) if masses else None
        said.write_text(json.dumps({"variant": name, "seed": seed, **figures}))
    found: dict[str, Any] = json.loads(said.read_text())
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: mean and, over several seeds, standard deviation."""
    titles = " | ".join(metric.heading for metric in COLUMNS)
    lines = [f"| | {titles} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        cells = [cell([run[metric.key] for run in own]).text(metric) for metric in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--images", type=int, default=60, help="of each class, to train on")
    parser.add_argument("--test", type=int, default=20, help="of each class, to measure on")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    parser.add_argument("--runs", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--out", type=Path, default=Path("results/ablations"))
    arguments = parser.parse_args()
    birds = arguments.runs / "birds"
    if not birds.is_dir():
        draw_birds(str(birds), arguments.classes, arguments.images, arguments.test, arguments.size)
    flags = ["--size", str(arguments.size), "--epochs", str(arguments.epochs), "--backbone", "resnet_small"]
    flags += ["--inference-supports", "nearest"]  # variants override it
    arguments.out.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"command": as_typed(), "flags": flags, "runs": []}
    for seed in arguments.seeds:
        for name in arguments.only:
            content["runs"].append(measured(name, seed, birds, arguments.runs, flags))
            print(content["runs"][-1], flush=True)
            (arguments.out / "ablations.json").write_text(json.dumps(content, indent=1) + "\n")
            (arguments.out / "ablations.md").write_text(table(content["runs"]))


if __name__ == "__main__":
    main()
