"""How many images per second are explained with matches? The shipped network on random pictures.

    PYTHONPATH=src python3 benchmarks/explain_matches.py [--size 160] [--out results/matches_speed.json]

Random pictures and cases cost the same as photographs. Needs no data and no network. Outlines are not drawn: a figure
computes them when it is saved. Reports the largest gap between an explanation and the sum of its parts, too.
"""

import argparse
import statistics
import time
from pathlib import Path

import record
import torch
import torch.nn.functional as F
from command import as_typed
from torch import Tensor

from sic.backbones.distilled import PHOTOS
from sic.backbones.weights import loader
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.explain import images_at_once
from sic.machines import exact_arithmetic
from sic.methods import SIC
from sic.model import Model
from sic.supports import Support

SUPPORTS = 3


def pictures(number: int, size: int, seed: int) -> Tensor:
    """Random blots, N×3×S×S, as stored in 8 bits."""
    coarse = torch.rand(number, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    return (F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1) * 255).round() / 255


@torch.no_grad()
def untrained(backbone: str, weights: str | None, classes: int, size: int, device: str) -> Model:
    """A model whose cases are random pictures; the projection starts as in a fit on a frozen network."""
    names = [f"class {c}" for c in range(classes)]
    config = Config(backbone, names, "single", Preprocessing(size, size), SUPPORTS, 1.0, form="bcosified")
    load = None if weights is None else loader(weights, backbone, "bcosified")
    classifier = build(config, classes * SUPPORTS, load=load).to(device).eval()
    assert isinstance(classifier, SIC)
    views = pictures(classes * SUPPORTS, size, seed=1).to(device)
    features = torch.cat([classifier.encoder.features(batch) for batch in views.split(16)])
    projection = classifier.encoder.projection.weight
    rows = torch.arange(len(projection), device=device) % len(features)
    noise = torch.randn(projection.shape, generator=torch.Generator().manual_seed(0)).to(device)
    projection.copy_(F.normalize(features[rows] - features.mean(0) + 0.1 * features.std() * noise, dim=1))
    latents = classifier.encoder.project(features)
    labels = torch.arange(len(views), device=device) // SUPPORTS
    classifier.set_supports(latents, labels)
    classifier.temperature = float(latents.norm(dim=1).mean()) / 2
    pixels = (views * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    supports = [Support(label, f"{n}.png", pixels[n]) for n, label in enumerate(labels.tolist())]
    return Model(classifier, config, supports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet50_smooth")
    parser.add_argument("--weights", default=PHOTOS, help="'none' for random weights")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--classes", type=int, default=37)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/matches_speed.json"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact_arithmetic()
    torch.manual_seed(0)
    weights = None if options.weights == "none" else options.weights
    model = untrained(options.backbone, weights, options.classes, options.size, device)
    images = pictures(options.images, options.size, seed=2).to(device)
    seconds, gap, matches = [], 0.0, 0
    for turn in range(options.rounds + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for explanation in model.explain_many(images, matches=True):
            if turn == 0:  # the first round warms up
                matches += sum(len(each.groups) for each in explanation.matches.values())
                for explained in explanation.classes:
                    parts = [part.evidence for part in explained.matches.parts] if explained.matches else []
                    gap = max(gap, abs(sum(parts) + explanation.bias - explained.logit) / max(1, abs(explained.logit)))
        if device == "cuda":
            torch.cuda.synchronize()
        if turn > 0:
            seconds.append(time.perf_counter() - start)
    content = {
        "images_per_s": options.images / statistics.median(seconds),
        "seconds": seconds,
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "backbone": options.backbone,
        "weights": options.weights,
        "size": options.size,
        "classes": options.classes,
        "images": options.images,
        "images_at_once": images_at_once(model.classifier, images[0], 1 + SUPPORTS),
        "matches_per_case": matches / options.images / SUPPORTS,
        "largest_relative_gap": gap,
    }
    print(f"{content['images_per_s']:.2f} images/s with matches; sums off by at most {gap:.1e}")
    record.add(options.out, {f"{options.backbone}_{options.size}": content})


if __name__ == "__main__":
    main()
