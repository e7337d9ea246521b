"""`sic train` without flags on a folder of photographs, as a user would run it: time, memory, and accuracy on others.

    python benchmarks/folder.py TRAIN TEST --name NAME --out FILE [--weights photos-small] [--seeds 0,1,2]

TRAIN and TEST are folders of classes. Adds the key NAME to the file: a value for each seed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record
from command import as_typed, sic


def train(arguments: list[str]) -> dict[str, float]:
    """Seconds and peak memory of one `sic train`."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "sic", "train", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"sic train {' '.join(arguments)} failed.")
    return {
        "wall_seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_megabytes": round(usage.ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--weights", help="default: what `sic train` chooses")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--name", required=True)
    parser.add_argument("--keep", type=Path, help="keep the models in this folder")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {"command": as_typed()}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds.split(","):
            model = (options.keep or Path(scratch)) / f"seed{seed}"
            more = ["--weights", options.weights] if options.weights else []
            spent = train([str(options.train), "--seed", seed, "--out", str(model), *more])
            measured = sic("evaluate", str(model), str(options.test), "--only", "accuracy")["accuracy"]
            figures = {"accuracy": measured["accuracy"], "calibration_error": measured["ece"]}
            figures |= {name: measured["headline"][name]["share"] for name in ("answered", "right")}
            print(figures, spent, flush=True)
            for name, value in {**figures, **spent}.items():
                found.setdefault(name, []).append(round(value, 4))
    record.add(options.out, {options.name: found})


if __name__ == "__main__":
    main()
