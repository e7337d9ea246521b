"""Which images a model is judged by, and with whose labels."""

from pathlib import Path

import pytest

from sic.data.dataset import Box, ImageData, Sample
from sic.errors import SicError
from sic.run import CHOSEN_ON, SEEN, HeldOut, held_out


def data(**splits: list[Sample]) -> ImageData:
    return ImageData("birds", Path("birds"), "class folders", ("a", "b", "c"), splits)


ONE, TWO = Sample("1", Path("1"), (0,)), Sample("2", Path("2"), (2,), (Box(1, 0, 0, 1, 1, True), Box(2, 0, 0, 1, 1)))


def test_the_fairest_images_at_hand() -> None:
    classes = ["a", "b", "c"]
    assert held_out(data(train=[ONE], test=[TWO]), classes, ["1"]) == HeldOut("test images of birds", None, [TWO])
    given = held_out(data(train=[ONE], val=[TWO]), classes)
    assert given == HeldOut("validation images of birds", CHOSEN_ON, [TWO])
    assert held_out(data(train=[ONE, TWO]), classes, ["2"]) == given
    assert held_out(data(train=[ONE, TWO]), classes) == HeldOut("images of birds", SEEN, [ONE, TWO])


def test_validation_images_that_nothing_was_chosen_on_are_a_fair_test() -> None:
    found = held_out(data(train=[ONE], val=[TWO]), ["a", "b", "c"], ["1"])  # the run held the first one out itself
    assert found == HeldOut("validation images of birds", None, [TWO])
    assert held_out(data(train=[ONE], val=[TWO]), ["a", "b", "c"], ["2"]).caution == CHOSEN_ON


def test_labels_are_the_models() -> None:
    (only,) = held_out(data(test=[ONE, TWO]), ["c", "b"]).samples  # the model does not know what the first one shows
    assert only.labels == (0,) and [box.label for box in only.boxes] == [1, 0]
    assert only.unsure == (1,)
    with pytest.raises(SicError, match="none of the model's classes"):
        held_out(data(test=[ONE]), ["x", "y"])
