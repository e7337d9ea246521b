"""Which images the model is tried on, and with whose labels."""

from pathlib import Path

import pytest
import torch

from sic.data.dataset import Box, ImageData, Sample
from sic.errors import SicError
from sic.report import attempt, held_out
from sic.report.trial import CHOSEN_ON, SEEN
from tests.report.conftest import Saved


def data(**splits: list[Sample]) -> ImageData:
    return ImageData("birds", Path("birds"), "class folders", ("a", "b", "c"), splits)


ONE, TWO = Sample("1", Path("1"), (0,)), Sample("2", Path("2"), (2,), (Box(1, 0, 0, 1, 1, True), Box(2, 0, 0, 1, 1)))


def test_the_fairest_images_at_hand() -> None:
    classes = ["a", "b", "c"]
    assert held_out(data(train=[ONE], test=[TWO]), classes, ["1"]) == ("test images of birds", None, [TWO])
    given = held_out(data(train=[ONE], val=[TWO]), classes, [])
    assert given == ("validation images of birds", CHOSEN_ON, [TWO])
    split_off = held_out(data(train=[ONE, TWO]), classes, ["2"])
    assert split_off == ("validation images of birds", CHOSEN_ON, [TWO])
    assert held_out(data(train=[ONE, TWO]), classes, []) == ("images of birds", SEEN, [ONE, TWO])


def test_labels_are_the_models() -> None:
    _, _, samples = held_out(data(test=[ONE, TWO]), ["c", "b"], [])
    (only,) = samples  # the model does not know what the first one shows
    assert only.labels == (0,) and [box.label for box in only.boxes] == [1, 0]
    assert only.unsure == (1,)
    with pytest.raises(SicError, match="none of the model's classes"):
        held_out(data(test=[ONE]), ["x", "y"], [])


def test_what_the_model_said(single: Saved) -> None:
    samples = single.data.splits["test"][:6]
    trial = attempt(single.model, samples, "some")
    with torch.no_grad():
        views = torch.stack([single.model.tensor(sample.path) for sample in samples])
        torch.testing.assert_close(trial.logits, single.model.classifier(views), rtol=1e-4, atol=1e-4)
    right = [single.model.predict(s.path).labels == [single.model.classes[s.labels[0]]] for s in samples]
    assert trial.figures["accuracy"] == pytest.approx(sum(right) / 6)
    assert trial.latents.ids == [sample.id for sample in samples]


def test_very_sure_answers_are_not_mixed_up(single: Saved) -> None:
    """Where the probabilities of several classes are 1 in 32 bits, the highest logit still wins."""
    samples = [sample for sample in single.data.splits["test"] if sample.labels != (0,)]
    logits = attempt(single.model, samples, "some").logits
    assert (logits.sigmoid() == 1).sum(dim=1).max() > 1
    said = [single.model.predict(sample.path).labels[0] for sample in samples]
    assert said == [single.model.classes[label] for label in logits.argmax(dim=1).tolist()]
