"""Trying the model on labelled images: which ones, and what it said about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import ImageData, Sample
from sic.errors import SicError
from sic.evaluate.accuracy import accuracy_figures
from sic.explain import Latents
from sic.model import Model

CHOSEN_ON = "The model was chosen among others by how well it did on these very images, so they flatter it."
SEEN = "The model may have been trained on these images: this says little about images that it has not seen."


@dataclass(frozen=True)
class Trial:
    """Images that the model was tried on, and what it said."""

    name: str
    """For people: which images of which data."""
    caution: str | None
    """What keeps these images from being a fair test."""
    samples: list[Sample]
    latents: Latents
    logits: Tensor
    """n×C."""
    figures: dict[str, Any]
    """As of `accuracy_figures`."""


def held_out(
    data: ImageData, classes: Sequence[str], validation: Sequence[str]
) -> tuple[str, str | None, list[Sample]]:
    """The fairest images at hand: name, caution and samples, labelled with the model's `classes`.

    Test images; else validation images (`validation`: ids that the training held out itself); else all there are.
    """
    known = set(validation)
    everything = [sample for samples in data.splits.values() for sample in samples]
    own = [sample for sample in everything if sample.id in known]
    choices = [
        ("test images", None, data.splits.get("test", [])),
        ("validation images", CHOSEN_ON, data.splits.get("val", []) or own),
        ("images", SEEN, everything),
    ]
    name, caution, samples = next(choice for choice in choices if choice[2])
    return f"{name} of {data.name}", caution, _relabelled(samples, data, classes)


def _relabelled(samples: Sequence[Sample], data: ImageData, classes: Sequence[str]) -> list[Sample]:
    """Labels as the model numbers its classes; samples with a class that it does not know are left out."""
    if list(data.classes) == list(classes):
        return list(samples)
    numbers = {name: number for number, name in enumerate(classes)}
    names = data.classes
    result = []
    for sample in samples:
        boxes = tuple(replace(b, label=numbers[names[b.label]]) for b in sample.boxes if names[b.label] in numbers)
        if all(names[label] in numbers for label in sample.labels):
            labels = tuple(numbers[names[label]] for label in sample.labels)
            result.append(replace(sample, labels=labels, boxes=boxes))
    if not result:
        raise SicError(
            f"{data.root} shows none of the model's classes ({', '.join(classes[:5])}, …), but {', '.join(names[:5])}; "
            "give data with the names that the model was trained with."
        )
    return result


@torch.no_grad()
def attempt(model: Model, samples: list[Sample], name: str, caution: str | None = None) -> Trial:
    """Run the model over readable samples, once."""
    latents = model.embed(samples)
    logits = model.classifier.logits(model.classifier.evidence(latents.vectors)).cpu()
    figures = accuracy_figures(logits, samples, model.config.task, model.classes)
    return Trial(name, caution, samples, latents, logits, figures)
