"""From an edit to the supports that a model would have: what is allowed, and what is refused with a sentence."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sic.clinic.examined import Examined
from sic.data.dataset import Sample
from sic.errors import SicError
from sic.run import RunImages
from sic.supports import Edit, Support, find_support, replaced, select_class


def plan(
    edit: Edit, examined: Examined, images: RunImages, unwanted: set[tuple[int, str]]
) -> tuple[int, list[Support]]:
    """The class that the edit is about, and all supports after it.

    `unwanted`: images that the user took out before, with the class; they are not selected again.
    """
    supports = examined.supports
    if edit.action == "reselect":
        label = class_index(examined.classes, str(edit.label))
        chosen = _selected(
            label, [support for support in supports if support.label == label], edit.number, examined, unwanted
        )
        return label, replaced(supports, label, chosen)
    if edit.action == "add":
        label = class_index(examined.classes, str(edit.label))
        own = [support for support in supports if support.label == label]
        return label, replaced(supports, label, [*own, Support(label, _image(edit, label, examined, images))])
    assert edit.support is not None
    index = find_support(supports, edit.support)
    support = supports[index]
    name = examined.classes[support.label]
    if edit.action == "drop":
        if sum(other.label == support.label for other in supports) == 1:
            raise SicError(
                f"{support.source} is the last support of {name}, and a class needs one; replace it instead, or choose "
                f"others with reselect."
            )
        return support.label, supports[:index] + supports[index + 1 :]
    if edit.action == "replace":
        image = _image(edit, support.label, examined, images)
        return support.label, [*supports[:index], Support(support.label, image), *supports[index + 1 :]]
    pinned = edit.action == "pin"
    if support.pinned == pinned:
        raise SicError(f"{support.source} is {'pinned already' if pinned else 'not pinned'}.")
    return support.label, [*supports[:index], replace(support, pinned=pinned), *supports[index + 1 :]]


def _image(edit: Edit, label: int, examined: Examined, images: RunImages) -> str:
    """The id of the image that is to stand for a class."""
    image = find_image(str(edit.image), examined, images)
    _refuse(image, label, edit.force, examined)
    if any(support.label == label and support.source == image.id for support in examined.supports):
        raise SicError(f"{image.id} is a support of {examined.classes[label]} already; choose another image.")
    return image.id


def class_index(classes: Sequence[str], name: str) -> int:
    if name not in classes:
        raise SicError(f"The model has no class {name!r}; it knows {', '.join(classes)}.")
    return classes.index(name)


def find_image(said: str, examined: Examined, images: RunImages) -> Sample:
    """The training image that a user means: by its id, or by the path of its file."""
    for sample in examined.splits["train"]:
        if said in (sample.id, str(sample.path)):
            return sample
    if said in images.skipped:
        raise SicError(f"{said} cannot be a support: it was left out of the training ({images.skipped[said]}).")
    for split, samples in images.splits.items():
        for sample in samples:
            if said not in (sample.id, str(sample.path)):
                continue
            if split == "train":
                raise SicError(f"{said} cannot be a support: {examined.latents.unreadable[sample.id]}.")
            raise SicError(
                f"{said} is a {split} image: as a support it would be compared with itself there. Choose a training "
                "image."
            )
    raise SicError(f"No training image in {images.root} is called {said!r}; give its path below that folder.")


def _refuse(image: Sample, label: int, force: bool, examined: Examined) -> None:
    shown = " and ".join(examined.names(image)) or "none of the classes"
    if len(image.labels) != 1:
        raise SicError(f"{image.id} shows {shown}: only an image of exactly one class can stand for a class.")
    if image.labels[0] != label and not force:
        raise SicError(f"{image.id} shows {shown}, not {examined.classes[label]}; --force if you mean it.")


def _selected(
    label: int, before: Sequence[Support], number: int | None, examined: Examined, unwanted: set[tuple[int, str]]
) -> list[Support]:
    """As training does: k-means on the latents of the class, then the nearest real ones; pinned supports stay."""
    name = examined.classes[label]
    pinned = [support for support in before if support.pinned]
    number = len(before) if number is None else number
    if number < len(pinned):
        raise SicError(f"{name} has {len(pinned)} pinned supports, which reselect does not remove; unpin some first.")
    fixed = {support.source for support in pinned}
    ids = [
        sample.id
        for sample in examined.splits["train"]
        if sample.id in fixed or (sample.labels == (label,) and (label, sample.id) not in unwanted)
    ]
    rows_fixed = [row for row, id in enumerate(ids) if id in fixed]
    lost = len(pinned) - len(rows_fixed)  # pinned supports whose images are gone
    if len(ids) + lost < number:
        raise SicError(f"{name} has {len(ids) + lost} images that can be supports, not {number}.")
    seed = int(examined.model.config.training.get("seed", 0))
    latents = np.asarray(examined.latents.of(ids), dtype=np.float32)
    rows = select_class(latents, number - lost, seed, rows_fixed)
    return [*pinned, *(Support(label, ids[row]) for row in rows.tolist() if ids[row] not in fixed)]
