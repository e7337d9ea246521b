"""Stratified splits."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from sic.data.dataset import Sample

SMALLEST_CLASS = 5
"""Classes with fewer images keep all of them for training."""
NO_CLASS = -1
"""The class of images without a label."""


def stratified(
    samples: list[Sample], fraction: float, seed: int, together: Sequence[Sequence[int]] = ()
) -> tuple[list[Sample], list[Sample]]:
    """Split samples into (rest, held out), with the same share of every class; an image counts for its rarest label.

    Images of one group stay together, and so do images whose positions are in one list of `together`; the shares are
    then approximate. A class with a single group is not held out.
    """
    counts = Counter(label for sample in samples for label in sample.labels)

    def rarest(labels: tuple[int, ...]) -> int:
        return min(labels, key=lambda label: (counts[label], label), default=NO_CLASS)

    by_class: dict[int, list[list[Sample]]] = defaultdict(list)
    for unit in _kept_together(samples, together):
        by_class[rarest(tuple(rarest(sample.labels) for sample in unit))].append(unit)
    total = Counter(rarest(sample.labels) for sample in samples)
    taken: Counter[int] = Counter()
    held: set[str] = set()
    # Rarest class first, because its groups can contain images of other classes, which then count for those.
    for label in sorted(by_class, key=lambda label: (counts[label], label)):
        units = by_class[label]
        random.Random(f"{seed}-{label}").shuffle(units)
        number = max(1, round(total[label] * fraction)) if total[label] >= SMALLEST_CLASS else 0
        for unit in units:
            size = Counter(rarest(sample.labels) for sample in unit)
            closer = taken[label] + size[label] / 2 <= number
            if closer and all(taken[other] + size[other] < total[other] for other in size):
                taken += size
                held.update(sample.id for sample in unit)
    return [s for s in samples if s.id not in held], [s for s in samples if s.id in held]


def _kept_together(samples: list[Sample], together: Sequence[Sequence[int]]) -> list[list[Sample]]:
    """Images that must stay together, as lists; the order depends on the ids only."""
    joined: dict[tuple[str, bool], tuple[str, bool]] = {}

    def unit(sample: Sample) -> tuple[str, bool]:
        key = (sample.id, False) if sample.group is None else (sample.group, True)
        while key in joined:
            key = joined[key]
        return key

    for positions in together:
        first, *others = {unit(samples[position]) for position in positions}
        joined.update(dict.fromkeys(others, first))
    units: dict[tuple[str, bool], list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.id):
        units[unit(sample)].append(sample)
    return list(units.values())
