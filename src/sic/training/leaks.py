"""What is trained on must not be what the model is measured on."""

from dataclasses import replace

from sic.data.checks import Leak, leaks
from sic.data.dataset import ImageData, Sample, Skipped
from sic.data.duplicates import copies_within, read_fingerprints
from sic.data.pixels import Loaded
from sic.data.split import stratified
from sic.errors import SicError
from sic.settings import Settings
from sic.training.history import Reporter

TRAIN = "train"


def look_at_test_images(
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


def refuse(leaking: list[Leak], settings: Settings, reporter: Reporter) -> None:
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


def split_off(loaded: Loaded, settings: Settings, reporter: Reporter) -> tuple[list[Sample], list[Sample]]:
    """(training, validation) images; copies of one picture are on the same side."""
    copies = copies_within(loaded.prints, lambda done, total: reporter.advance("looking for copies", done, total))
    if copies:
        reporter.say(
            f"Images that are copies of others: {sum(map(len, copies)) - len(copies)}, such as "
            f"{' and '.join(loaded.samples[position].id for position in copies[0][:2])}; "
            "copies stay on one side of the split."
        )
    return stratified(loaded.samples, settings.validation, settings.seed, copies)
