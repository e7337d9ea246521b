"""What a run trains on: readable images, split, with their pixels at hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sic.data.dataset import ImageData, Sample, Skipped
from sic.data.images import Pixels, Preprocessing
from sic.data.pixels import PixelSource, load_pixels
from sic.errors import SicError
from sic.methods import method
from sic.settings import Settings
from sic.training.batches import support_candidates
from sic.training.history import Reporter
from sic.training.leaks import look_at_test_images, refuse, split_off


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
class Material:
    """Training and validation images, who may be a support, what to test on, and what was left out."""

    train: Images
    validation: Images
    candidates: dict[int, list[int]]
    test: list[Sample]
    leaks: int
    """Pictures and groups both trained and measured on, where that was allowed."""
    skipped: list[Skipped]


def gather(data: ImageData, settings: Settings, cache: Path, workers: int, reporter: Reporter) -> Material:
    """Read every file once (pixels go to `cache`), drop what cannot be read, split off a validation set."""
    loaded = load_pixels(
        data.splits["train"] + data.splits.get("val", []),
        Preprocessing.of(settings),
        cache,
        workers,
        lambda done, total: reporter.advance("reading images", done, total),
    )
    leaking, test, unreadable = look_at_test_images(data, loaded, reporter)
    refuse(leaking, settings, reporter)
    skipped = data.skipped + loaded.skipped + unreadable
    given = {sample.id for sample in data.splits.get("val", [])}
    usable = loaded.samples
    if given:
        train, validation = [s for s in usable if s.id not in given], [s for s in usable if s.id in given]
    else:
        train, validation = split_off(loaded, settings, reporter)
    candidates = support_candidates(train)
    with_cases = method(settings.method).with_cases
    shown = set(candidates) if with_cases else {label for sample in train for label in sample.labels}
    alone = " and nothing else, so nothing can stand for that class" if with_cases else ""
    for index, name in enumerate(data.classes):
        if index not in shown:
            raise SicError(
                f"No readable training image shows {name!r}{alone}; add images of it or remove it "
                f"({len(skipped)} files were skipped)."
            )
    if not validation:
        raise SicError(
            f"{data.root} has too few readable images to check a model on ({len(usable)}): one class needs five that "
            "are not copies, or of a group, with all the others."
        )
    position = {sample.id: index for index, sample in enumerate(usable)}
    return Material(
        Images(train, loaded.pixels, [position[sample.id] for sample in train]),
        Images(validation, loaded.pixels, [position[sample.id] for sample in validation]),
        candidates,
        test,
        len(leaking),
        skipped,
    )
