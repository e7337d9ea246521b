"""Local units and the penalty on misplaced evidence in fits from scratch, on the built-in birds.

    python benchmarks/local_from_scratch.py [--seeds 0 1 2] [--only "local units" …] [--out FILE]

64 px, 20 epochs, the recipe `scratch` with its default learning rate; all 240 test images: accuracy, the FunnyBirds
metrics, grid pointing, and the share of noise that is refused where 95 % of the birds pass. One value for each seed.
Runs that are finished are not trained again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from command import as_typed, sic

from sic.evaluate.compare import cell, collect
from sic.evaluate.metrics import metric

VARIANTS: dict[str, list[str]] = {
    "features pooled first": [],
    "features pooled first, penalty 0.3": ["--misplaced", "0.3"],
    "local units": ["--local-units"],
    "local units, penalty 0.3": ["--local-units", "--misplaced", "0.3"],
    "local units, penalty 1": ["--local-units", "--misplaced", "1"],
}
FIT = ["--size", "64", "--epochs", "20", "--check-every", "5", "--recipe", "scratch"]
CHECKS = "accuracy,funnybirds,localisation,unfamiliar"
PRINTED = ("accuracy", "BI", "Com", "SD", "TS_relative", "grid_2x2", "grid_3x3", "refused_blurred_noise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    parser.add_argument("--runs", type=Path, default=Path("runs/local_from_scratch"))
    parser.add_argument("--out", type=Path, default=Path("results/local_from_scratch.json"))
    arguments = parser.parse_args()
    results = dict[str, list[Any]]()
    for name in arguments.only:
        results[name] = []
        for seed in arguments.seeds:
            model = arguments.runs / f"{list(VARIANTS).index(name)}-seed{seed}"
            file = model.with_suffix(".json")
            if not file.is_file():
                sic("train", "birds", *FIT, *VARIANTS[name], "--seed", str(seed), "--out", str(model))
                file.write_text(json.dumps(sic("evaluate", str(model), "--only", CHECKS)))
            results[name].append(json.loads(file.read_text()))
    found = collect(results)
    for name, values in found.items():
        print(f"{name}:", ", ".join(f"{key} {cell(values[key]).text(metric(key))}" for key in PRINTED))
    content = {"command": as_typed(), "torch": torch.__version__, "seeds": arguments.seeds, "variants": found}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
