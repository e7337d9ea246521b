"""Which probabilities of the networks for photographs can be taken at their word: a softmax of the scores, or sigmoids?

    python benchmarks/photos_probabilities.py IMAGENET_VAL/ [--model photos] [--limit 500]

`IMAGENET_VAL` holds a folder for each class, in their order. Both are measured as they are and with a calibration
(softmax: a temperature; sigmoids: a temperature and a threshold) that is fitted on one half of the images and measured
on the other, over `--splits` random halves. All figures are about the most probable class: `ece`, `brier` and
`log_loss` compare its probability with whether it is right; `answered` is how often it reaches 50 %.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from command import as_typed
from torch import Tensor

import sic
from sic.calibration import Calibration, calibrated
from sic.distill.examination import Examination
from sic.evaluate.accuracy import expected_error, reliability
from sic.settings import Loss

READINGS: dict[str, Loss] = {"softmax": "ce", "sigmoid": "bce"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="photos")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/photos_probabilities.json"))
    options = parser.parse_args()
    model = sic.load(options.model)
    found = Examination.read(options.images, len(model.classes), workers=2)
    chosen = torch.randperm(len(found.labels), generator=torch.Generator().manual_seed(0))[: options.limit]
    labels = found.labels[chosen]
    with torch.inference_mode():
        batches = found.pixels[chosen].split(25)
        logits = torch.cat([model.classifier(batch.float() / 255) for batch in batches]).double()
    targets = torch.nn.functional.one_hot(labels, logits.shape[1]).double()
    measured: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    generator = torch.Generator().manual_seed(0)
    for _ in range(options.splits):
        halves = torch.randperm(len(labels), generator=generator).chunk(2)
        for known, new in (halves, halves[::-1]):
            for name, loss in READINGS.items():
                fitted = calibrated(logits[known], targets[known], loss, single=True)
                for which, calibration in {name: Calibration(), f"{name}, calibrated": fitted}.items():
                    for key, value in figures(calibration.probabilities(logits[new], loss), labels[new]).items():
                        measured[which][key].append(value)
    result = {
        "images": len(labels),
        "top1": (logits.argmax(1) == labels).double().mean().item(),
        **{name: {key: statistics.mean(values) for key, values in each.items()} for name, each in measured.items()},
        "command": as_typed(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def figures(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    stated, answers = probabilities.max(1)
    right = (answers == labels).double()
    return {
        "ece": expected_error(reliability(stated, right)),
        "brier": (stated - right).square().mean().item(),
        "log_loss": torch.nn.functional.binary_cross_entropy(stated, right).item(),
        "answered": (stated >= 0.5).double().mean().item(),
    }


if __name__ == "__main__":
    main()
