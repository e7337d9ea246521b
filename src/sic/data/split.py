"""Splitting off a validation set that looks like the rest."""

import random
from collections import Counter, defaultdict

from sic.data.dataset import Sample

SMALLEST_CLASS = 5
"""Classes with fewer images keep all of them for training."""


def stratified(samples: list[Sample], fraction: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(rest, held out): the same share of every class, an image counting for its rarest label."""
    counts = Counter(label for sample in samples for label in sample.labels)
    by_class: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_class[min(sample.labels, key=lambda label: (counts[label], label))].append(sample)
    held: set[str] = set()
    for label in sorted(by_class):
        members = sorted(by_class[label], key=lambda sample: sample.id)
        random.Random(f"{seed}-{label}").shuffle(members)
        number = max(1, round(len(members) * fraction)) if len(members) >= SMALLEST_CLASS else 0
        held.update(sample.id for sample in members[:number])
    return [s for s in samples if s.id not in held], [s for s in samples if s.id in held]
