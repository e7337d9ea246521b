"""Splitting off a validation set that looks like the rest."""

import random
from collections import Counter, defaultdict

from sic.data.dataset import Sample

SMALLEST_CLASS = 5
"""Classes with fewer images keep all of them for training."""
NO_CLASS = -1
"""Stands for the class of images that show none."""


def stratified(samples: list[Sample], fraction: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(rest, held out): the same share of every class, an image counting for its rarest label.

    Images of a group stay together; the shares are then met as closely as the groups allow. A class with a single
    group is not held out.
    """
    counts = Counter(label for sample in samples for label in sample.labels)

    def rarest(labels: tuple[int, ...]) -> int:
        return min(labels, key=lambda label: (counts[label], label), default=NO_CLASS)

    by_class: dict[int, list[list[Sample]]] = defaultdict(list)
    for unit in _kept_together(samples):
        by_class[rarest(tuple(rarest(sample.labels) for sample in unit))].append(unit)
    total = Counter(rarest(sample.labels) for sample in samples)
    taken: Counter[int] = Counter()
    held: set[str] = set()
    # Rarest first: what groups with a rare class bring along of the others counts when these have their turn.
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


def _kept_together(samples: list[Sample]) -> list[list[Sample]]:
    """Groups, and images without one by themselves; the order depends on the ids alone."""
    groups: dict[tuple[str, bool], list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.id):
        groups[(sample.id, False) if sample.group is None else (sample.group, True)].append(sample)
    return list(groups.values())
