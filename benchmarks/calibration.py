"""Can probabilities be taken at their word, and does the promise hold? On photographs that a model has not seen.

    python benchmarks/calibration.py MODEL=TEST/ [MODEL=TEST/ ...] [--draws 1000] [--out results/calibration.json]

For each model: the calibration error of the answers on the test images, and the Brier score of all classes, with the
probabilities as trained (`before`), as calibrated on its validation images (`after`), and as calibrated with one
threshold for all classes (`one_threshold`), the mistakes that are stated with more than 95 %, and what its promise
covers there.

The promise of one model on one set of images can hold by luck. `draws`: the test images are taken for all images that
there are, so that the true share of wrong answers is known; the promise is sought on a number of them, drawn at random
with replacement. It may be broken in 5 % of the draws. Draws in which no threshold is found cannot break it.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from command import as_typed

import sic
from sic.calibration import WRONG, Calibration, promised
from sic.evaluate.accuracy import detailed_figures
from sic.predictions import Predictions

SURE = 0.95
HELD_OUT = (100, 300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL=TEST/")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/calibration.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {"models": []}
    everything: list[Predictions] = []
    for pair in options.models:
        folder, _, test = pair.partition("=")
        model, data = sic.load(folder), sic.data.open(test)
        predictions = model.predictions([sample for split in data.splits.values() for sample in split])
        everything.append(predictions)
        found["models"].append(examined(predictions, model.config.calibration))
        print(json.dumps(found["models"][-1], indent=1), flush=True)
    found["draws"] = {str(held_out): drawn(everything, held_out, options.draws) for held_out in HELD_OUT}
    print(json.dumps(found["draws"], indent=1))
    found["command"] = as_typed()
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def examined(predictions: Predictions, calibration: Calibration) -> dict[str, Any]:
    versions = {"before": Calibration(), "one_threshold": replace(calibration, others=None), "after": calibration}
    result: dict[str, Any] = {
        "images": len(predictions),
        "calibration": {"temperature": calibration.temperature, "threshold": calibration.threshold},
        "calibrated_on": calibration.images,
    }
    for name, each in versions.items():
        seen = replace(predictions, calibration=each)
        figures = detailed_figures(seen)
        sure = seen.probabilities.amax(1) > SURE
        result[name] = {
            "ece": figures["ece"],
            "brier": (seen.probabilities - predictions.targets).square().sum(dim=1).mean().item(),
            "sure_answers": int(sure.sum()),
            "sure_but_wrong": int((sure & ~seen.right).sum()),
            "headline": figures["headline"]["sentence"],
        }
    if calibration.promise is None:
        return result | {"promise": None}
    covered = calibration.promise.covers(predictions.confidence)
    return result | {"promise": {"answers": int(covered.sum()), "wrong": int((covered & ~predictions.right).sum())}}


def drawn(everything: list[Predictions], held_out: int, draws: int) -> dict[str, Any]:
    """The promise, sought on `held_out` random images and compared with the truth about all of them, many times."""
    generator = torch.Generator().manual_seed(0)
    made = broken = 0
    coverage: list[float] = []
    for number in range(draws):
        predictions = everything[number % len(everything)]
        known = torch.randint(len(predictions), (held_out,), generator=generator)
        promise = promised(predictions.confidence[known], predictions.right[known])
        if promise is not None:
            covered = promise.covers(predictions.confidence)
            wrong = int((covered & ~predictions.right).sum())
            made += 1
            coverage.append(covered.double().mean().item())
            broken += wrong > WRONG * int(covered.sum())
    covers = sum(coverage) / made if made else None
    return {"draws": draws, "promises": made, "broken": broken, "mean_coverage": covers}


if __name__ == "__main__":
    main()
