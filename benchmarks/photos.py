"""Measure the networks for photographs: right answers, and how well their maps find an object in a grid of photos.

    python benchmarks/photos.py IMAGENET_VAL/ --teacher resnet50_v1 --weights keras-resnet50.safetensors \
        --student resnet50=photos.safetensors --out results/photos.json

`IMAGENET_VAL` holds a folder for each of the teacher's classes, in their order. Grids as in the B-cos papers: n×n
photos of different classes, all answered confidently by every network, each photo in one grid. The figure is the share
of the positive contributions to a class that lies in its cell. Smoothed maps are averaged over 15×15 pixels first.
Figures of an earlier run that are not measured again, such as grids of another size, stay in the file.
"""

import argparse
from pathlib import Path

import record
import torch
from command import as_typed

from sic.backbones.distilled import read_distilled
from sic.backbones.weights import loader
from sic.distill.examination import Examination
from sic.distill.teacher import load_teacher
from sic.distilled_model import load_distilled
from sic.evaluate.localisation import GRIDS, confident
from sic.methods import Classifier
from sic.methods.blackbox import GRAD_CAM, INPUT_X_GRADIENT


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
    teacher = load_teacher(options.teacher, loader(options.weights, options.teacher, "conventional")).to(device)
    if not teacher.classes:
        raise SystemExit(f"{options.weights} has no classifier.")
    files = {name: Path(file) for name, _, file in (each.partition("=") for each in options.student)}
    students: dict[str, Classifier] = {name: load_distilled(file, device)[0] for name, file in files.items()}
    posthoc = {
        "teacher_grad_cam": teacher.classifier(GRAD_CAM),
        "teacher_input_x_gradient": teacher.classifier(INPUT_X_GRADIENT),
    }
    found = Examination.read(options.images, teacher.classes, options.workers)
    if options.limit:
        kept = torch.randperm(len(found.labels), generator=torch.Generator().manual_seed(0))[: options.limit]
        found = Examination(found.pixels[kept], found.labels[kept])
    result: dict[str, object] = {
        "images": len(found.labels),
        "images_seen": {name: read_distilled(file).origin["seen"] for name, file in files.items()},
        "megabytes": round(sum(file.stat().st_size for file in files.values()) / 1e6, 1),
    }
    usable = torch.ones(len(found.labels), dtype=torch.bool)
    for name, classifier in {"teacher": posthoc["teacher_grad_cam"], **students}.items():
        answers = found.answers(classifier)
        result[name] = {"top1": found.top(answers), "top5": found.top(answers, 5)}
        usable &= confident(answers, found.labels)
        print(name, result[name], flush=True)
    for side in map(int, options.sides.split(",")):
        grid = found.point({**students, **posthoc}, usable, side=side, grids=options.grids)
        result[f"grid_{side}x{side}"] = grid and {**grid, "command": as_typed()}
        print(side, grid, flush=True)
    record.add(options.out, {**result, "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU"})


if __name__ == "__main__":
    main()
