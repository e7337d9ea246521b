"""Measure the networks for photographs: right answers, and how well their maps find an object in a grid of photos.

    python benchmarks/photos.py IMAGENET_VAL/ --teacher resnet50_v1 --weights keras-resnet50.safetensors \
        --student resnet50=photos.safetensors --out results/photos.json

`IMAGENET_VAL` holds a folder for each of the teacher's classes, in their order. Grids as in the B-cos papers: n×n
photos of different classes, all answered confidently by every network, each photo in one grid. The figure is the share
of the positive contributions to a class that lies in its cell. Smoothed maps are averaged over 15×15 pixels first.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.backbones import create
from sic.backbones.weights import loader
from sic.distill.examination import Examination
from sic.distilled_model import load_distilled
from sic.evaluate.localisation import cell_shares, composite
from sic.methods import BlackBox, Classifier

CONFIDENT = 0.5
SMOOTHING = 15
Explain = Callable[[Tensor, Tensor], Tensor]


def teacher(name: str, weights: str) -> BlackBox:
    """The conventional network with its classifier."""
    state = loader(weights, name, "conventional")
    head = state.classifier()
    if head is None:
        raise SystemExit(f"{weights} has no classifier.")
    classifier = BlackBox(create(name, "conventional", load=state), len(head[1]), loss="ce")
    with torch.no_grad():
        classifier.head.weight.copy_(head[0])
        classifier.head.bias.copy_(head[1])
    return classifier.eval()


@torch.inference_mode()
def answers(classifier: Classifier, images: Examination, device: torch.device) -> Tensor:
    """Probabilities N×C."""
    batches = images.pixels.split(50)
    return torch.cat([classifier.probabilities(classifier(each.to(device).float() / 255)).cpu() for each in batches])


def draw_grids(labels: Tensor, usable: Tensor, side: int, number: int, seed: int = 0) -> list[list[int]]:
    """Rows of n² positions of distinct classes, each position once."""
    rng = np.random.default_rng(seed)
    pools = {int(label): [] for label in labels.unique()}
    for position in rng.permutation(usable.nonzero().flatten().numpy()).tolist():
        pools[int(labels[position])].append(position)
    rows = []
    while len(rows) < number:
        # Classes with the most photos left first, so that as many grids as possible can be filled.
        left = sorted((label for label in pools if pools[label]), key=lambda c: (-len(pools[c]), rng.random()))
        if len(left) < side**2:
            break
        rows.append([pools[label].pop() for label in left[: side**2]])
    return rows


def pointing(
    explain: Explain, images: Examination, rows: list[list[int]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Shares in the right cell, n² of every grid: raw and smoothed."""
    side = int(len(rows[0]) ** 0.5)
    for row in rows:
        grid = composite(images.pixels[row].to(device).float() / 255)[None]
        maps = explain(grid, images.labels[row][None].to(device))[0]
        smooth = F.avg_pool2d(maps[:, None], SMOOTHING, 1, SMOOTHING // 2)[:, 0]
        yield cell_shares(maps, side).diagonal().cpu(), cell_shares(smooth, side).diagonal().cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--teacher", default="resnet50_v1")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--student", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--grids", type=int, default=500)
    parser.add_argument("--limit", type=int, help="use so many of the images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    networks: dict[str, Classifier] = {"teacher": teacher(options.teacher, options.weights).to(device)}
    for each in options.student:
        name, _, file = each.partition("=")
        networks[name] = load_distilled(Path(file), device)[0]
    found = Examination.read(options.images, networks["teacher"].classes, options.workers)
    if options.limit:
        kept = torch.randperm(len(found.labels), generator=torch.Generator().manual_seed(0))[: options.limit]
        found = Examination(found.pixels[kept], found.labels[kept])
    result: dict[str, object] = {"images": len(found.labels)}
    usable = torch.ones(len(found.labels), dtype=torch.bool)
    for name, classifier in networks.items():
        probabilities = answers(classifier, found, device)
        ranked = probabilities.topk(5).indices == found.labels[:, None]
        result[name] = {"top1": ranked[:, 0].float().mean().item(), "top5": ranked.any(1).float().mean().item()}
        usable &= ranked[:, 0] & (probabilities.amax(1) >= CONFIDENT)
        print(name, result[name], flush=True)
    ways: dict[str, Explain] = {}
    box = networks["teacher"]

    def posthoc(way: str) -> Explain:
        def explain(grid: Tensor, targets: Tensor) -> Tensor:
            box.explain_with(way)
            return box.explain(grid, targets).maps

        return explain

    for name, classifier in networks.items():
        if name != "teacher":
            ways[name] = lambda grid, targets, one=classifier: one.explain(grid, targets).maps
    ways["teacher_grad_cam"] = posthoc("grad-cam")
    ways["teacher_input_x_gradient"] = posthoc("input-x-gradient")
    for side in (2, 3):
        rows = draw_grids(found.labels, usable, side, options.grids)
        game: dict[str, object] = {"grids": len(rows), "chance": 1 / side**2}
        for name, explain in ways.items():
            began = time.monotonic()
            raw, smooth = (torch.stack(each) for each in zip(*pointing(explain, found, rows, device), strict=True))
            game[name] = {
                kind: {"share": each.mean().item(), "standard_error": (each.mean(1).std() / len(each) ** 0.5).item()}
                for kind, each in (("raw", raw), ("smoothed", smooth))
            }
            print(side, name, game[name], f"{time.monotonic() - began:.0f} s", flush=True)
        result[f"grid_{side}x{side}"] = game
    result["command"] = " ".join(["python", "benchmarks/photos.py", *sys.argv[1:]])
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
