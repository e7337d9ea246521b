"""The images of a run: readable, split, with their pixels at hand. No image is both trained on and measured on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sic.data.checks import Leak, leaks
from sic.data.dataset import ImageData, Sample, Skipped, stratified
from sic.data.duplicates import copies_within
from sic.data.images import Pixels, Preprocessing
from sic.data.loading import Loaded, PixelSource, load_pixels, read_fingerprints
from sic.errors import SicError
from sic.methods import method
from sic.settings import Settings
from sic.training.batches import support_candidates
from sic.training.history import Reporter

TRAIN = "train"


@dataclass
class Images:
    """Samples and, in the same order, their pixels."""

    samples: list[Sample]
    source: PixelSource
    positions: Sequence[int]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Pixels:
        return self.source[self.positions[index]]


@dataclass
class TrainingData:
    """Training and validation images, candidates for supports, test images, and what was left out."""

    train: Images
    validation: Images
    candidates: dict[int, list[int]]
    test: list[Sample]
    leaks: int
    """Pictures and groups both trained and measured on, where that was allowed."""
    skipped: list[Skipped]


def gather(data: ImageData, settings: Settings, cache: Path, workers: int, reporter: Reporter) -> TrainingData:
    """Read every file once (pixels go to `cache`), drop what cannot be read, split off a validation set."""
    loaded = load_pixels(
        data.splits["train"] + data.splits.get("val", []),
        Preprocessing.of(settings),
        cache,
        workers,
        lambda done, total: reporter.advance("reading images", done, total),
    )
    leaking, test, unreadable = _look_at_test_images(data, loaded, reporter)
    _refuse(leaking, settings, reporter)
    skipped = data.skipped + loaded.skipped + unreadable
    given = {sample.id for sample in data.splits.get("val", [])}
    usable = loaded.samples
    if given:
        train, validation = [s for s in usable if s.id not in given], [s for s in usable if s.id in given]
    else:
        train, validation = _split_off(loaded, settings, reporter)
    candidates = support_candidates(train)
    with_supports = method(settings.method).with_supports
    shown = set(candidates) if with_supports else {label for sample in train for label in sample.labels}
    alone = " and nothing else, so nothing can stand for that class" if with_supports else ""
    for index, name in enumerate(data.classes):
        if index not in shown:
            raise SicError(
                f"No readable training image shows {name!r}{alone}; add images of it or remove it "
                f"({len(skipped)} files were skipped)."
            )
    if not validation:
        raise SicError(
            f"{data.root} has too few readable images to check a model on ({len(usable)}): one class needs at least "
            "five that are neither copies of each other nor all of one group."
        )
    position = {sample.id: index for index, sample in enumerate(usable)}
    return TrainingData(
        Images(train, loaded.pixels, [position[sample.id] for sample in train]),
        Images(validation, loaded.pixels, [position[sample.id] for sample in validation]),
        candidates,
        test,
        len(leaking),
        skipped,
    )


def _look_at_test_images(
    data: ImageData, loaded: Loaded, reporter: Reporter
) -> tuple[list[Leak], list[Sample], list[Skipped]]:
    """Leaks between training images and any other split, the test images that can be read, and the others.

    Test images are decoded once for this; `loaded` has looked at the rest already.
    """
    prints = {sample.path: found for sample, found in zip(loaded.samples, loaded.prints, strict=True)}
    usable: list[Sample] = []
    skipped: list[Skipped] = []
    test = data.splits.get("test", [])
    read = read_fingerprints(
        [sample.path for sample in test], lambda done, total: reporter.advance("reading test images", done, total)
    )
    for sample in test:
        found = read[sample.path]
        if isinstance(found, str):
            skipped.append(Skipped(sample.id, found))
        else:
            prints[sample.path] = found
            usable.append(sample)
    leaking = [
        leak
        for split in data.splits
        if split != TRAIN
        for leak in leaks(replace(data, splits={TRAIN: data.splits[TRAIN], split: data.splits[split]}), prints)
    ]
    return leaking, usable, skipped


def _refuse(leaking: list[Leak], settings: Settings, reporter: Reporter) -> None:
    """Stop at leaks, or say that there are some where they are allowed."""
    if not leaking:
        return
    pairs = str(leaking[0]).removesuffix(".")
    if len(leaking) > 1:
        pairs += f", the first of {len(leaking)} such pairs"
    if not settings.allow_leaks:
        raise SicError(
            f"{pairs}: figures of held-out images would be too good; take one of each pair away (sic data check lists "
            "all) or say --allow-leaks."
        )
    reporter.warn(f"{pairs}: figures of held-out images will be too good.")


def _split_off(loaded: Loaded, settings: Settings, reporter: Reporter) -> tuple[list[Sample], list[Sample]]:
    """(training, validation) images; copies of one picture are on the same side."""
    copies = copies_within(loaded.prints, lambda done, total: reporter.advance("looking for copies", done, total))
    if copies:
        reporter.say(
            f"Images that are copies of others: {sum(map(len, copies)) - len(copies)}, such as "
            f"{' and '.join(loaded.samples[position].id for position in copies[0][:2])}; "
            "copies stay on one side of the split."
        )
    return stratified(loaded.samples, settings.validation, settings.seed, copies)
