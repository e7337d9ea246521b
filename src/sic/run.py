"""What a model was trained on: the record of its run, its images, and those that are fair to judge it by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sic.card import caution, validation_note
from sic.data import ImageData, Sample
from sic.data import open as open_data
from sic.data.boxes import NoBoxes
from sic.data.checks import copies_of
from sic.data.dataset import Progress
from sic.data.layouts import BUILT_IN
from sic.directory import RUN, Config, read_run
from sic.errors import SicError

NOT_FOUND = "The images that the model was trained on were not found, so copies of them among these would go unnoticed."
SEEN = "The model may have been trained on these images, so the metrics say little about new images."


class ImagesNotFound(SicError):
    """The images that a model was trained on cannot be found again."""


@dataclass(frozen=True)
class HeldOut:
    """Images to judge a model by, labelled with the model's classes."""

    name: str
    """For people: which images of which data."""
    caution: str | None
    """What keeps them from being a fair test."""
    samples: list[Sample]
    copies: frozenset[str] = frozenset()
    """Ids of those that the model was trained on, or that are copies of such images, as far as is known."""


@dataclass(frozen=True)
class RunImages:
    """The images of a run, found again."""

    root: Path
    where: str
    """What the data was opened as."""
    splits: dict[str, list[Sample]]
    """`train`, `validation` and `test` (which may be empty)."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Files that training could not use, with the reason."""
    problems: list[str] = field(default_factory=list)
    """Sentences about images that are missing."""
    copies: frozenset[str] = frozenset()
    """As `Run.copies`."""


class Run:
    """The run that made the model in a directory."""

    def __init__(self, folder: Path, config: Config, hint: str = "--data PATH") -> None:
        """`hint`: how the user can say where the images are; part of every refusal."""
        self.folder, self.classes, self.card, self.hint = folder, config.classes, config.data, hint
        self.caution = caution(validation_note(config.training, config.calibration.images, bool(config.edits)))
        """What keeps the validation images from being a fair test."""
        self.record: dict[str, Any] = read_run(folder) if (folder / RUN).is_file() else {}
        """`run.json`; empty for a model that was copied without it."""

    @property
    def _opened_with(self) -> dict[str, Any]:
        """The arguments that the data was opened with, as far as they are known."""
        recorded = dict(self.record.get("data", {}).get("opened_with", {}))
        if not recorded and self.card.get("name") == BUILT_IN:
            return {"where": BUILT_IN}
        return recorded

    @property
    def copies(self) -> frozenset[str]:
        """Ids of the held-out images that are in training, too, as training found them."""
        return frozenset(id for ids in self.record.get("copies", {}).values() for id in ids)

    def _refuse(self, sentence: str) -> ImagesNotFound:
        return ImagesNotFound(f"{sentence}; say where they are: {self.hint}.")

    def open(self, progress: Progress | None = None) -> ImageData:
        """The data that the model was trained on, where it was then."""
        arguments = self._opened_with
        if not arguments:
            raise self._refuse(
                f"{self.folder} does not record where its training images are ({RUN} is missing or too old)"
            )
        where = str(arguments["where"])
        if where != BUILT_IN and not Path(where).exists():
            raise self._refuse(f"The images that {self.folder} was trained on are not at {where}")
        try:
            return open_data(progress=progress, **arguments)
        except TypeError as error:
            raise self._refuse(f"{self.folder / RUN} does not say how its images were opened ({error})") from None

    def open_other(
        self, data: str | Path, progress: Progress | None = None, warn: Callable[[str], None] | None = None
    ) -> ImageData:
        """Other labelled images, cropped to their boxes if those of the run were, and if they have any."""
        try:
            return open_data(data, progress, roi=bool(self.card.get("roi")))
        except NoBoxes:
            if warn is not None:
                warn(f"{self.folder} was trained on images cropped to their boxes; those in {data} are not cropped.")
            return open_data(data, progress)

    def is_own(self, data: ImageData) -> bool:
        """Whether the model was trained on this data."""
        return self._opened_with.get("where") in (data.opened_with["where"], str(data.root.resolve()))

    def held_out(self, data: ImageData, limit: int | None = None) -> HeldOut:
        """The fairest images of some data to judge the model by, at most `limit`."""
        chosen_on = self.record.get("validation", []) if self.is_own(data) else []
        images = held_out(data, self.classes, chosen_on, self.caution)
        samples = [images.samples[row] for row in spread(len(images.samples), limit)]
        known = self.copies if self.is_own(data) else ()
        return _with_copies(replace(images, samples=samples), dict.fromkeys(known))

    def compare(self, images: HeldOut, progress: Progress | None = None) -> HeldOut:
        """Images of other data, compared with those that the model was trained and chosen on.

        The caution then says how many are copies, or that the images of the run cannot be found.
        """
        try:
            own = self.images()
        except (SicError, OSError):
            return replace(images, caution=images.caution or NOT_FOUND)
        keep = self.record.get("settings", {}).get("keep_support_images", True)
        training = [*own.splits["train"], *own.splits["validation"]]
        copies = copies_of(training, images.samples, progress, keep=keep)
        return _with_copies(replace(images, caution=None), copies)

    def images(self, data: str | Path | None = None) -> RunImages:
        """All images of the run by split, at `data` if they are no longer where they were.

        `run.json` says which of them were held out; without it `data` must come with a validation split of its own.
        """
        recorded = self._opened_with
        if data is None:
            opened, where = self.open(), str(recorded["where"])
        else:
            opened = open_data(data, layout=recorded.get("layout"), roi=bool(recorded.get("roi")))
            where = str(data)
        if list(opened.classes) != self.classes:
            raise self._refuse(f"The images in {opened.root} show other classes than {self.folder} knows")
        if not self.record:
            if not opened.splits.get("val"):
                raise self._refuse(
                    f"{self.folder} has no {RUN}, so it is not known which images of {opened.root} were held out; copy "
                    "that file, too, or use data with folders train and val"
                )
            splits = {"train": opened.splits["train"], "validation": opened.splits["val"]}
            return RunImages(opened.root, where, splits | {"test": opened.splits.get("test", [])})
        return self._recorded(opened, where)

    def _recorded(self, opened: ImageData, where: str) -> RunImages:
        by_id = {sample.id: sample for split in ("train", "val") for sample in opened.splits.get(split, [])}
        ids = {split: self.record[split] for split in ("train", "validation")}
        splits = {split: [by_id[id] for id in known if id in by_id] for split, known in ids.items()}
        problems = []
        for split, samples in splits.items():
            if not samples:
                raise self._refuse(f"None of the {len(ids[split])} {split} images of {self.folder} is in {opened.root}")
            if gone := len(ids[split]) - len(samples):
                problems.append(f"{gone} of the {len(ids[split])} {split} images are no longer in {opened.root}.")
        splits["test"] = opened.splits.get("test", [])
        skipped = {entry["file"]: entry["reason"] for entry in self.record.get("skipped", [])}
        return RunImages(opened.root, where, splits, skipped, problems, self.copies)

    def cut(self, files: Sequence[Path]) -> list[Path | None]:
        """The same files as training saw them: for a run on images cropped to their boxes the crops, None where a file
        is not among its images."""
        if not self.card.get("roi"):
            return list(files)
        try:
            whole, parts = (open_data(**{**self._opened_with, "roi": roi}) for roi in (False, True))
        except (SicError, TypeError):  # without the data there are no boxes
            return [None] * len(files)
        known = {sample.id: sample.path for samples in parts.splits.values() for sample in samples}
        everything = [sample for samples in whole.splits.values() for sample in samples]
        cut = {sample.path.resolve(): known[sample.id] for sample in everything if sample.id in known}
        return [cut.get(file.resolve()) for file in files]


def kind_of_images(name: str) -> str:
    """The kind of images in the name of a held-out set, for sentences about them.

    >>> kind_of_images("validation images of birds")
    'validation images'
    """
    return name.partition(" of ")[0]


def held_out(
    data: ImageData, classes: Sequence[str], validation: Sequence[str] = (), decided: str | None = None
) -> HeldOut:
    """Test images; else validation images; else all there are.

    Args:
        data: Labelled images.
        classes: Of the model.
        validation: Ids of its validation images. Where those are training images that it held out itself, the data's
            own validation images are as good as test images.
        decided: What keeps the validation images from being a fair test.
    """
    known = set(validation)
    everything = [sample for samples in data.splits.values() for sample in samples]
    own = [sample for sample in everything if sample.id in known]
    val = data.splits.get("val", [])
    unseen = bool(val and own) and not any(sample.id in known for sample in val)
    choices = [
        ("test images", None, data.splits.get("test", [])),
        ("validation images", None if unseen else decided, val or own),
        ("images", SEEN, everything),
    ]
    name, warning, samples = next(choice for choice in choices if choice[2])
    return HeldOut(f"{name} of {data.name}", warning, _relabelled(samples, data, classes))


def _with_copies(images: HeldOut, copies: Mapping[str, str | None]) -> HeldOut:
    """The images with a caution about copies; `copies`: their ids and, if it is known, the original of each."""
    found = [sample.id for sample in images.samples if sample.id in copies]
    if not found:
        return images
    original = f" (of {copies[found[0]]})" if copies[found[0]] else ""
    copied = "are copies" if len(found) > 1 else "is a copy"
    others = "Accuracy is also given without copies." if len(found) < len(images.samples) else "There are no others."
    sentence = (
        f"{len(found)} of these {len(images.samples)} images {copied} of images that the model was trained or chosen "
        f"on, such as {found[0]}{original}. {others}"
    )
    return replace(images, caution=" ".join(filter(None, [images.caution, sentence])), copies=frozenset(found))


def _relabelled(samples: Sequence[Sample], data: ImageData, classes: Sequence[str]) -> list[Sample]:
    """Labels as the model numbers its classes; samples with a class that it does not know are left out."""
    if list(data.classes) == list(classes):
        return list(samples)
    numbers = {name: number for number, name in enumerate(classes)}
    names = data.classes
    result = []
    for sample in samples:
        boxes = tuple(replace(b, label=numbers[names[b.label]]) for b in sample.boxes if names[b.label] in numbers)
        if all(names[label] in numbers for label in sample.labels):
            labels = tuple(numbers[names[label]] for label in sample.labels)
            result.append(replace(sample, labels=labels, boxes=boxes))
    if not result:
        raise SicError(
            f"{data.root} shows none of the model's classes ({', '.join(classes[:5])}, …), but {', '.join(names[:5])}; "
            "give data with the names that the model was trained with."
        )
    return result


def spread(count: int, most: int | None) -> list[int]:
    """Positions of at most so many of `count` things, evenly spread over their order (by class in most layouts).

    >>> spread(10, 3), spread(2, 3), spread(2, None)
    ([1, 5, 8], [0, 1], [0, 1])
    """
    if most is None or count <= most:
        return list(range(count))
    return [int((number + 0.5) * count / most) for number in range(most)]
