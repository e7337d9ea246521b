from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score

from sic.data.dataset import Sample
from sic.evaluate.accuracy import accuracy_figures


def samples(labels: list[tuple[int, ...]]) -> list[Sample]:
    return [Sample(f"{i}.png", Path(f"{i}.png"), label) for i, label in enumerate(labels)]


def random_logits(rows: int, classes: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)) - 1


def random_labels(rows: int, classes: int) -> np.ndarray:
    """Multi-hot, n×C; every label and every image has at least one."""
    hot = np.random.default_rng(0).random((rows, classes)) < 0.3
    hot[np.arange(rows), np.arange(rows) % classes] = True
    return hot


def test_accuracy_against_scikit_learn() -> None:
    logits = random_logits(60, 4)
    truth = np.random.default_rng(1).integers(0, 4, 60)
    figures = accuracy_figures(logits, samples([(int(t),) for t in truth]), "single")
    assert figures["accuracy"] == pytest.approx(accuracy_score(truth, logits.argmax(1).numpy()))
    assert figures["images"] == 60
    assert figures["similar_case"] == pytest.approx((logits.sigmoid() >= 0.5).any(1).numpy().mean())
    assert set(figures) == {"accuracy", "images", "similar_case"}


def test_any_right_answer_counts() -> None:
    logits = torch.tensor([[2.0, 1, -1], [0, 3, 1], [-5, -4, -3], [1, 2, 0]])
    figures = accuracy_figures(logits, samples([(0, 1), (0, 2), (1, 2), (0, 1, 2)]), "single")
    assert figures["accuracy"] == 0.75 and figures["similar_case"] == 0.75


def test_average_precision_against_scikit_learn() -> None:
    logits, hot = random_logits(50, 5), random_labels(50, 5)
    figures = accuracy_figures(logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi")
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)
    assert figures["per_label_accuracy"] == pytest.approx(((logits.numpy() >= 0) == hot).mean())
    assert set(figures) == {"map", "per_label_accuracy", "images", "similar_case"}


def test_ties_are_one_threshold_as_in_scikit_learn() -> None:
    logits, hot = random_logits(50, 3).round(), random_labels(50, 3)
    figures = accuracy_figures(logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi")
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)


def test_large_logits_keep_their_order() -> None:
    logits, hot = 40 + 10 * random_logits(50, 3), random_labels(50, 3)
    figures = accuracy_figures(logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi")
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)


def test_labels_that_no_image_has_are_left_out() -> None:
    logits, hot = random_logits(40, 3), random_labels(40, 3)
    hot[:, 1] = False
    figures = accuracy_figures(logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi")
    others = [average_precision_score(hot[:, label], logits[:, label].numpy()) for label in (0, 2)]
    assert figures["map"] == pytest.approx(sum(others) / 2, abs=1e-6)
    assert figures["per_label_accuracy"] == pytest.approx(((logits.numpy() >= 0) == hot).mean())


def test_one_label_that_images_have_is_enough() -> None:
    logits = random_logits(40, 3)
    hot = random_logits(40, 1, seed=1)[:, 0].numpy() > -1
    figures = accuracy_figures(logits, samples([(2,) if shown else () for shown in hot]), "multi")
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits[:, 2].numpy()), abs=1e-6)
