"""All checks of a model's explanations, on real images."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.errors import SicError
from sic.evaluate import axioms, exactness
from sic.evaluate.check import Check
from sic.methods import SIC, Classifier
from sic.supports import Support

DELETED = 64
"""Images for the deletion check, at most."""


def require_promise(classifier: Classifier) -> None:
    """Refuse a method whose explanations are not exact by construction."""
    if not (classifier.complete and classifier.traceable):
        raise SicError(f"sic verify is for SIC and B-cos models; this one was trained with --method {classifier.name}.")


def measure(
    classifier: Classifier,
    reloaded: Classifier,
    images: Tensor,
    *,
    supports: Sequence[Support] = (),
    probes: int = 8,
    seed: int = 0,
    compiled: bool = True,
    progress: Progress | None = None,
) -> list[Check]:
    """Run every check on `images`, n×3×S×S: completeness on every image and class, deletion on up to 64 images, the
    others on `probes` images. Everything is measured on what `explain` returns. `supports`: the cases of a SIC model;
    with them, matches are checked, too."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = images[torch.randperm(len(images), generator=generator)]
    few = shuffled[:probes].float()
    single, double = copy.deepcopy(classifier).float(), copy.deepcopy(classifier).double()
    exact = few.double()
    weights, constant = exactness.weights_and_constant(double, exact, generator)
    found = [
        axioms.completeness(single, double, images, progress),
        exactness.weights_times_input(double, exact, generator),
        weights,
        constant,
        axioms.sensitivity(double, exact, generator),
        axioms.dummy(double, exact, generator),
        axioms.symmetry(double, exact, generator),
        exactness.equivariance(double, exact, generator),
        axioms.implementation_invariance(single, copy.deepcopy(reloaded).float(), few, compiled),
        exactness.deletion(single, shuffled[:DELETED].float(), generator),
    ]
    if isinstance(double, SIC):
        found.append(axioms.linearity(double, exact))
        if supports:
            found.append(exactness.matches(double, supports, exact))
    return found
