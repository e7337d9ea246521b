"""Which images are shown: against what a person would pick from a small table."""

from pathlib import Path

import pytest
import torch

from sic.data.dataset import Sample, Task
from sic.predictions import Predictions
from sic.report.examples import Confusion, Example, confusions, select


def samples(*labels: tuple[int, ...]) -> list[Sample]:
    return [Sample(f"{row}.png", Path(f"{row}.png"), own) for row, own in enumerate(labels)]


def predictions(logits: torch.Tensor, known: list[Sample], task: Task = "single") -> Predictions:
    nothing = torch.zeros(len(known), 0)
    names = "abc"[: logits.shape[1]]
    return Predictions(logits, task, samples=known, classes=names, evidence=nothing, owners=nothing[0])


LOGITS = torch.tensor(
    [
        [3.0, -1.0, -2.0],  # right
        [2.0, -1.0, -2.0],  # wrong: it is 1
        [5.0, -1.0, -2.0],  # wrong: it is 1, surer
        [-2.0, -0.1, -3.0],  # right, but unsure
        [-2.0, -3.0, 4.0],  # right
        [-2.0, 1.0, -3.0],  # wrong: it is 2
    ]
)
TRUTH = samples((0,), (1,), (1,), (1,), (2,), (2,))


def test_single_label_cases() -> None:
    found = select(predictions(LOGITS, TRUTH), 2)
    # The surest mistake first, then the surest one of another class.
    assert found.wrong == [Example(2, (0, 1)), Example(5, (1, 2))]
    assert found.unsure == [Example(3, (1,)), Example(1, (0, 1))]
    assert {example.row for example in found.right} == {0, 4}
    assert (found.all_right, found.all_wrong) == (2, 3)  # the third right one has no similar case
    rows = [example.row for example in [*found.right, *found.wrong, *found.unsure]]
    assert len(rows) == len(set(rows))


def test_right_ones_are_random_but_repeatable() -> None:
    logits = torch.full((40, 2), -1.0)
    logits[:, 0] = torch.linspace(1, 2, 40)
    known = predictions(logits, samples(*[(0,)] * 40))
    picks = [[example.row for example in select(known, 5, seed).right] for seed in (0, 0, 1)]
    assert picks[0] == picks[1] != picks[2]


def test_several_right_answers() -> None:
    """Where any of several answers is right, that one is not a mistake."""
    known = predictions(torch.tensor([[1.0, 0.0, -1.0]]), samples((0, 1)))
    found = select(known, 3)
    assert found.all_right == 1 and not found.wrong
    assert confusions(known) == []


def test_single_label_confusions() -> None:
    assert confusions(predictions(LOGITS, TRUTH)) == [Confusion(1, 0, [2, 1]), Confusion(2, 1, [5])]


def test_multi_label_cases() -> None:
    logits = torch.tensor([[2.0, -4.0], [0.5, 3.0], [-0.2, -1.0]])
    known = predictions(logits, samples((0, 1), (1,), ()), "multi")
    found = select(known, 3)
    assert found.all_right == 2  # 0 in the first, 1 in the second
    assert found.all_wrong == 2  # 1 missed in the first, 0 found in the second
    assert found.wrong == [Example(0, (1,)), Example(1, (0,))]
    assert found.unsure == [Example(2, (0,))]
    assert confusions(known) == [Confusion(1, 0, [1])]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_nothing_wrong_is_fine(task: Task) -> None:
    found = select(predictions(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), samples((0,), (1,)), task), 4)
    assert found.wrong == [] and found.all_right == 2
