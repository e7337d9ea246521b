import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from sic.data.dataset import Box, Sample
from sic.data.labels import Targets, average_precisions, mean_precision, shared, split_targets, targets


def sample(labels: tuple[int, ...], *difficult: int) -> Sample:
    boxes = [Box(label, 0, 0, 9, 9, difficult=True) for label in difficult]
    return Sample("a.png", Path("a.png"), labels, (*boxes, *(Box(label, 0, 0, 5, 5) for label in labels)))


def test_targets_are_multi_hot_and_unknown_where_nobody_is_sure() -> None:
    found = targets([sample((1,)), sample((0, 2), 2), sample((), 0), sample((2,), 0, 1)], 3)
    truth, counts = split_targets(found)
    assert truth.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert counts.tolist() == [[True] * 3, [True] * 3, [False, True, True], [False, False, True]]
    assert found.isnan().tolist() == (~counts).tolist()


def test_correct_answers_share_one_and_the_rest_stays() -> None:
    found = shared(targets([sample((1,)), sample((0, 2)), sample(()), sample((2,), 0), sample((0, 1, 2))], 3))
    wanted = [[0, 1, 0], [1 / 2, 0, 1 / 2], [0, 0, 0], [math.nan, 0, 1], [1 / 3] * 3]
    torch.testing.assert_close(found, torch.tensor(wanted), equal_nan=True)


def test_average_precisions_leave_out_what_does_not_count() -> None:
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(size=(60, 4)).round(1), (rng.random((60, 4)) < 0.3).astype(float)
    truth[:, 3] = 0
    counts = rng.random((60, 4)) < 0.8
    found = average_precisions(torch.tensor(scores), torch.tensor(np.where(counts, truth, math.nan)))
    for label in range(3):
        rows = counts[:, label]
        assert found[label] == pytest.approx(average_precision_score(truth[rows, label], scores[rows, label]))
    assert found[3] is None
    assert mean_precision(found) == pytest.approx(sum(value for value in found if value is not None) / 3)
    assert mean_precision([None, None]) == 0


def test_targets_made_when_asked_for_are_the_same() -> None:
    samples = [
        Sample(str(i), Path(str(i)), (i % 3,), (Box((i + 1) % 3, 0, 0, 1, 1, difficult=True),)) for i in range(7)
    ]
    whole, asked = targets(samples, 3), Targets(samples, 3)
    rows = np.array([5, 0, 0, 6])
    assert torch.equal(asked[rows].nan_to_num(9), whole[rows].nan_to_num(9))
    assert torch.equal(asked[4].nan_to_num(9), whole[4].nan_to_num(9))
