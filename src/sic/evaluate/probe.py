"""One image, and what several checks ask about it."""

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from sic.evaluate.reference import Reference
from sic.methods import Classifier, Contributions

OUTPUTS = 16
"""Explained classes per image, at most: there may be thousands."""
PROBES = 8
"""Images that all checks look at, at most; completeness and deletion look at more."""


def explained(classifier: Classifier, images: Tensor, targets: Tensor, weights: bool = True) -> Contributions:
    """The explanation that users get: `Model.explain` takes the same path."""
    return classifier.answered(images).explain(targets, weights)


def some_classes(logits: Tensor, generator: torch.Generator) -> Tensor:
    """The class with the highest logit of each image and random others, N×K with at most `OUTPUTS`."""
    best = logits.argmax(dim=1).cpu()
    order = torch.randperm(logits.shape[1], generator=generator)
    rows = [torch.cat([one, order[order != one]])[:OUTPUTS] for one in best.split(1)]
    return torch.stack(rows).to(logits.device)


def seen_through(classifier: Classifier, change: Callable[[Tensor], Tensor]) -> Classifier:
    """A copy of the classifier, with the same weights; its network sees the encoded images after a linear `change`."""
    twin = copy.deepcopy(classifier, {id(value): value for value in (*classifier.parameters(), *classifier.buffers())})
    prepared = twin.backbone.prepared
    twin.backbone.prepared = lambda images: change(prepared(images))  # type: ignore[method-assign]
    return twin


class Said:
    """What a classifier says about images N×3×H×W, in its own precision."""

    def __init__(self, classifier: Classifier, images: Tensor) -> None:
        self.classifier, self.images = classifier, images

    @cached_property
    def logits(self) -> Tensor:
        """N×C, of a forward pass, not of explanation mode."""
        with torch.no_grad():
            return self.classifier(self.images)


class Probe:
    """One image. What several checks ask about it is computed once, here.

    The answers and the linearised network hold the activations of all layers in double precision (of a ResNet50 at 224
    pixels half a gigabyte each), so only one probe is alive at a time.
    """

    def __init__(self, single: Classifier, double: Classifier, image: Tensor, generator: torch.Generator) -> None:
        """`image`: 1×3×H×W; `generator` picks the classes that are explained beside the predicted one."""
        self.single, self.double = Said(single, image.float()), Said(double, image.double())
        self.targets = some_classes(self.double.logits, generator)
        """1×K, the predicted class first."""
        self.answered = double.answered(self.double.images)
        """What explanations are made from; holds the graph for backward passes."""
        self.in_double = self.answered.explain(self.targets)
        """Explanations of `targets`, with weights."""
        self.in_single = explained(single, self.single.images, self.targets)
        self.reference = Reference(double, self.double.images[0])
        """The linearised network, which they are compared with."""

    @property
    def best(self) -> Tensor:
        """The predicted class, 1."""
        return self.targets[:, 0]
