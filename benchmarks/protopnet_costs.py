"""Does ProtoPNet learn more where the cluster and separation costs come in during the first round than where they are
there from the first step, as published?

    python benchmarks/protopnet_costs.py DATA --weights FILE [--rates 1e-3,3e-3] [--seeds 0,1,2] [-- NAME=VALUE …]

Trains both kinds with the same images, steps, rates and seeds, and a black box beside them (with its own rate,
`--blackbox`). FILE: the weights of the conventional ResNet50 (benchmarks/keras_resnet50.py). Settings are given by
their names, such as epochs=12. Writes validation accuracy, by rate and seed, to results/protopnet.json, under the name
of DATA.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed, ours_and_passed_on

import sic
from sic.cli.console import Talker
from sic.cli.entries import read_value
from sic.training import protopnet

SETTINGS: dict[str, Any] = {"size": 96, "fit": "squash", "batch_size": 32, "epochs": 12, "check_every": 4}
SETTINGS |= {"validation": 0.2, "augmentation": "affine", "backbone": "resnet50_v1"}


def published(epochs: float, first_round: int) -> float:
    """All of the costs from the first step on."""
    return 1.0


KINDS: dict[str, Callable[[float, int], float]] = {"published": published, "growing": protopnet.strength}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rates", default="1e-3,3e-3")
    parser.add_argument("--blackbox", default="3e-4", help="learning rate of the black box")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("results/protopnet.json"))
    ours, passed_on = ours_and_passed_on()
    options = parser.parse_args(ours)
    given = {name: read_value(value) for name, _, value in (each.partition("=") for each in passed_on)}
    settings = SETTINGS | given | {"weights": options.weights}
    seeds = [int(seed) for seed in options.seeds.split(",")]

    def accuracies(method: str, rate: str) -> list[float]:
        """Of the validation images, for every seed."""
        found = []
        for seed in seeds:
            chosen = settings | {"method": method, "lr": float(rate), "seed": seed}
            with tempfile.TemporaryDirectory() as folder, Talker() as talker:
                model = sic.fit(options.data, f"{folder}/model", reporter=talker, **chosen)
            found.append(round(model.config.figures["validation"]["accuracy"], 4))
        print(method, rate, found, flush=True)
        return found

    result: dict[str, Any] = {"command": as_typed(), "torch": torch.__version__, "seeds": seeds, "settings": settings}
    result["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    for kind, strength in KINDS.items():
        protopnet.strength = strength
        result[kind] = {rate: accuracies("protopnet", rate) for rate in options.rates.split(",")}
    result["blackbox"] = {options.blackbox: accuracies("blackbox", options.blackbox)}
    settings["weights"] = Path(options.weights).name
    record.add(options.out, {options.data.name: result})


if __name__ == "__main__":
    main()
