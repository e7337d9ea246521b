"""How different are the supports of a class? Compare supports by k-means on latents with those by directions.

    python benchmarks/variety.py MODEL TRAIN TEST [--limit 120]

For images of TEST (its test images, if it has any) that the model answers right: the median ratio of the weakest to
the strongest evidence of the answer's supports, and the accuracy, with either selection of supports. The network stays
as it is. Prints JSON.
"""

import argparse
import json

import numpy as np
import torch

import sic
import sic.data
from sic.run import spread
from sic.supports import select_how


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--limit", type=int, default=120)
    options = parser.parse_args()
    model = sic.load(options.model)
    classifier = model.sic
    training = [s for s in sic.data.open(options.train).splits["train"] if len(s.labels) == 1]
    held_out = sic.data.open(options.test)
    images = held_out.splits.get("test") or held_out.splits["train"]
    images = [images[row] for row in spread(len(images), options.limit)]
    vectors = model.embed_samples(training, own=True).of([s.id for s in training])
    latents = model.embed_samples(images).of([s.id for s in images])
    truth = torch.tensor([s.labels[0] for s in images])
    candidates: dict[int, list[int]] = {}
    for row, sample in enumerate(training):
        candidates.setdefault(sample.labels[0], []).append(row)
    number = len(model.supports) // len(model.classes)
    found = {"model": options.model, "images": len(images), "training_images": len(training)}
    for how in ("nearest", "varied"):
        chosen = select_how(how, np.asarray(vectors, np.float32), candidates, number)
        classes = torch.from_numpy(chosen.classes)
        with torch.no_grad():
            evidence = classifier.evidence(latents, torch.from_numpy(chosen.vectors))
            logits = classifier.logits(evidence, classes)
        best = logits.argmax(dim=1)
        own = [evidence[n][classes == best[n]] for n in (best == truth).nonzero()[:, 0].tolist()]
        ratios = torch.stack([values.min() / values.max() for values in own])
        found[how] = {
            "weakest_to_strongest": ratios.median().item(),
            "accuracy": (best == truth).float().mean().item(),
            "similar_case": (logits.amax(dim=1) >= 0).float().mean().item(),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
