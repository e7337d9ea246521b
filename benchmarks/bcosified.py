"""Does a bcosified network keep what the conventional one has learnt? SIC on it against SIC from scratch and against
the conventional network itself: same images, same schedule, same number of epochs.

    python benchmarks/bcosified.py DATA --weights FILE --name NAME [--seeds 0 1 2] [-- flags of sic train for all arms]

The epoch is chosen on images held out from the training set; what counts is the test split, or the data's own
validation images where there is none, which nothing else sees. Writes results/bcosified/NAME.json. A run that is
finished is not trained again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from command import as_typed, ours_and_passed_on

BACKBONE = "timm/tf_efficientnet_lite0"
ARMS: dict[str, list[str]] = {
    "bcosified": ["--form", "bcosified", "--weights", "WEIGHTS"],
    "backbone B = 1": ["--form", "bcosified", "--weights", "WEIGHTS", "--backbone-b", "1"],
    "scratch": ["--form", "bcos"],
    "conventional": ["--method", "blackbox", "--weights", "WEIGHTS", "--lr", "3e-4"],
}


def train(arguments: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """What `sic train --json` says of one arm with one seed."""
    folder = arguments.runs / f"{arguments.name}-{arm}-{seed}"
    said = folder.with_suffix(".json")
    if not said.is_file():
        own = [arguments.weights if flag == "WEIGHTS" else flag for flag in ARMS[arm]]
        command = ["train", arguments.data, "--backbone", BACKBONE, "--hold-out", *own, *arguments.flags]
        command += ["--seed", str(seed), "--out", str(folder), "--json"]
        done = subprocess.run([sys.executable, "-m", "sic", *command], stdout=subprocess.PIPE, text=True, check=True)
        said.write_text(done.stdout)
    found: dict[str, Any] = json.loads(said.read_text())
    return {"arm": arm, "seed": seed, **{key: found[key] for key in ("figures", "seconds", "settings")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True, help="EfficientNet-Lite0, trained on ImageNet")
    parser.add_argument("--name", default="data")
    parser.add_argument("--note", default="", help="what a reader must know about the data")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["bcosified", "scratch", "conventional"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/bcosified"))
    parser.add_argument("--out", type=Path, default=Path("results/bcosified"))
    ours, passed_on = ours_and_passed_on()
    arguments = parser.parse_args(ours)
    arguments.flags = passed_on
    for folder in (arguments.runs, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"command": as_typed(), "note": arguments.note, "runs": []}
    for seed in arguments.seeds:
        for arm in arguments.arms:
            run = train(arguments, arm, seed)
            content["runs"].append(run)
            print(arm, seed, {k: v for k, v in run["figures"]["test"].items() if isinstance(v, float)}, flush=True)
            (arguments.out / f"{arguments.name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
