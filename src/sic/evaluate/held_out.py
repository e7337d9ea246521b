"""Which labelled images a model is judged by: the fairest ones at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sic.data.dataset import ImageData, Sample
from sic.errors import SicError

CHOSEN_ON = "The model was chosen among others by how well it did on these very images, so they flatter it."
SEEN = "The model may have been trained on these images: this says little about images that it has not seen."


@dataclass(frozen=True)
class HeldOut:
    """Images to judge a model by, labelled with the model's classes."""

    name: str
    """For people: which images of which data."""
    caution: str | None
    """What keeps them from being a fair test."""
    samples: list[Sample]


def held_out(data: ImageData, classes: Sequence[str], validation: Sequence[str] = ()) -> HeldOut:
    """Test images; else validation images; else all there are.

    `validation`: ids that the model was chosen on. Where those are training images that it held out itself, the data's
    own validation images are as good as test images.
    """
    known = set(validation)
    everything = [sample for samples in data.splits.values() for sample in samples]
    own = [sample for sample in everything if sample.id in known]
    val = data.splits.get("val", [])
    unseen = bool(val and own) and not any(sample.id in known for sample in val)
    choices = [
        ("test images", None, data.splits.get("test", [])),
        ("validation images", None if unseen else CHOSEN_ON, val or own),
        ("images", SEEN, everything),
    ]
    name, caution, samples = next(choice for choice in choices if choice[2])
    return HeldOut(f"{name} of {data.name}", caution, _relabelled(samples, data, classes))


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
