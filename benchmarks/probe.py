"""Linear probes: logistic regression on the pooled features of frozen networks, on a dataset with class folders.

    python benchmarks/probe.py pets DATA --weights keras-resnet50.safetensors --size 160 [--seeds 0,1,2]

Features of the conventional network (`teacher`) and of the weights for photographs (`photos`). Each seed holds out
other training images, on which the strength of the regularisation is chosen; then all training images are used. Adds
the shares of right test answers to results/probe.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from command import as_typed
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sic.backbones import Backbone, create
from sic.backbones.distilled import PHOTOS
from sic.backbones.weights import loader
from sic.data import open as open_data
from sic.data.images import Preprocessing
from sic.data.loading import view_batches

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""C of the logistic regression."""


@torch.inference_mode()
def features(network: Backbone, paths: list[Path], preprocessing: Preprocessing) -> np.ndarray:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = network.to(device).eval()
    return torch.cat([network(views).cpu() for views in view_batches(paths, preprocessing, 64, device)]).numpy()


def probe(train: np.ndarray, labels: np.ndarray, test: np.ndarray, right: np.ndarray, seed: int) -> dict[str, float]:
    """The chosen strength, and the share of right test answers."""

    def fitted(x: np.ndarray, y: np.ndarray, strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300)).fit(x, y)

    shown, held_out, own, others = train_test_split(train, labels, test_size=0.15, random_state=seed, stratify=labels)
    scores = [fitted(shown, own, strength).score(held_out, others) for strength in STRENGTHS]
    best = STRENGTHS[int(np.argmax(scores))]
    return {"C": best, "accuracy": float(fitted(train, labels, best).score(test, right))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", required=True, help="of the conventional ResNet50")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("results/probe.json"))
    options = parser.parse_args()
    data = open_data(options.data)
    networks = {
        "teacher": create("resnet50_v1", "conventional", load=loader(options.weights, "resnet50_v1", "conventional")),
        PHOTOS: create("resnet50_smooth", "bcosified", load=loader(PHOTOS, "resnet50_smooth", "bcosified")),
    }
    splits = {split: data.splits[split] for split in ("train", "test")}
    labels = {split: np.array([sample.labels[0] for sample in samples]) for split, samples in splits.items()}
    view = Preprocessing(options.size, options.size, "squash")
    found: dict[str, object] = {"command": as_typed(), "images": {split: len(each) for split, each in splits.items()}}
    for name, network in networks.items():
        own = {split: features(network, [one.path for one in each], view) for split, each in splits.items()}
        results = [
            probe(own["train"], labels["train"], own["test"], labels["test"], int(seed))
            for seed in options.seeds.split(",")
        ]
        found[name] = {key: [result[key] for result in results] for key in ("C", "accuracy")}
        print(name, found[name], flush=True)
    record.add(options.out, {options.name: found})


if __name__ == "__main__":
    main()
