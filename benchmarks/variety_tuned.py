"""Do penalties and local units help fine-tuning? Fits of the whole network with the published loss, and with them.

    python benchmarks/variety_tuned.py DATA --runs runs/tuned [--weights photos-small] [--size 128] [--epochs 6]

DATA has class folders in `train` and `test`; choose breeds that no reported figure uses, since settings are chosen by
this. For each variant: the figures of benchmarks/variety_frozen.py on the test images, and the share of the positive
contributions that lies in the cell of the class, in grids of images that the model answers right. Finished fits are not
trained again. Writes results/tuned.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import record
import torch
from command import as_typed
from variety_frozen import POOLED, PUBLISHED, figures, maps

import sic
from sic.backbones.distilled import PHOTOS_SMALL
from sic.data import open as open_data
from sic.directory import CONFIG
from sic.distill.examination import Examination
from sic.distill.images import decode
from sic.settings import RECIPES

TUNED = RECIPES["tuned"]
TRAINING = {name: getattr(TUNED, name) for name in ("lr", "batch_size", "clip", "augmentation")}
VARIANTS = {
    "published": replace(PUBLISHED, **TRAINING),
    "pooled": replace(POOLED, **TRAINING),
    "local": TUNED,
}
GRIDS = {2: 25, 3: 12}
"""Grids by the images along a side."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--weights", default=PHOTOS_SMALL)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("results/tuned.json"))
    options = parser.parse_args()
    samples = open_data(options.data).splits["test"]
    files, labels = [sample.path for sample in samples], torch.tensor([sample.labels[0] for sample in samples])
    settings = {"weights": options.weights, "size": options.size, "lr": options.lr, "batch_size": 32}
    epochs = {"epochs": options.epochs, "check_every": options.epochs}
    found = {}
    for name in options.variants:
        RECIPES["tuned"] = VARIANTS[name]
        folder = options.runs / name
        if not (folder / CONFIG).is_file():
            sic.fit(options.data / "train", folder, recipe="tuned", seed=0, workers=0, **settings, **epochs)
        model = sic.load(folder)
        preprocessing = model.config.preprocessing
        features = torch.from_numpy(maps(model.classifier.backbone, files, preprocessing)).float()
        if not model.sic.encoder.local:
            features = features.mean(dim=1)
        examination = Examination(decode(files, preprocessing, workers=0)[0], labels)
        right = examination.answers(model.classifier).argmax(dim=1) == labels
        found[name] = {**figures(model.sic, features, labels), "best_epoch": model.config.training["best_epoch"]}
        for side, number in GRIDS.items():
            shares = examination.point({name: model.classifier}, right, side=side, grids=number)
            found[name][f"grid_{side}x{side}"] = shares and shares[name]["raw"]
        print(name, found[name], flush=True)
    record.add(options.out, {"command": as_typed(), "variants": found})


if __name__ == "__main__":
    main()
