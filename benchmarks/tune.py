"""The same small search for every method: the learning rate, chosen on held-out training images.

    python benchmarks/tune.py birds BIRDS/ [--rates 1e-3,3e-3,1e-2] [--methods sic,bcos,…] [-- flags of sic search]
    python benchmarks/tune.py funnybirds FunnyBirds/ -- --backbone resnet50 --size 192 --epochs 10
    python benchmarks/tune.py pets PETS/ --weights keras-resnet50.safetensors --rates 3e-5,1e-4,3e-4 -- --size 160 …

Every method gets the same learning rates and the same epochs; test images play no part. Writes the scores and the
choice of each method to results/tuning.json, under the name of the comparison; `benchmarks/rivals.py NAME` takes its
learning rates from there. Finished trials are not trained again. With `--weights`, the methods start from the networks
for photographs as in `benchmarks/rivals.py`, and SIC trains its projection first. BagNet keeps a network of its own,
whatever `--backbone` says. A choice at an end of the grid is marked: the best rate may lie beyond it.
"""

import argparse
from pathlib import Path

import record
import torch
from command import as_typed, ours_and_passed_on, sic
from rivals import start_of

from sic.methods import METHODS as KNOWN

RATES = "1e-3,3e-3,1e-2"
METHODS = "sic,bcos,blackbox,nwhead,protopnet,bagnet"


def flags_for(method: str, passed_on: list[str]) -> list[str]:
    """Those of all methods; one that works with few networks takes its own."""
    if not KNOWN[method].backbones or "--backbone" not in passed_on:
        return passed_on
    place = passed_on.index("--backbone")
    return [*passed_on[:place], *passed_on[place + 2 :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("data")
    parser.add_argument("--rates", default=RATES)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--weights", help="of the conventional ResNet50")
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--out", type=Path, default=Path("results/tuning.json"))
    ours, passed_on = ours_and_passed_on()
    arguments = parser.parse_args(ours)
    methods = {}
    for method in arguments.methods.split(","):
        out = arguments.runs / arguments.name / method
        flags = ["--method", method, "--lr", arguments.rates, "--out", str(out), *flags_for(method, passed_on)]
        if arguments.weights:
            start = start_of(method, arguments.weights) | ({"recipe": "tuned"} if method == "sic" else {})
            flags += [part for name, value in start.items() for part in (f"--{name}", value)]
        elif method == "sic":  # it would try several T, too; every method has one axis here
            flags += ["-T", "1"]
        found = sic("search", arguments.data, *flags)
        scores = {str(trial["lr"]): trial["score"] for trial in found["trials"]}
        best, rates = found["best"]["lr"], [trial["lr"] for trial in found["trials"]]
        methods[method] = {"lr": best, "at_an_end": best in (min(rates), max(rates)), found["score"]: scores}
        print(method, methods[method], flush=True)
    content = {"command": as_typed(), "torch": torch.__version__, "methods": methods}
    record.add(arguments.out, {arguments.name: content})


if __name__ == "__main__":
    main()
