"""Measure the matches of a SIC model on FunnyBirds, whose part maps are published for test images alone.

    python benchmarks/funnybirds_matches.py MODEL FUNNYBIRDS --limit 60

The cases of the model are replaced by test images: the first half of the test images of each class are the candidates,
and cases are chosen among them as after training. The other half is measured. Prints one JSON object.
"""

import argparse
import json
from collections import defaultdict

import numpy as np
import torch

import sic
import sic.data
from sic.data.dataset import Sample
from sic.data.images import read_image
from sic.evaluate.matches import matches
from sic.model import Model
from sic.run import spread
from sic.supports import Support, select_how


def halves(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The first half of the images of each class, and the second half."""
    by_class: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_class[sample.labels[0]].append(sample)
    first = [sample for own in by_class.values() for sample in own[: len(own) // 2]]
    return first, [sample for own in by_class.values() for sample in own[len(own) // 2 :]]


def with_cases(model: Model, candidates: list[Sample]) -> Model:
    """The model with cases among the candidates."""
    latents = model.embed_samples(candidates).of([sample.id for sample in candidates]).numpy()
    members = {
        label: [row for row, sample in enumerate(candidates) if sample.labels[0] == label]
        for label in range(len(model.classes))
    }
    number = len(model.supports) // len(model.classes)
    chosen = select_how("nearest", latents, members, number)
    model.sic.set_supports(torch.from_numpy(chosen.vectors), torch.from_numpy(chosen.classes))
    samples = [candidates[row] for row in chosen.rows.tolist()]
    view = model.config.preprocessing
    supports = [
        Support(label, sample.id, np.asarray(view(read_image(sample.path))))
        for label, sample in zip(chosen.classes.tolist(), samples, strict=True)
    ]
    return Model(model.classifier, model.config, supports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=None, help="The most images to measure, spread evenly.")
    arguments = parser.parse_args()
    data = sic.data.open(arguments.data)
    candidates, others = halves(list(data.splits["test"]))
    model = with_cases(sic.load(arguments.model), candidates)
    measured = [others[place] for place in spread(len(others), arguments.limit)]
    found = matches(model, data, measured)
    accuracy = model.predictions(measured).quality["accuracy"]
    print(json.dumps({"images": len(measured), "accuracy": accuracy, "matches": found}, indent=1))


if __name__ == "__main__":
    main()
