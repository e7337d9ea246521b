"""What the model said about images."""

import pytest
import torch

from sic.evaluate.held_out import HeldOut
from sic.report import attempt
from tests.report.conftest import Saved


def test_what_the_model_said(single: Saved) -> None:
    samples = single.data.splits["test"][:6]
    trial = attempt(single.model, HeldOut("some", None, samples))
    with torch.no_grad():
        views = torch.stack([single.model.tensor(sample.path) for sample in samples])
        torch.testing.assert_close(trial.logits, single.model.classifier(views), rtol=1e-4, atol=1e-4)
    right = [single.model.predict(s.path).labels == [single.model.classes[s.labels[0]]] for s in samples]
    assert trial.figures["accuracy"] == pytest.approx(sum(right) / 6)
    assert trial.latents.ids == [sample.id for sample in samples]


def test_very_sure_answers_are_not_mixed_up(single: Saved) -> None:
    """Where the probabilities of several classes are 1 in 32 bits, the highest logit still wins."""
    samples = [sample for sample in single.data.splits["test"] if sample.labels != (0,)]
    logits = attempt(single.model, HeldOut("some", None, samples)).logits
    assert (logits.sigmoid() == 1).sum(dim=1).max() > 1
    said = [single.model.predict(sample.path).labels[0] for sample in samples]
    assert said == [single.model.classes[label] for label in logits.argmax(dim=1).tolist()]
