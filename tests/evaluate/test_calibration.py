import math

import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from sic.evaluate.accuracy import calibration_figures, expected_error, reliability


def answers(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.rand(rows, classes, generator=generator)
    return probabilities, torch.randint(0, 2, (rows, classes), generator=generator).float()


def test_single_labels_against_torchmetrics() -> None:
    probabilities, _ = answers(300, 5)
    labels = torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(1))
    truth = torch.nn.functional.one_hot(labels, 5).float()
    found = calibration_figures(probabilities, truth, torch.ones(300, 5).bool(), single=True)
    expected = multiclass_calibration_error(probabilities, labels, 5, n_bins=15)
    assert found["ece"] == pytest.approx(expected.item(), abs=1e-6)


def test_several_labels_against_torchmetrics() -> None:
    """What does not count is left out."""
    probabilities, truth = answers(80, 4)
    counts = torch.rand(80, 4, generator=torch.Generator().manual_seed(2)) < 0.8
    found = calibration_figures(probabilities, truth, counts, single=False)
    expected = binary_calibration_error(probabilities[counts], truth[counts].long(), n_bins=15)
    assert found["ece"] == pytest.approx(expected.item(), abs=1e-6)
    assert sum(b["answers"] for b in found["reliability"]) == int(counts.sum())


def test_the_curve_by_hand() -> None:
    confidence = torch.tensor([0.0, 0.1, 0.5, 0.7, 1.0])
    right = torch.tensor([0, 1, 1, 0, 1])
    low, high = reliability(confidence, right, bins=2)
    assert (low.low, low.high, low.answers) == (0, 0.5, 2) and high.answers == 3
    assert low.confidence == pytest.approx(0.05) and low.accuracy == 0.5
    assert high.confidence == pytest.approx(2.2 / 3) and high.accuracy == pytest.approx(2 / 3)
    assert expected_error([low, high]) == pytest.approx((2 * 0.45 + 3 * (2.2 - 2) / 3) / 5)


def test_a_model_that_is_always_right_and_sure() -> None:
    curve = reliability(torch.ones(4), torch.ones(4))
    assert expected_error(curve) == 0 and curve[-1].answers == 4 and curve[0].confidence is None
    assert math.isnan(expected_error(reliability(torch.ones(0), torch.ones(0))))
