"""The one rule for answers: by hand, and against predictions of single images."""

from pathlib import Path

import pytest
import torch

from sic.calibration import Calibration, Promise
from sic.data.dataset import Sample
from sic.predictions import Answers, Predictions
from sic.settings import Loss
from tests.report.conftest import Saved, single

__all__ = ["single"]


def known(*labels: tuple[int, ...]) -> list[Sample]:
    return [Sample(f"{row}.png", Path(f"{row}.png"), own) for row, own in enumerate(labels)]


def test_sigmoids() -> None:
    """The first image has one class above 50 %, the second two, the third none."""
    logits = torch.tensor([[1.0, -1, -2], [2, 1, -1], [-3, -2, -1]])
    single, multi = Answers(logits, "single"), Answers(logits, "multi")
    assert single.labels == [[0], [0], [2]] and multi.labels == [[0], [0, 1], []]
    for answers in (single, multi):
        assert answers.similar_case.tolist() == [True, True, False] and answers.nearest.tolist() == [0, 0, 2]
        assert torch.equal(answers.scores, logits)
        torch.testing.assert_close(answers.probabilities, logits.double().sigmoid())
    assert single.accepted.nonzero().tolist() == [[0, 0], [1, 0]]


def test_softmax() -> None:
    """Where classes compete, a logit above 0 is not a yes, and one below is not a no."""
    logits = torch.tensor([[3.0, 2.9, 2.8], [-1, -5, -5]])
    answers = Answers(logits, "single", "ce")
    assert answers.similar_case.tolist() == [False, True] and answers.labels == [[0], [0]]
    assert Answers(logits, "multi", "ce").labels == [[], [0]]
    assert (answers.scores >= 0).tolist() == answers.found.tolist()
    assert Answers(logits, "single").similar_case.tolist() == [True, False]


def test_very_sure_answers_are_not_mixed_up() -> None:
    """Where the probabilities of several classes are 1, the highest logit still wins."""
    answers = Answers(torch.tensor([[50.0, 60, 55]]), "single")
    assert (answers.probabilities == 1).all() and answers.labels == [[1]]


def test_mistakes() -> None:
    logits = torch.tensor([[1.0, -1, 2], [-1, -1, -2]])
    targets = torch.tensor([[1.0, 1, 0], [0, torch.nan, 1]])
    assert Answers(logits, "multi").mistakes(targets).tolist() == [2, 1]
    assert Answers(logits, "single").mistakes(targets).tolist() == [1, 1]
    assert Answers(logits, "single").mistakes(torch.tensor([[0.0, 0, 1], [1, 1, 0]])).tolist() == [0, 0]


@pytest.mark.parametrize("loss", ["bce", "ce"])
@pytest.mark.parametrize("score", [None, -3.0])
def test_no_similar_case_is_never_promised(loss: Loss, score: float | None) -> None:
    """Neither by a promise for all answers nor by one for scores above a low one."""
    promise = Promise(score, 0.05, 0.95, 100, 100, 0)
    logits = torch.tensor([[3.0, -2, -2], [0.3, 0.2, 0.1], [-0.2, -2, -2]])
    answers = Answers(logits, "single", loss, Calibration(threshold=0.5 if loss == "bce" else 0.0, promise=promise))
    assert answers.similar_case.tolist() == answers.promised.tolist() == [True, False, loss == "ce"]


@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_who_relies_on_a_support(loss: str) -> None:
    """Two supports of class 0, one of class 1, T = 1, bias -2."""
    evidence = torch.tensor([[2.0, 1, 0], [1, 0.5, 0], [3, 3, 0], [1, 2, 2.9]])
    owners = torch.tensor([0, 0, 1])
    logits = torch.stack([evidence[:, :2].sum(dim=1), evidence[:, 2]], dim=1) - 2
    labels = known((0,), (0,), (0,), (1,))
    found = Predictions(
        logits,
        "single",
        loss,  # type: ignore[arg-type]
        samples=labels,
        classes=["a", "b"],
        evidence=evidence,
        owners=owners,
    )
    by_row = {one.row: one for one in found.relying_on(0)}
    if loss == "bce":
        # The second image is below 50 %. Without the support the first is, too; the last goes to the other class.
        assert {row: one.decisive for row, one in by_row.items()} == {0: True, 2: False, 3: True}
    else:
        # Of two classes one is always above 50 %.
        assert {row: one.decisive for row, one in by_row.items()} == {0: False, 1: False, 2: False, 3: True}
    assert by_row[0].evidence == 2 and by_row[0].share == pytest.approx(2 / 3)
    assert [one.evidence for one in found.relying_on(0)] == sorted(one.evidence for one in by_row.values())[::-1]


def test_predictions_of_a_model(single: Saved) -> None:
    samples = single.data.splits["test"][:6]
    found = single.model.predictions(samples)
    alone = [single.model.predict(sample.path) for sample in samples]
    assert [found.answer(row) for row in range(6)] == [one.labels for one in alone]
    assert found.similar_case.tolist() == [one.similar_case for one in alone]
    with torch.no_grad():
        views = torch.stack([single.model.tensor(sample.path) for sample in samples])
        torch.testing.assert_close(found.logits, single.model.classifier(views), rtol=1e-4, atol=1e-4)
    right = [single.model.predict(s.path).labels == [single.model.classes[s.labels[0]]] for s in samples]
    assert found.quality["accuracy"] == pytest.approx(sum(right) / 6)
    assert found.right.tolist() == right


def test_very_sure_predictions_of_a_model(single: Saved) -> None:
    samples = [sample for sample in single.data.splits["test"] if sample.labels != (0,)]
    found = single.model.predictions(samples)
    assert (found.logits.sigmoid() == 1).sum(dim=1).max() > 1
    assert [found.answer(row) for row in range(len(samples))] == [
        single.model.predict(sample.path).labels for sample in samples
    ]
