from pathlib import Path

import pytest

from sic.data.dataset import Box, ImageData, Sample
from sic.errors import SicError
from sic.evaluate.held_out import CHOSEN_ON, SEEN, held_out


def sample(name: str, *labels: int, boxes: tuple[Box, ...] = ()) -> Sample:
    return Sample(name, Path(name), labels, boxes)


def data(**splits: list[Sample]) -> ImageData:
    return ImageData("photos", Path("photos"), "class folders", ("cat", "dog"), splits)


def test_the_fairest_images_come_first() -> None:
    train, val, test = [sample("a", 0), sample("b", 1)], [sample("c", 0)], [sample("d", 1)]
    found = held_out(data(train=train, val=val, test=test), ["cat", "dog"])
    assert (found.name, found.caution, found.samples) == ("test images of photos", None, test)
    found = held_out(data(train=train, val=val), ["cat", "dog"])
    assert (found.name, found.caution, found.samples) == ("validation images of photos", CHOSEN_ON, val)
    found = held_out(data(train=train), ["cat", "dog"], ["b"])
    assert found.caution == CHOSEN_ON and found.samples == train[1:]
    found = held_out(data(train=train), ["cat", "dog"])
    assert found.caution == SEEN and found.samples == train


def test_labels_are_those_of_the_model() -> None:
    boxes = (Box(1, 0, 0, 1, 1), Box(0, 0, 0, 2, 2))
    test = [sample("a", 0), sample("b", 1, boxes=boxes)]
    found = held_out(data(test=test), ["horse", "dog"])
    assert [s.id for s in found.samples] == ["b"] and found.samples[0].labels == (1,)
    assert found.samples[0].boxes == boxes[:1]
    swapped = held_out(data(test=test), ["dog", "cat"]).samples
    assert [s.labels for s in swapped] == [(1,), (0,)] and [b.label for b in swapped[1].boxes] == [0, 1]
    with pytest.raises(SicError, match="none of the model's classes"):
        held_out(data(test=test), ["horse", "cow"])
