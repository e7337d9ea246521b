"""The referee on real data: every method of the paper's tables, trained and measured by one `sic compare`.

    python benchmarks/rivals.py NAME DATA --weights FILE [--methods sic,blackbox:all] [--seeds 0] [-- more flags]
    python benchmarks/rivals.py birds birds

NAME: funnybirds, voc, chestxray, pets, dogs, cub, cub_whole or rsna. FILE: the conventional ResNet50 that the weights
for photographs were distilled from (benchmarks/keras_resnet50.py). Conventional methods start from it, SIC and B-cos
from the distilled network. On the built-in `birds`, all methods start from scratch, and a CPU is enough. Everything
that networks have in common is the same for all methods; BagNet has a network of its own, for which there are no
weights. More flags go to `sic compare`. Writes results/NAME.json, with one value per seed of each method and metric, or
the value itself where there is one seed; what says where maps lie also goes to results/localisation.json. What is
finished is not trained again. Learning rates come from results/tuning.json, if
benchmarks/tune.py has chosen them for the comparison (`tuned` names these methods). Others are alike for all methods,
but for ProtoPNet's, which is as published, for its new layers.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import record
import torch
from command import as_typed, ours_and_passed_on

from sic.backbones.distilled import PHOTOS
from sic.directory import read_config
from sic.evaluate.compare import Values, cell
from sic.evaluate.metrics import FUNNYBIRDS, METRICS
from sic.evaluate.plots import radar, save

METHODS = "sic,bcos,blackbox:all,nwhead,protopnet:all,bagnet"
"""All explanations of each method are in one table."""
PRETRAINED = ["--size", "160", "--fit", "squash", "--batch-size", "64", "--set", "sic:recipe=tuned"]
FINE = [
    *("--size", "224", "--fit", "squash", "--batch-size", "64", "--epochs", "24", "--check-every", "12"),
    *("--validation", "0.06", "--augmentation", "affine"),
    *("--set", "sic:recipe=tuned", "--set", "sic:support_source=bank"),
]
"""For 200 classes: three supports of each in every step would be several times the queries."""
DOGS = [
    *("--size", "224", "--fit", "crop", "--batch-size", "64", "--validation", "0.06", "--set", "sic:recipe=frozen"),
    *("--epochs", "12", "--check-every", "12", "--augmentation", "affine"),
    *("--set", "sic:epochs=", "--set", "sic:check_every=", "--set", "sic:augmentation="),
    *("--set", "blackbox:loss=ce", "--set", "blackbox:lr=3e-5", "--set", "blackbox:head_lr=9e-4"),
]
"""SIC's network was taught these breeds, and fine-tuning it gains nothing (results/many_classes.json)."""
BCOS, CONVENTIONAL = ("sic", "bcos"), ("blackbox", "nwhead", "protopnet")
"""Methods by the network that they start from."""
COMPARISONS: dict[str, list[str]] = {
    "birds": [
        *("--train", METHODS, "--size", "64", "--epochs", "20", "--check-every", "5"),
        *("--only", "accuracy,funnybirds,localisation"),
    ],
    # Rendered birds have little in common with photographs, so SIC trains the whole network from the start. Targets are
    # those of the framework's training script.
    "funnybirds": [
        *("--train", METHODS, "--size", "256", "--fit", "squash", "--batch-size", "128", "--epochs", "30"),
        *("--check-every", "15", "--validation", "0.05", "--augmentation", "affine", "--lr", "1e-3"),
        *("--ambiguous", "share"),
        *("--set", "sic:recipe=scratch", "--set", "sic:support_source=bank", "--set", "protopnet:lr=3e-3"),
        *("--only", "accuracy,funnybirds"),
    ],
    # The NW-Head is for one label per image.
    "voc": [
        *("--train", METHODS.replace("nwhead,", ""), *PRETRAINED, "--epochs", "12"),
        *("--augmentation", "photo", "--hold-out"),
        *("--only", "accuracy,localisation,frame,unfamiliar"),
    ],
    "chestxray": [
        *("--train", METHODS.replace(":all", ""), *PRETRAINED, "--epochs", "12"),
        *("--augmentation", "xray", "--group", r"person\d+_[a-z]+|(?:NORMAL2-)?IM-\d+"),
        *("--only", "accuracy,unfamiliar"),
    ],
    "pets": [
        *("--train", METHODS, *PRETRAINED, "--epochs", "12", "--augmentation", "photo"),
        *("--only", "accuracy,localisation,unfamiliar"),
    ],
    "dogs": ["--train", METHODS, *DOGS, "--only", "accuracy,localisation"],
    # As in the paper, birds are cropped to their boxes. Where maps lie is measured on whole images. With the black box
    # as a teacher, SIC gains 2 points on held-out images (results/cub.json).
    "cub": [
        *("--train", METHODS, *FINE, "--roi", "--only", "accuracy"),
        *("--set", "sic:lr=3e-4", "--set", "sic:teacher=blackbox"),
    ],
    "cub_whole": ["--train", METHODS, *FINE, "--only", "accuracy,localisation"],
    "rsna": [
        *("--train", "sic,bcos,blackbox:all", *PRETRAINED, "--epochs", "40", "--check-every", "4"),
        *("--augmentation", "affine", "--balance", "--set", "blackbox:loss=bce"),
        *("--only", "accuracy,localisation,frame"),
    ],
}  # fmt: skip
PLACES = tuple(key for key in METRICS if key.startswith(("grid_", "box_", "frame_")))
"""Metrics that say where maps lie."""
PUBLISHED = {
    "sic": (0.99, 0.99, 0.96, 0.98, 0.96, 0.97, 0.72, 0.95),
    "bcos": (0.96, 0.87, 0.93, 0.88, 0.94, 0.86, 0.69, 0.89),
    "protopnet:box": (0.94, 1.00, 0.93, 0.91, 0.92, 0.58, 0.24, 0.46),
    "bagnet": (1.00, 1.00, 0.95, 0.98, 0.91, 0.91, 0.76, 0.99),
    "blackbox:input-x-gradient": (0.998, 0.998, 0.735, 0.602, 0.532, 0.544, 0.546, 0.806),
}
"""The FunnyBirds metrics of ResNet50 in the paper (of the black box: in the framework's README), by the row of our
table that they belong to: ProtoPNet's are those of its boxes."""


def published() -> dict[str, dict[str, float]]:
    """`PUBLISHED` by metric, with completeness by the framework's formula."""
    result = {}
    for method, values in PUBLISHED.items():
        found = dict(zip((one.key for one in FUNNYBIRDS), values, strict=True))
        com = (sum(found[key] for key in ("CSDC", "PC", "DC")) / 3 + found["D"]) / 2
        result[method] = found | {"Com": round(com, 3)}
    return result


def start_of(method: str, weights: str) -> dict[str, str]:
    """The settings that let a method start from its network for photographs."""
    if method in BCOS:
        return {"weights": PHOTOS}
    if method in CONVENTIONAL:
        return {"weights": weights, "backbone": "resnet50_v1"}
    return {}


def without_attributions(methods: str) -> list[str]:
    """The methods that a list of METHOD or METHOD:ATTRIBUTION names, each once."""
    return sorted({each.partition(":")[0] for each in methods.split(",")})


def starts(methods: str, weights: str) -> list[str]:
    """The settings of `start_of` as flags, for all of the methods."""
    names = without_attributions(methods)
    settings = [f"{name}:{key}={value}" for name in names for key, value in start_of(name, weights).items()]
    return [part for setting in settings for part in ("--set", setting)]


def without_others(flags: list[str], methods: str) -> list[str]:
    """Flags without the settings of methods that are not among `methods`."""
    trained, result = without_attributions(methods), list[str]()
    for flag in flags:
        if result and result[-1] == "--set" and flag.partition(":")[0] not in trained:
            result.pop()
        else:
            result.append(flag)
    return result


def tuned(name: str, out: Path, flags: list[str]) -> list[str]:
    """The learning rates that benchmarks/tune.py chose for this comparison, as flags."""
    file = out / "tuning.json"
    choices = json.loads(file.read_text()).get(name, {"methods": {}}) if file.is_file() else {"methods": {}}
    trained = without_attributions(flags[flags.index("--train") + 1])
    chosen = {method: found["lr"] for method, found in choices["methods"].items() if method in trained}
    return [part for method, lr in chosen.items() for part in ("--set", f"{method}:lr={lr}")]


def as_the_paper(values: Values) -> Values:
    """FunnyBirds by the opacity of colour pictures where a method has them; by signed maps as `…_contributions`."""
    plain = {key: found for key, found in values.items() if not key.endswith("_alpha")}
    colour = {key: values[f"{key}_alpha"] for key in plain if f"{key}_alpha" in values}
    if all(value is None for found in colour.values() for value in found):
        return plain
    return plain | colour | {f"{key}_contributions": plain[key] for key in colour}


def details(runs: Path, folders: Iterable[str], check: str) -> dict[str, Any]:
    """All that a check found of each model, beside the table's figures: chance, number of images, curves.

    Curves of maps without a model would be most of the file; they are left out. A check leaves out models that it
    cannot measure, such as grids of a model with too few confident answers.
    """
    now = {read_config(Path(folder))[1][:8] for folder in folders}
    named = [(*file.stem.rpartition("-"), file) for file in sorted((runs / "results").glob("*.json"))]
    found = {model: json.loads(file.read_text())["result"] for model, _, checksum, file in named if checksum in now}
    measured = {model: result[check] for model, result in found.items() if check in result}
    for each in measured.values():
        for baseline in each.get("baselines", {}).values():
            baseline.pop("curves", None)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("data")
    parser.add_argument("--weights", help="of the conventional ResNet50")
    parser.add_argument("--methods", help="only these")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, default=Path("runs/rivals"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    ours, passed_on = ours_and_passed_on()
    arguments = parser.parse_args(ours)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name, runs = arguments.name, arguments.runs / arguments.name
    if (arguments.weights is None) != (name == "birds"):
        parser.error("--weights is for all comparisons but birds")
    flags = list(COMPARISONS[name])
    place = flags.index("--train") + 1
    flags[place] = arguments.methods or flags[place]
    flags = without_others(flags, flags[place])
    rates = tuned(name, arguments.out, flags)
    flags += [*rates, *passed_on]
    if arguments.weights:
        flags += starts(flags[place], arguments.weights)
    command = ["compare", "--data", arguments.data, "--seeds", arguments.seeds, *flags, "--out", str(runs), "--json"]
    done = subprocess.run([sys.executable, "-m", "sic", *command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    report: dict[str, Any] = json.loads(done.stdout)
    every = {method: as_the_paper(values) for method, values in report["methods"].items()}
    methods = {
        method: {key: found[0] if len(found) == 1 else found for key, found in values.items()}
        for method, values in every.items()
    }
    if name == "funnybirds":
        rings = {
            method: {one.key: cell(values[one.key]).mean for one in FUNNYBIRDS} for method, values in every.items()
        }
        note = "sic and bcos: opacity of colour pictures"
        save(radar(rings, FUNNYBIRDS, "FunnyBirds", note), arguments.out / "funnybirds.png")
    content = {
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "measured_on": report["data"],
        "seeds": next(iter(report["seeds"].values())),
        "tuned": [rate.partition(":")[0] for rate in rates[1::2]],
        "settings": {method: read_config(Path(first))[0].training for method, (first, *_) in report["runs"].items()},
        "methods": methods,
    }
    folders = [folder for several in report["runs"].values() for folder in several]
    if name == "funnybirds":
        content["published"] = published()
    if any("Com" in values for values in methods.values()):
        content["details"] = details(runs, folders, "funnybirds")
    (arguments.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    where = {method: {key: values[key] for key in PLACES if key in values} for method, values in methods.items()}
    if any(where.values()):
        places = {"command": content["command"], "methods": where, "details": details(runs, folders, "localisation")}
        record.add(arguments.out / "localisation.json", {name: places})
    print((runs / "comparison.md").read_text())


if __name__ == "__main__":
    main()
