"""The images of a run: readable, split, with their pixels at hand. No image is both trained on and measured on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sic.data.checks import leakage, training_leaks
from sic.data.dataset import ImageData, Sample, Skipped, stratified
from sic.data.duplicates import Fingerprint, copies_within
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
    """Pictures and groups both trained and measured on."""
    tainted: dict[str, set[str]]
    """By split (`validation`, `test`), the ids of held-out images that are in training, too, or of whose group some
    are."""
    skipped: list[Skipped]


def gather(data: ImageData, settings: Settings, cache: Path, workers: int, reporter: Reporter) -> TrainingData:
    """Read every file once (pixels go to `cache`), drop what cannot be read, split off a validation set."""
    loaded = load_pixels(
        data.splits["train"] + data.splits.get("val", []),
        Preprocessing.of(settings),
        cache,
        workers,
        lambda done, total: reporter.advance("reading images", done, total),
        keep=settings.keep_support_images,
    )
    test, test_prints, unreadable = _read_test_images(data, settings, reporter)
    prints = {sample.path: found for sample, found in zip(loaded.samples, loaded.prints, strict=True)} | test_prints
    dropped: set[str] = set()
    if settings.drop_leaks:
        dropped = training_leaks(data, prints)
        reporter.say(
            f"Training images removed, because they are copies of held-out images or share their group: {len(dropped)}."
        )
        data = replace(data, splits=data.splits | {TRAIN: [s for s in data.splits[TRAIN] if s.id not in dropped]})
    found = leakage(data, prints)
    if found.stops and not settings.allow_leaks:
        raise SicError(
            f"{found.stops}; remove the training images with --drop-leaks, or use --allow-leaks (sic data check lists "
            "all pairs)."
        )
    for sentence in (f"{found.stops}." if found.stops else None, found.remark):
        if sentence:
            reporter.warn(sentence)
    skipped = data.skipped + loaded.skipped + unreadable
    given = {sample.id for sample in data.splits.get("val", [])}
    usable = [sample for sample in loaded.samples if sample.id in given or sample.id not in dropped]
    if given:
        train, validation = [s for s in usable if s.id not in given], [s for s in usable if s.id in given]
    else:
        train, validation = _split_off(loaded, usable, settings, reporter)
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
    position = {sample.id: index for index, sample in enumerate(loaded.samples)}
    return TrainingData(
        Images(train, loaded.pixels, [position[sample.id] for sample in train]),
        Images(validation, loaded.pixels, [position[sample.id] for sample in validation]),
        candidates,
        test,
        len(found.leaks),
        {"validation" if split == "val" else split: ids for split, ids in found.tainted.items()},
        skipped,
    )


def _read_test_images(
    data: ImageData, settings: Settings, reporter: Reporter
) -> tuple[list[Sample], dict[Path, Fingerprint], list[Skipped]]:
    """The test images that can be read, their fingerprints, and the others. Each is decoded once for this."""
    usable: list[Sample] = []
    prints: dict[Path, Fingerprint] = {}
    skipped: list[Skipped] = []
    test = data.splits.get("test", [])
    read = read_fingerprints(
        [sample.path for sample in test],
        lambda done, total: reporter.advance("reading test images", done, total),
        keep=settings.keep_support_images,
    )
    for sample in test:
        found = read[sample.path]
        if isinstance(found, str):
            skipped.append(Skipped(sample.id, found))
        else:
            prints[sample.path] = found
            usable.append(sample)
    return usable, prints, skipped


def _split_off(
    loaded: Loaded, usable: list[Sample], settings: Settings, reporter: Reporter
) -> tuple[list[Sample], list[Sample]]:
    """(training, validation) images of those that are usable; copies of one picture are on the same side."""
    kept = {sample.id for sample in usable}
    prints = [found for sample, found in zip(loaded.samples, loaded.prints, strict=True) if sample.id in kept]
    copies = copies_within(prints, lambda done, total: reporter.advance("looking for copies", done, total))
    if copies:
        reporter.say(
            f"Images that are copies of others: {sum(map(len, copies)) - len(copies)}, such as "
            f"{' and '.join(usable[position].id for position in copies[0][:2])}; "
            "copies stay on one side of the split."
        )
    return stratified(usable, settings.validation, settings.seed, copies)
