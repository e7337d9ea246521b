"""Which class a support resembles."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CLEARLY = 1.25
"""How many times as much a support resembles another class as its own before that is worth telling."""


@dataclass(frozen=True)
class Resemblance:
    """A support that resembles the images of another class more than those of its own."""

    support: int
    other: int
    """The class that it resembles most."""
    theirs: float
    """Its mean likeness to the images of that class."""
    own: float
    """The same for the images of its own class."""


def resembling_others(likeness: Tensor, owners: Sequence[int], labels: Sequence[int | None]) -> list[Resemblance]:
    """The supports that resemble another class clearly more than their own.

    Args:
        likeness: S×n, of supports and images: evidence, or any other measure of similarity; NaN where a pair is not to
            be compared.
        owners: The class of each support, S.
        labels: The class of each image, n; None for images that are not to be compared.
    """
    shown = torch.tensor([-1 if label is None else label for label in labels])
    classes = sorted(set(shown.tolist()) - {-1})
    if not classes:
        return []
    means = torch.stack([likeness[:, shown == label].nanmean(dim=1) for label in classes], dim=1)
    found = []
    for support, owner in enumerate(owners):
        others = [(means[support, place].item(), label) for place, label in enumerate(classes) if label != owner]
        if owner in classes and others:
            own, (theirs, other) = means[support, classes.index(owner)].item(), max(others)
            if theirs > CLEARLY * own:
                found.append(Resemblance(support, other, theirs, own))
    return found
