"""Measure the matches of a SIC model or a ProtoPNet on FunnyBirds, whose part maps are published for test images alone.

    python benchmarks/funnybirds_matches.py MODEL FUNNYBIRDS --limit 60

The cases of the model are replaced by test images: the first half of the test images of each class are the candidates,
and cases are chosen among them as after training; the prototypes of ProtoPNet become parts of them, as in its
training. The other half is measured. Prints one JSON object.
"""

import argparse
import copy
import json
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F

import sic
import sic.data
from sic.data.dataset import Sample
from sic.data.images import read_image
from sic.data.loading import view_batches
from sic.evaluate.matches import matches
from sic.methods import SIC, Classifier, ProtoPNet, device_of
from sic.methods.protopnet import part_box
from sic.model import Model
from sic.run import spread
from sic.supports import Support, select_how

BATCH = 64


def halves(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The first half of the images of each class, and the second half."""
    by_class: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_class[sample.labels[0]].append(sample)
    first = [sample for own in by_class.values() for sample in own[: len(own) // 2]]
    return first, [sample for own in by_class.values() for sample in own[len(own) // 2 :]]


def with_cases(model: Model, candidates: list[Sample]) -> Model:
    """The model with cases among the candidates, in a copy: prototypes of ProtoPNet become parts of these."""
    classifier, view = copy.deepcopy(model.classifier), model.config.preprocessing
    boxes: list[tuple[int, int, int, int]] | list[None]
    if isinstance(classifier, ProtoPNet):
        labels = torch.tensor([sample.labels[0] for sample in candidates], device=device_of(classifier))
        allowed = F.one_hot(labels, classifier.classes).bool().split(BATCH)
        views = view_batches([sample.path for sample in candidates], view, BATCH, labels.device)
        sources = classifier.project(zip(views, allowed, strict=True)).tolist()
        rows, classes = [source[0] for source in sources], classifier.support_labels
        boxes = [part_box(source, view.size) for source in sources]
    else:
        rows, classes = choose(model, candidates, classifier)
        boxes = [None] * len(rows)
    supports = [
        Support(label, candidates[row].id, np.asarray(view(read_image(candidates[row].path))), box)
        for label, row, box in zip(classes, rows, boxes, strict=True)
    ]
    return Model(classifier, model.config, supports)


def choose(model: Model, candidates: list[Sample], classifier: Classifier) -> tuple[list[int], list[int]]:
    """Rows and classes of the cases of a SIC model, chosen as after training; `classifier` gets their vectors."""
    assert isinstance(classifier, SIC)
    latents = model.embed_samples(candidates).of([sample.id for sample in candidates]).numpy()
    members = {
        label: [row for row, sample in enumerate(candidates) if sample.labels[0] == label]
        for label in range(len(model.classes))
    }
    chosen = select_how("nearest", latents, members, len(model.supports) // len(model.classes))
    classifier.set_supports(torch.from_numpy(chosen.vectors), torch.from_numpy(chosen.classes))
    return chosen.rows.tolist(), chosen.classes.tolist()


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
