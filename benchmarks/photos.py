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
from pathlib import Path

import torch
from torch import Tensor

from sic.backbones import create
from sic.backbones.weights import loader
from sic.distill.examination import Examination
from sic.distilled_model import load_distilled
from sic.evaluate.localisation import GRIDS, Explain, confident, draw_grids, point_in_grids
from sic.methods import BlackBox, Classifier


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--teacher", default="resnet50_v1")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--student", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--grids", type=int, default=GRIDS)
    parser.add_argument("--sides", default="2,3", help="photos along a side of a grid")
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
        usable &= confident(probabilities, found.labels)
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
    for side in map(int, options.sides.split(",")):
        rows = draw_grids(found.labels, usable, side, options.grids)
        game: dict[str, object] = {"grids": len(rows), "chance": 1 / side**2}
        for name, explain in ways.items():
            began = time.monotonic()
            cells = (found.pixels[row].to(device).float() / 255 for row in rows)
            game[name] = point_in_grids(explain, cells, [found.labels[row].tolist() for row in rows])
            print(side, name, game[name], f"{time.monotonic() - began:.0f} s", flush=True)
        result[f"grid_{side}x{side}"] = game
    result["command"] = " ".join(["python", "benchmarks/photos.py", *sys.argv[1:]])
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
