"""Does a fit from scratch work? The default recipe against the paper's, over seeds, on the same data and budget.

    python benchmarks/scratch_recipe.py DATA --name NAME [--size …] [--backbone …] [--epochs …] [--out results/scratch]

Writes NAME.json: the command, and per run the settings, the test accuracy and every epoch's validation score, dead
latent units and latent norm. `python benchmarks/plot_scratch.py` draws them.
"""

import argparse
import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RECIPES = ("scratch", "paper")


def train(data: str, folder: Path, recipe: str, seed: int, extra: list[str]) -> dict[str, Any]:
    """One run as a user would start it; what it reached, also if it was cut short."""
    command = [sys.executable, "-m", "sic", "train", data, "--out", str(folder), "--recipe", recipe]
    command += ["--seed", str(seed), "--json", *extra]
    if (folder / "run.json").is_file():
        command.append("--resume")
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
    result = json.loads(done.stdout) if done.returncode == 0 else {}
    return {
        "recipe": recipe,
        "seed": seed,
        **{k: result.get(k) for k in ("accuracy", "figures", "seconds", "settings")},
    }


def history(folder: Path) -> list[dict[str, float]]:
    file = folder / "history.csv"
    if not file.is_file():
        return []
    with file.open(newline="") as lines:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--name", required=True)
    parser.add_argument("--note", default="", help="what a reader must know about the data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/scratch"))
    parser.add_argument("--out", type=Path, default=Path("results/scratch"))
    arguments, extra = parser.parse_known_args()
    folders = {(r, s): arguments.runs / f"{arguments.name}-{r}-{s}" for s in arguments.seeds for r in RECIPES}
    arguments.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        jobs = {key: pool.submit(train, arguments.data, folders[key], *key, extra) for key in folders}
    runs = [{**job.result(), "history": history(folders[key])} for key, job in jobs.items()]
    content = {
        "command": "python benchmarks/scratch_recipe.py DATA " + " ".join(["--name", arguments.name, *extra]),
        "data": arguments.note,
        "runs": runs,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.name}.json").write_text(json.dumps(content, indent=1))
    for run in runs:
        print(run["recipe"], run["seed"], run["accuracy"])


if __name__ == "__main__":
    main()
