"""Does ProtoPNet learn more where the cluster and separation costs come in during the first round than where they are
there from the first step, as published?

    python benchmarks/protopnet_costs.py DATA --weights FILE [--rates 1e-3,3e-3] [--seeds 0,1,2] [--frozen]
        [--keep FOLDER] [-- NAME=VALUE …]

Trains both kinds with the same images, steps, rates and seeds, and a black box beside them (with its own rate,
`--blackbox`). FILE: the weights of the conventional ResNet50 (benchmarks/keras_resnet50.py). Settings are given by
their names, such as epochs=12. `--frozen`: the network does not learn, and every image is embedded once, without
augmentation, which a CPU can do. Writes validation accuracy, by rate and seed, to results/protopnet.json, under the
name of DATA. Models stay in FOLDER, if it is given.

Without these weights, on the built-in birds, with a black box that has learnt them:

    sic train birds --method blackbox --backbone resnet_small --size 64 --epochs 20 --check-every 20 --out blackbox
    python benchmarks/protopnet_costs.py birds --weights blackbox --frozen -- backbone=resnet_small size=64
"""

import argparse
import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed, ours_and_passed_on
from torch import Tensor

import sic
from sic.backbones import Backbone
from sic.cli.console import Talker
from sic.cli.entries import read_setting
from sic.training import protopnet

SETTINGS: dict[str, Any] = {"size": 96, "fit": "squash", "batch_size": 32, "epochs": 12, "check_every": 4}
SETTINGS |= {"validation": 0.2, "augmentation": "affine", "backbone": "resnet50_v1"}


def published(epochs: float, begin: float, full: float) -> float:
    """All of the costs from the first step on."""
    return 1.0


KINDS: dict[str, Callable[[float, float, float], float]] = {"published": published, "growing": protopnet.strength}


def freeze_networks() -> None:
    """Embed every image once, in 16 bits; networks stay as they are. All of them must have the same weights."""
    embed, known = Backbone.feature_maps, dict[bytes, Tensor]()

    @torch.no_grad()
    def remembered(backbone: Backbone, prepared: Tensor) -> Tensor:
        keys = [hashlib.sha1(image.cpu().numpy().tobytes()).digest() for image in prepared]
        if new := [row for row, key in enumerate(keys) if key not in known]:
            learning = backbone.training
            found = embed(backbone.eval(), prepared[new]).bfloat16().cpu()
            backbone.train(learning)
            known.update(zip([keys[row] for row in new], found.unbind(), strict=True))
        return torch.stack([known[key] for key in keys]).to(prepared)

    def pooled(backbone: Backbone, prepared: Tensor) -> Tensor:
        return backbone.pool_maps(backbone.feature_maps(prepared))

    Backbone.feature_maps, Backbone.pooled = remembered, pooled  # type: ignore[assignment, method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rates", default="1e-3,3e-3")
    parser.add_argument("--blackbox", default="3e-4", help="learning rate of the black box")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/protopnet.json"))
    ours, passed_on = ours_and_passed_on()
    options = parser.parse_args(ours)
    given = {name: read_setting(name, value) for name, _, value in (each.partition("=") for each in passed_on)}
    settings = SETTINGS | ({"augmentation": "none"} if options.frozen else {}) | given | {"weights": options.weights}
    seeds = [int(seed) for seed in options.seeds.split(",")]

    if options.frozen:
        if settings["augmentation"] != "none":
            parser.error("--frozen goes with augmentation=none only: every image is embedded once")
        freeze_networks()

    def accuracies(name: str, method: str, rate: str) -> list[float]:
        """Of the validation images, for every seed."""
        found = []
        for seed in seeds:
            chosen = settings | {"method": method, "lr": float(rate), "seed": seed}
            with contextlib.ExitStack() as stack:
                folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                talker = stack.enter_context(Talker())
                model = sic.fit(options.data, folder / f"{name}-{rate}-{seed}", reporter=talker, **chosen)
            found.append(round(model.config.figures["validation"]["accuracy"], 4))
        print(name, rate, found, flush=True)
        return found

    result: dict[str, Any] = {"command": as_typed(), "torch": torch.__version__, "seeds": seeds, "settings": settings}
    result["frozen"] = options.frozen
    result["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    for kind, strength in KINDS.items():
        protopnet.strength = strength  # type: ignore[assignment]
        result[kind] = {rate: accuracies(kind, "protopnet", rate) for rate in options.rates.split(",")}
    result["blackbox"] = {options.blackbox: accuracies("blackbox", "blackbox", options.blackbox)}
    settings["weights"] = Path(options.weights).name
    record.add(options.out, {Path(options.data).name: result})


if __name__ == "__main__":
    main()
