"""What keeps a model below the paper's figures on FunnyBirds: what test images do not show, and what maps mark in vain.

    python benchmarks/funnybirds_limits.py DATA MODEL… [--table results/funnybirds.json]

Of the test images: in how many the parts that can be seen fit several species, whether anything changes in these
pictures when the hidden parts are taken away, and what accuracy is then to be expected of those who know all species
and guess where they must. Of each model: its errors in these and in the other images, by the parts that tell the own
species from the answer; and what explanations mark at the threshold of their method in the table although the score
does not need it, by kind of thing. Writes results/funnybirds_limits.json.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import as_typed
from numpy.typing import NDArray

from sic.cli.console import Talker
from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.images import read_image
from sic.data.layouts.funnybirds import class_parts, open_funnybirds, part_map, without_parts
from sic.evaluate.funnybirds import WITHOUT_ONE, matters
from sic.evaluate.interventions import COLOURS, TestBirds, colour_numbers
from sic.model import load

RESULTS = Path("results")


def pixels(path: Path) -> NDArray[np.uint8]:
    return np.asarray(read_image(path))


def visible_pixels(root: Path, samples: list[Sample]) -> NDArray[np.int64]:
    """N×P: how many pixels each part has in each image."""
    found = np.zeros((len(samples), len(PARTS)), np.int64)
    for row, sample in enumerate(samples):
        colours = np.bincount(colour_numbers(pixels(part_map(root, sample))).ravel(), minlength=len(COLOURS) + 1)
        for number, (part, _) in enumerate(COLOURS, 1):
            found[row, part] += colours[number]
    return found


def unchanged(root: Path, sample: Sample, hidden: set[str]) -> bool:
    """Whether the image without its hidden parts is the same, pixel by pixel."""
    return bool((pixels(sample.path) == pixels(without_parts(root, sample, hidden))).all())


def errors_of(birds: TestBirds, seen: NDArray[np.int64], fitting: NDArray[np.int64], species: Any) -> dict[str, Any]:
    """How many answers are wrong, where, and in which parts the answer differs from the own species."""
    answers = birds.logits.argmax(1)
    wrong, tail = answers != birds.labels, PARTS.index("tail")
    differ = species[birds.labels] != species[answers]
    return {
        "wrong": int(wrong.sum()),
        "wrong_where_several_species_fit": int((wrong & (fitting > 1)).sum()),
        "accuracy_where_one_fits": float(1 - wrong[fitting == 1].mean()),
        "wrong_by_parts": Counter(" ".join(np.array(PARTS)[row]) for row in differ[wrong]),
        "tail_pixels_where_tails_are_confused": sorted(seen[wrong & differ[:, tail], tail].tolist()),
    }


def marked_in_vain(birds: TestBirds, thresholds: dict[str, float]) -> dict[str, Any]:
    """By kind of map: of the things that the score does not need, how many are marked, and where the map's mass is."""
    every, found = np.arange(len(birds.samples)), {}
    explanations = birds.explain(birds.labels[:, None])
    birds.intervene({(image, code) for image in every.tolist() for code in WITHOUT_ONE})
    own = birds.logits[every, birds.labels]
    single = birds.kept[:, WITHOUT_ONE][every, :, birds.labels]
    for kind in thresholds:
        e = explanations[kind]
        parts, objects, total = e.parts[:, 0], e.objects[:, 0], e.total[:, 0]
        not_needed, marked = Counter[str](), Counter[str]()
        for row, without in enumerate(birds.without):
            names = np.array([*PARTS, *["objects"] * len(without)])
            idle = ~matters(own[row], np.concatenate([single[row], without]))
            importance = np.concatenate([parts[row], objects[row, : len(without)]])
            not_needed.update(names[idle].tolist())
            marked.update(names[idle & (importance > thresholds[kind] * total[row])].tolist())
        found[kind] = {
            "threshold": thresholds[kind],
            "things": {name: {"not_needed": not_needed[name], "marked": marked[name]} for name in (*PARTS, "objects")},
            "mass": {"parts": (parts.sum(1) / total).mean(), "objects": (objects.sum(1) / total).mean()},
        }
    return found


def of_seed(values: Any, seed: int) -> Any:
    """A figure of the table, which has one for every seed if there are several."""
    return values[seed] if isinstance(values, list) else values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--table", type=Path, default=RESULTS / "funnybirds.json")
    arguments = parser.parse_args()
    root, species = arguments.data, np.array(class_parts(arguments.data))
    samples = open_funnybirds(root).splits["test"]
    labels = np.array([sample.labels[0] for sample in samples])
    seen = visible_pixels(root, samples)
    fitting = ((species == species[labels][:, None]) | (seen == 0)[:, None]).all(2).sum(1)
    several = np.flatnonzero(fitting > 1).tolist()
    hidden = {row: {part for part, count in zip(PARTS, seen[row], strict=True) if not count} for row in several}
    content: dict[str, Any] = {
        "command": as_typed(),
        "torch": torch.__version__,
        "images": len(samples),
        "several_species_fit": len(several),
        "unchanged_without_hidden_parts": sum(unchanged(root, samples[row], hidden[row]) for row in several),
        "expected_accuracy_of_the_best_guess": float((1 / fitting).mean()),
        "hidden": dict(zip(PARTS, (seen == 0).sum(0).tolist(), strict=True)),
        "models": {},
    }
    measured = json.loads(arguments.table.read_text())["methods"]
    with Talker() as talker:
        for folder in arguments.models:
            model = load(folder)
            method = model.config.method
            birds = TestBirds(model.classifier, root, samples, model.config.preprocessing, talker.advance)
            seed = model.config.training["seed"]
            plain, other = (of_seed(measured[method].get(f"threshold{kind}"), seed) for kind in ("", "_contributions"))
            thresholds = {"contributions": plain} if other is None else {"contributions": other, "alpha": plain}
            errors = errors_of(birds, seen, fitting, species)
            content["models"][method] = errors | {"maps": marked_in_vain(birds, thresholds)}
    (RESULTS / "funnybirds_limits.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
