"""Find all problems of a dataset before training."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from sic.data.dataset import SMALLEST_CLASS, ImageData, Progress, Sample
from sic.data.duplicates import Fingerprint, near_copies
from sic.data.images import LONGEST
from sic.data.loading import read_fingerprints

SMALLEST_SIDE = 32
UNEVEN = 10
"""Ratio of the images of the most and the least frequent class that gives a warning."""
NAMED = 5
"""The most files or classes that a sentence names as examples."""


@dataclass(frozen=True)
class Leak:
    """Two splits share an image or a patient, so metrics on the second one do not generalise to new images."""

    kind: Literal["same", "near", "group"]
    splits: tuple[str, str]
    samples: tuple[str, str]
    """Two ids, one from each split."""

    def __str__(self) -> str:
        first, second = (f"{sample} ({split})" for sample, split in zip(self.samples, self.splits, strict=True))
        what = {
            "same": "are the same image",
            "near": "are nearly the same image",
            "group": "belong to the same group (patient, specimen, …)",
        }
        return f"{first} and {second} {what[self.kind]}."


def find_problems(data: ImageData, progress: Progress | None = None) -> list[str]:
    """Problems of files, images, labels and classes as sentences, in addition to those found when `data` was opened."""
    prints, unreadable = _read(data, progress)
    return [
        *unreadable,
        *map(str, leaks(data, prints)),
        *_conflicts(data, prints),
        *_copies(data, prints),
        *_counts(data),
        *_shapes(data, prints),
    ]


def leaks(
    data: ImageData, prints: Mapping[Path, Fingerprint] | None = None, progress: Progress | None = None
) -> list[Leak]:
    """Images and groups that are in two splits: one pair for each image of the later split, and for each group.

    Every file is decoded unless `prints` holds the fingerprints; samples without one are then compared by group only.
    """
    if prints is None:
        prints, _ = _read(data, progress)
    found: list[Leak] = []
    for one, other in combinations(data.splits, 2):
        found += _shared_groups(data, one, other)
        found += _shared_pictures(data, one, other, prints)
    return found


def _read(data: ImageData, progress: Progress | None) -> tuple[dict[Path, Fingerprint], list[str]]:
    """Fingerprints, and a sentence for each file without one."""
    samples = [sample for split in data.splits.values() for sample in split]
    found = read_fingerprints([sample.path for sample in samples], progress)
    names = {sample.path: sample.id for sample in samples}
    unreadable = [f"{names[path]} cannot be used: {why}." for path, why in found.items() if isinstance(why, str)]
    return {path: p for path, p in found.items() if not isinstance(p, str)}, unreadable


def _shared_groups(data: ImageData, one: str, other: str) -> Iterator[Leak]:
    first, second = (
        {sample.group: sample.id for sample in reversed(data.splits[split]) if sample.group is not None}
        for split in (one, other)
    )
    for group in sorted(first.keys() & second.keys()):
        yield Leak("group", (one, other), (first[group], second[group]))


def _shared_pictures(data: ImageData, one: str, other: str, prints: Mapping[Path, Fingerprint]) -> Iterator[Leak]:
    first, second = ([sample for sample in data.splits[split] if sample.path in prints] for split in (one, other))
    known = {prints[sample.path].digest: sample for sample in reversed(first)}
    for sample in second:
        if prints[sample.path].digest in known:
            yield Leak("same", (one, other), (known[prints[sample.path].digest].id, sample.id))
    second = [sample for sample in second if prints[sample.path].digest not in known]
    for i, j in near_copies([prints[sample.path] for sample in first], [prints[sample.path] for sample in second]):
        yield Leak("near", (one, other), (first[i].id, second[j].id))


def _conflicts(data: ImageData, prints: Mapping[Path, Fingerprint]) -> Iterator[str]:
    """Images with two different labels, in any split."""
    known: dict[bytes, dict[tuple[int, ...], Sample]] = defaultdict(dict)
    for samples in data.splits.values():
        for sample in samples:
            if sample.path in prints:
                known[prints[sample.path].digest].setdefault(tuple(sorted(sample.labels)), sample)
    for versions in known.values():
        for one, other in combinations(versions.values(), 2):
            first, second = (" and ".join(data.classes[i] for i in s.labels) or "nothing" for s in (one, other))
            yield f"{one.id} and {other.id} are the same image but have the labels {first} and {second}."


def _copies(data: ImageData, prints: Mapping[Path, Fingerprint]) -> Iterator[str]:
    for split, samples in data.splits.items():
        digests = Counter(prints[sample.path].digest for sample in samples if sample.path in prints)
        extra = digests.total() - len(digests)
        if extra:
            yield f"{_images(extra)} in {split} {'is a copy' if extra == 1 else 'are copies'} of others in it."


def _counts(data: ImageData) -> Iterator[str]:
    if not data.classes:
        return
    counts = Counter(dict.fromkeys(range(len(data.classes)), 0))
    counts.update(label for sample in data.splits.get("train", []) for label in sample.labels)
    few = [(label, number) for label, number in sorted(counts.items()) if number < SMALLEST_CLASS]
    if few:
        names = _some([f"{data.classes[label]} ({number})" for label, number in few])
        classes = f"{len(few)} classes have" if len(few) > 1 else "1 class has"
        yield f"{classes} fewer than {SMALLEST_CLASS} training images: {names}."
    (most, highest), (least, lowest) = counts.most_common()[0], counts.most_common()[-1]
    if highest >= UNEVEN * max(lowest, 1):
        yield (
            f"The classes are imbalanced: {data.classes[most]} has {highest} training images, "
            f"{data.classes[least]} {lowest}."
        )


def _shapes(data: ImageData, prints: Mapping[Path, Fingerprint]) -> Iterator[str]:
    small, long = [], []
    for sample in (sample for samples in data.splits.values() for sample in samples if sample.path in prints):
        width, height = prints[sample.path].size
        named = f"{sample.id} ({width}×{height})"
        if min(width, height) < SMALLEST_SIDE:
            small.append(named)
        if max(width, height) > LONGEST * min(width, height):
            long.append(named)
    if small:
        verb = "is" if len(small) == 1 else "are"
        yield f"{_images(len(small))} {verb} less than {SMALLEST_SIDE} px wide or high: {_some(small)}."
    if long:
        verb = "is" if len(long) == 1 else "are"
        yield f"{_images(len(long))} {verb} more than {LONGEST} times as long as wide: {_some(long)}."


def _images(number: int) -> str:
    return f"{number} image{'s' if number > 1 else ''}"


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
