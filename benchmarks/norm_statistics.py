"""Do batch norms lag behind the weights? The same fit, validated with running statistics and with renewed ones.

    python benchmarks/norm_statistics.py DATA [--seeds 0,1,2] [--runs runs/norms] [-- settings of sic.fit as name=value]

Both fits take the same steps: the statistics of norms matter in validation only, except with `--support-source bank`,
which compares queries with latents in evaluation mode. Writes the validation score after every epoch to
results/norms.json, under the name of the data.
"""

import argparse
import csv
import shutil
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed, ours_and_passed_on

import sic
from sic.cli.entries import read_setting
from sic.training.base import Training
from sic.training.history import HISTORY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, default=Path("runs/norms"))
    parser.add_argument("--out", type=Path, default=Path("results/norms.json"))
    ours, passed_on = ours_and_passed_on()
    options = parser.parse_args(ours)
    settings = {name: read_setting(name, text) for name, _, text in (each.partition("=") for each in passed_on)}
    found: dict[str, Any] = {"command": as_typed(), "torch": torch.__version__, "running": [], "renewed": []}
    renew = Training.renew_statistics
    for seed in map(int, options.seeds.split(",")):
        for kind, how in (("running", lambda module: None), ("renewed", renew)):
            Training.renew_statistics = how  # type: ignore[method-assign]
            folder = options.runs / f"{kind}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            model = sic.fit(options.data, folder, seed=seed, **settings)
            with (folder / HISTORY).open(newline="") as file:
                scores = [round(float(row["val_score"]), 4) for row in csv.DictReader(file)]
            figures = {split: of["accuracy"] for split, of in model.config.figures.items() if "accuracy" in of}
            found[kind].append({"seed": seed, "scores": scores, **figures})
            print(kind, found[kind][-1], flush=True)
    record.add(options.out, {Path(options.data).name: found})


if __name__ == "__main__":
    main()
