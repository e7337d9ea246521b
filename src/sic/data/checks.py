"""Find all problems of a dataset before training."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from sic.data.dataset import SMALLEST_CLASS, ImageData, Progress, Sample, stratified, without_supports
from sic.data.duplicates import Fingerprint, near_copies
from sic.data.images import LONGEST
from sic.data.loading import read_fingerprints

SMALLEST_SIDE = 32
UNEVEN = 10
"""Ratio of the images of the most and the least frequent class that gives a warning."""
MOST_COPIES = 0.05
"""The share of a split's images that may be copies of training images; a training stops at more."""
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


@dataclass(frozen=True)
class Leakage:
    """The leaks between training images and held-out ones, and their consequence for a training."""

    leaks: list[Leak]
    tainted: dict[str, set[str]]
    """By split, the ids of held-out images that are copies of training images, or of the same group as one."""
    stops: str | None
    """Why a training stops; None if it does not."""
    remark: str | None
    """The message about copies that do not stop a training."""


def leakage(data: ImageData, prints: Mapping[Path, Fingerprint]) -> Leakage:
    """Compare the training images with every other split.

    A shared group stops a training, and so do copies if they are more than `MOST_COPIES` of a split. Fewer copies do
    not: metrics are then reported with and without them.
    """
    train = data.splits.get("train", [])
    found: list[Leak] = []
    tainted: dict[str, set[str]] = {}
    reasons, remarks = [], []
    for split, samples in data.splits.items():
        if split == "train":
            continue
        own = leaks(replace(data, splits={"train": train, split: samples}), prints)
        found += own
        groups = {sample.group for sample in train} & {sample.group for sample in samples} - {None}
        copies = [leak.samples for leak in own if leak.kind != "group"]
        copied = {second for _, second in copies}
        if groups or copied:
            tainted[split] = copied | {sample.id for sample in samples if sample.group in groups}
        number = (
            f"{len(copied)} of the {len(samples)} {split} images {'are' if len(copied) > 1 else 'is'} in training, too"
        )
        if groups:
            reasons.append(f"{len(groups)} group{'s' if len(groups) > 1 else ''} of {split} images in training, too")
        if len(copied) > MOST_COPIES * len(samples):
            reasons.append(f"{number}, and the limit is {MOST_COPIES:.0%}")
        elif copied:
            remarks.append(
                f"{number} ({copies[0][1]} as {copies[0][0]}). Figures are given with and without "
                f"{'them' if len(copied) > 1 else 'it'}; --drop-leaks removes the training images instead."
            )
    stops = f"{_example(found)}: figures of held-out images would be too good ({'; '.join(reasons)})"
    return Leakage(found, tainted, stops if reasons else None, " ".join(remarks) or None)


def _example(found: Sequence[Leak]) -> str:
    """The first leak that stops a training, and the number of such leaks."""
    serious = [leak for leak in found if leak.kind == "group"] or found
    more = f", the first of {len(serious)} such pairs" if len(serious) > 1 else ""
    return "".join(str(leak).removesuffix(".") for leak in serious[:1]) + more


def training_leaks(data: ImageData, prints: Mapping[Path, Fingerprint]) -> set[str]:
    """The ids of all training images that are copies of held-out images, or of the same group as one."""
    held_out = {split: samples for split, samples in data.splits.items() if split != "train"}
    groups = {sample.group for samples in held_out.values() for sample in samples} - {None}
    leaking = {sample.id for sample in data.splits["train"] if sample.group in groups}
    for split, samples in held_out.items():
        turned = replace(data, splits={split: samples, "train": data.splits["train"]})
        leaking |= {leak.samples[1] for leak in _shared_pictures(turned, split, "train", prints)}
    return leaking


def copies_of(
    training: Sequence[Sample], samples: Sequence[Sample], progress: Progress | None = None, *, keep: bool = True
) -> dict[str, str]:
    """The ids of those samples that are (nearly) the same image as a training image, each with the id of that one.

    `keep`: store the fingerprints (see `sic.data.store`).
    """
    both = ImageData("", Path(), "", (), {"train": list(training), "test": list(samples)})
    prints, _ = _read(both, progress, keep)
    pairs = [leak.samples for leak in _shared_pictures(both, "train", "test", prints)]
    return {copy: original for original, copy in pairs}


@dataclass(frozen=True)
class Findings:
    """The problems of a dataset, besides those found when it was opened."""

    problems: list[str]
    """As sentences."""
    stops: list[str]
    """Why `sic train` would stop."""
    remark: str | None
    """The message of `sic train` about copies."""


def examine(data: ImageData, progress: Progress | None = None) -> Findings:
    """Decode every file once, and look for problems of files, images, labels, classes and splits."""
    prints, unreadable = _read(data, progress)
    problems = [
        *unreadable,
        *map(str, leaks(data, prints)),
        *_conflicts(data, prints),
        *_copies(data, prints),
        *_counts(data),
        *_shapes(data, prints),
    ]
    found = leakage(data, prints)
    train = [sample for sample in data.splits.get("train", []) if sample.path in prints]
    stops = without_supports(replace(data, splits={"train": train}))
    if found.stops is not None:
        stops.append(f"{found.stops}; use --drop-leaks or --allow-leaks.")
    if "val" not in data.splits and not stops and not stratified(train, 0.5, 0)[1]:
        stops.append(
            f"No class has {SMALLEST_CLASS} readable images of several groups, so none can be held out for validation."
        )
    return Findings(problems, stops, found.remark)


def leaks(data: ImageData, prints: Mapping[Path, Fingerprint]) -> list[Leak]:
    """Images and groups that are in two splits: one pair for each image of the later split, and for each group.

    Samples without a fingerprint are compared by group only.
    """
    found: list[Leak] = []
    for one, other in combinations(data.splits, 2):
        found += _shared_groups(data, one, other)
        found += _shared_pictures(data, one, other, prints)
    return found


def _read(data: ImageData, progress: Progress | None, keep: bool = True) -> tuple[dict[Path, Fingerprint], list[str]]:
    """Fingerprints, and a sentence for each file without one."""
    samples = [sample for split in data.splits.values() for sample in split]
    found = read_fingerprints([sample.path for sample in samples], progress, keep)
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
            yield f"{_images(extra)} in {split} {'is a copy' if extra == 1 else 'are copies'} of another image in it."


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
