"""Edits of supports: the supports after an edit, its effect on the answers, and its record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sic.calibration import Promise, promise_from_json
from sic.clinic.examined import Examined
from sic.data.dataset import Sample
from sic.directory import CONFIG
from sic.errors import SicError
from sic.integrity import check_fields
from sic.predictions import Predictions
from sic.run import RunImages
from sic.supports import Edit, Support, find_support, replaced, select_class, select_varied

Direction = Literal["to_right", "to_wrong", "neither"]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Record:
    """The record of one edit."""

    action: str
    label: str
    """The class whose supports were edited."""
    removed: list[str]
    added: list[str]
    before: dict[str, Any]
    after: dict[str, Any]
    """Metrics on the validation images."""
    to_right: list[str]
    to_wrong: list[str]
    """The validation images whose answers became right, and wrong."""
    supports_before: list[list[Any]]
    """The supports of the class before the edit, with their pins, for undo."""
    forced: bool = False
    """Whether an image of another class was allowed."""
    when: str = field(default_factory=now)
    undone: str | None = None
    """When it was undone."""
    promise: Promise | None = None
    """The promise of the model that it ended."""


def recorded(edits: Sequence[Mapping[str, Any]], where: Path) -> list[Record]:
    """The edits that the configuration of the model in `where` lists."""
    try:
        records = [Record(**{**edit, "promise": promise_from_json(edit.get("promise"))}) for edit in edits]
        for record in records:
            check_fields(record)
            if not all(map(_is_support, record.supports_before)):
                raise ValueError("supports_before must be images and whether they are pinned")
    except (TypeError, ValueError) as error:
        raise SicError(f"The list of edits in {where / CONFIG} is damaged ({error}); copy the model again.") from None
    return records


def _is_support(entry: list[Any]) -> bool:
    """Whether an entry of `supports_before` is an image and its pin."""
    return len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], bool)


def standing(records: Sequence[Record]) -> list[Record]:
    """The edits that were not undone."""
    return [record for record in records if record.undone is None]


def same_supports(records: Sequence[Record]) -> bool:
    """Whether the supports are those that training selected, apart from pins."""
    return all(record.action in ("pin", "unpin") for record in standing(records))


def taken_out(records: Sequence[Record]) -> set[tuple[str, str]]:
    """Classes and images that the user removed from their supports and has not added since."""
    out: set[tuple[str, str]] = set()
    for record in standing(records):
        if record.action in ("drop", "replace"):
            out |= {(record.label, source) for source in record.removed}
        out -= {(record.label, source) for source in record.added}
    return out


def unwanted(examined: Examined) -> set[tuple[int, str]]:
    """Classes and images that the user removed before; they are not selected again."""
    records = recorded(examined.model.config.edits, examined.model.folder or Path())
    return {(class_index(examined.classes, label), source) for label, source in taken_out(records)}


def plan(edit: Edit, examined: Examined, images: RunImages | None = None) -> tuple[int, list[Support]]:
    """The class of an edit, and all supports after it.

    `images`: all images of the run, which say why an image cannot be a support.
    """
    supports = examined.supports
    if edit.action == "reselect":
        label = class_index(examined.classes, str(edit.label))
        chosen = _selected(label, [support for support in supports if support.label == label], edit, examined)
        return label, replaced(supports, label, chosen)
    if edit.action == "add":
        label = class_index(examined.classes, str(edit.label))
        own = [support for support in supports if support.label == label]
        return label, replaced(supports, label, [*own, Support(label, _image(edit, label, examined, images))])
    assert edit.support is not None
    index = find_support(supports, edit.support, examined.classes)
    support = supports[index]
    name = examined.classes[support.label]
    if edit.action == "drop":
        if sum(other.label == support.label for other in supports) == 1:
            raise SicError(
                f"{support.source} is the last support of {name}, and a class needs one; replace it, or use reselect."
            )
        return support.label, supports[:index] + supports[index + 1 :]
    if edit.action == "replace":
        image = _image(edit, support.label, examined, images)
        return support.label, [*supports[:index], Support(support.label, image), *supports[index + 1 :]]
    pinned = edit.action == "pin"
    if support.pinned == pinned:
        raise SicError(f"{support.source} is {'pinned already' if pinned else 'not pinned'}.")
    return support.label, [*supports[:index], replace(support, pinned=pinned), *supports[index + 1 :]]


def _image(edit: Edit, label: int, examined: Examined, images: RunImages | None) -> str:
    """The id of the image that becomes a support of a class."""
    image = find_image(str(edit.image), examined, images)
    _refuse(image, label, edit.force, examined)
    if any(support.label == label and support.source == image.id for support in examined.supports):
        raise SicError(f"{image.id} is a support of {examined.classes[label]} already; choose another image.")
    return image.id


def class_index(classes: Sequence[str], name: str) -> int:
    if name not in classes:
        raise SicError(f"The model has no class {name!r}; it knows {', '.join(classes)}.")
    return classes.index(name)


def find_image(name: str, examined: Examined, images: RunImages | None = None) -> Sample:
    """A training image by its id, or by the path of its file; `images` as in `plan`."""
    for sample in examined.splits["train"]:
        if name in (sample.id, str(sample.path)):
            return sample
    if images is None:
        raise SicError(f"No training image is called {name!r}.")
    if name in images.skipped:
        raise SicError(f"{name} cannot be a support: it was left out of the training ({images.skipped[name]}).")
    for split, samples in images.splits.items():
        for sample in samples:
            if name not in (sample.id, str(sample.path)):
                continue
            if split == "train":
                raise SicError(f"{name} cannot be a support: {examined.latents.unreadable[sample.id]}.")
            raise SicError(
                f"{name} is a {split} image, which would then be compared with itself; choose a training image."
            )
    raise SicError(f"No training image in {images.root} is called {name!r}; give its path below that folder.")


def _refuse(image: Sample, label: int, force: bool, examined: Examined) -> None:
    shown = " and ".join(examined.names(image)) or "none of the classes"
    if len(image.labels) != 1:
        raise SicError(f"{image.id} shows {shown}: only an image of exactly one class can be a support.")
    if image.labels[0] != label and not force:
        raise SicError(f"{image.id} shows {shown}, not {examined.classes[label]}; use --force to take it anyway.")


def selects_varied(examined: Examined) -> bool:
    """Whether training selected the supports by the directions of latents."""
    return examined.model.config.training.get("inference_supports") == "varied"


def _selected(label: int, before: Sequence[Support], edit: Edit, examined: Examined) -> list[Support]:
    """Select supports by k-means on the latents of the class, or on their directions; pinned supports stay."""
    name = examined.classes[label]
    pinned = [support for support in before if support.pinned]
    number = len(before) if edit.number is None else edit.number
    if number < len(pinned):
        raise SicError(f"{name} has {len(pinned)} pinned supports, which reselect does not remove; unpin some first.")
    if number == len(pinned):
        return pinned
    fixed, avoided = {support.source for support in pinned}, unwanted(examined)
    ids = [
        sample.id
        for sample in examined.splits["train"]
        if sample.id in fixed or (sample.labels == (label,) and (label, sample.id) not in avoided)
    ]
    rows_fixed = [row for row, id in enumerate(ids) if id in fixed]
    lost = len(pinned) - len(rows_fixed)  # pinned supports whose images are gone
    if len(ids) + lost < number:
        raise SicError(f"{name} has {len(ids) + lost} images that can be supports, not {number}.")
    seed = int(examined.model.config.training.get("seed", 0))
    latents = np.asarray(examined.latents.of(ids), dtype=np.float32)
    varied = selects_varied(examined) if edit.varied is None else edit.varied
    chosen = select_varied if varied else select_class
    rows = chosen(latents, number - lost, seed, rows_fixed)
    return [*pinned, *(Support(label, ids[row]) for row in rows.tolist() if ids[row] not in fixed)]


@dataclass(frozen=True)
class Flip:
    """An image whose answer changes."""

    id: str
    truth: list[str]
    before: list[str]
    after: list[str]
    direction: Direction
    """If images can have several labels: towards fewer or more wrong ones."""


@dataclass(frozen=True)
class Outcome:
    """The effect of an edit on the validation images."""

    labels: list[str]
    """The classes whose supports change."""
    removed: list[str]
    added: list[str]
    before: dict[str, Any]
    """Metrics: `accuracy`, or `map` if images can have several labels, and others."""
    after: dict[str, Any]
    flips: list[Flip]

    def ids(self, direction: Direction) -> list[str]:
        """The ids of the images whose answer changes in this direction."""
        return [flip.id for flip in self.flips if flip.direction == direction]


def compare(before: Examined, after: Examined) -> Outcome:
    """Compare two sets of supports of the same model on the same images."""
    old, new = Counter(before.supports), Counter(after.supports)
    labels = sorted({support.label for support in (old - new) + (new - old)})
    removed, added = _sources(before.supports, after.supports), _sources(after.supports, before.supports)
    was, now = before.predictions("validation"), after.predictions("validation")
    return Outcome(
        [before.classes[label] for label in labels],
        removed,
        added,
        _numbers(was.quality),
        _numbers(now.quality),
        _flips(was, now),
    )


def _sources(of: Sequence[Support], without: Sequence[Support]) -> list[str]:
    known = {(support.label, support.source) for support in without}
    return [support.source for support in of if (support.label, support.source) not in known]


def _numbers(figures: dict[str, Any]) -> dict[str, Any]:
    """Metrics without those per class."""
    return {name: value for name, value in figures.items() if not isinstance(value, dict)}


def _flips(before: Predictions, after: Predictions) -> list[Flip]:
    change = (after.mistakes(after.targets) - before.mistakes(before.targets)).tolist()
    return [
        Flip(
            before.samples[row].id,
            before.truth(row),
            before.answer(row),
            after.answer(row),
            "to_right" if change[row] < 0 else "to_wrong" if change[row] > 0 else "neither",
        )
        for row in (before.answers != after.answers).any(dim=1).nonzero()[:, 0].tolist()
    ]
