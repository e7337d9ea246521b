from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)
from torchmetrics.functional.classification import multiclass_auroc, multiclass_average_precision

from sic.data.dataset import Box, Sample, Task
from sic.data.labels import targets
from sic.evaluate.accuracy import detailed_figures
from sic.predictions import Answers, Predictions


def samples(labels: list[tuple[int, ...]]) -> list[Sample]:
    return [Sample(f"{i}.png", Path(f"{i}.png"), label) for i, label in enumerate(labels)]


def accuracy_figures(logits: torch.Tensor, known: list[Sample], task: Task, names: Sequence[str]) -> dict[str, Any]:
    return Answers(logits, task).figures(targets(known, len(names)), names)


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
    figures = accuracy_figures(logits, samples([(int(t),) for t in truth]), "single", "abcd"[: logits.shape[1]])
    assert figures["accuracy"] == pytest.approx(accuracy_score(truth, logits.argmax(1).numpy()))
    assert figures["images"] == 60
    assert figures["similar_case"] == pytest.approx((logits.sigmoid() >= 0.5).any(1).numpy().mean())
    assert figures["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, logits.argmax(1).numpy()))
    assert set(figures) == {"accuracy", "balanced_accuracy", "images", "similar_case", "headline"}


def test_any_right_answer_counts() -> None:
    logits = torch.tensor([[2.0, 1, -1], [0, 3, 1], [-5, -4, -3], [1, 2, 0]])
    figures = accuracy_figures(
        logits, samples([(0, 1), (0, 2), (1, 2), (0, 1, 2)]), "single", "abcd"[: logits.shape[1]]
    )
    assert figures["accuracy"] == 0.75 and figures["similar_case"] == 0.75
    # Class 0: ½ right, ½ wrong, ⅓ right; 1: ½, ½ and ⅓ right; 2: ½ wrong, ½ right, ⅓ right.
    assert figures["balanced_accuracy"] == pytest.approx(((5 / 6) / (4 / 3) + 1 + (5 / 6) / (4 / 3)) / 3)


def test_average_precision_against_scikit_learn() -> None:
    logits, hot = random_logits(50, 5), random_labels(50, 5)
    figures = accuracy_figures(
        logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi", "abcde"[: logits.shape[1]]
    )
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)
    assert figures["per_label_accuracy"] == pytest.approx(((logits.numpy() >= 0) == hot).mean())
    assert figures["exact_match"] == pytest.approx(((logits.numpy() >= 0) == hot).all(axis=1).mean())
    precisions = [average_precision_score(hot[:, label], logits[:, label].numpy()) for label in range(5)]
    assert figures["average_precision"] == pytest.approx(dict(zip("abcde", precisions, strict=True)))
    assert figures["threshold"] == 0.5
    assert set(figures) == {
        "map",
        "average_precision",
        "per_label_accuracy",
        "exact_match",
        "threshold",
        "images",
        "similar_case",
        "headline",
    }


def test_ties_are_one_threshold_as_in_scikit_learn() -> None:
    logits, hot = random_logits(50, 3).round(), random_labels(50, 3)
    figures = accuracy_figures(
        logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi", "abcde"[: logits.shape[1]]
    )
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)


def test_large_logits_keep_their_order() -> None:
    logits, hot = 40 + 10 * random_logits(50, 3), random_labels(50, 3)
    figures = accuracy_figures(
        logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi", "abcde"[: logits.shape[1]]
    )
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits.numpy(), average="macro"), abs=1e-6)


def test_labels_that_no_image_has_are_left_out() -> None:
    logits, hot = random_logits(40, 3), random_labels(40, 3)
    hot[:, 1] = False
    figures = accuracy_figures(
        logits, samples([tuple(np.flatnonzero(row).tolist()) for row in hot]), "multi", "abcde"[: logits.shape[1]]
    )
    others = [average_precision_score(hot[:, label], logits[:, label].numpy()) for label in (0, 2)]
    assert figures["map"] == pytest.approx(sum(others) / 2, abs=1e-6)
    assert figures["per_label_accuracy"] == pytest.approx(((logits.numpy() >= 0) == hot).mean())


def test_one_label_that_images_have_is_enough() -> None:
    logits = random_logits(40, 3)
    hot = random_logits(40, 1, seed=1)[:, 0].numpy() > -1
    figures = accuracy_figures(
        logits, samples([(2,) if shown else () for shown in hot]), "multi", "abcde"[: logits.shape[1]]
    )
    assert figures["map"] == pytest.approx(average_precision_score(hot, logits[:, 2].numpy()), abs=1e-6)


def test_what_a_sample_is_unsure_about_counts_neither_way() -> None:
    """The figures are the same whatever the model says about it."""
    logits, hot = random_logits(60, 4), random_labels(60, 4)
    unsure = (np.random.default_rng(5).random((60, 4)) < 0.2) & ~hot
    unsure[:, 3] = ~hot[:, 3]
    known = [
        Sample(
            f"{i}.png",
            Path(f"{i}.png"),
            tuple(np.flatnonzero(hot[i]).tolist()),
            tuple(Box(int(label), 0, 0, 1, 1, difficult=True) for label in np.flatnonzero(unsure[i])),
        )
        for i in range(60)
    ]
    figures = [
        accuracy_figures(torch.where(torch.from_numpy(unsure), value, logits), known, "multi", "abcd")
        for value in (-torch.ones(()), torch.ones(()))
    ]
    for first, second in zip(*(f.items() for f in figures), strict=True):
        assert first == second or first[0] in ("similar_case", "headline")
    assert figures[0]["average_precision"]["d"] == pytest.approx(1)  # shown in all images that count
    right = (logits.numpy() >= 0) == hot
    assert figures[0]["per_label_accuracy"] == pytest.approx(right[~unsure].mean())
    assert figures[0]["exact_match"] == pytest.approx((right | unsure).all(axis=1).mean())


def test_a_class_that_no_image_shows_has_no_precision() -> None:
    figures = accuracy_figures(random_logits(5, 2), samples([(0,)] * 5), "multi", ["shown", "never"])
    assert figures["average_precision"] == {"shown": 1.0, "never": None} and figures["map"] == 1


def detailed(logits: torch.Tensor, labels: list[tuple[int, ...]], task: Task) -> dict[str, Any]:
    names = "abcdefgh"[: logits.shape[1]]
    nothing = torch.zeros(len(labels), 0)
    known = samples(labels)
    found = detailed_figures(
        Predictions(logits, task, samples=known, classes=names, evidence=nothing, owners=nothing[0])
    )
    same = accuracy_figures(logits, samples(labels), task, names)
    assert {name: found[name] for name in same} == same
    return found


def test_details_of_single_labels_against_torchmetrics_and_scikit_learn() -> None:
    logits = random_logits(60, 4)
    truth = np.random.default_rng(1).integers(0, 4, 60)
    found = detailed(logits, [(int(t),) for t in truth], "single")
    labels, answers = torch.from_numpy(truth), logits.argmax(1).numpy()
    areas = multiclass_auroc(logits.sigmoid(), labels, 4, average=None)
    assert [row["auroc"] for row in found["per_class"]] == pytest.approx(areas.tolist(), abs=1e-6)
    assert found["auroc"] == pytest.approx(areas.mean().item(), abs=1e-6)
    precisions = multiclass_average_precision(logits.sigmoid(), labels, 4, average=None)
    assert [row["average_precision"] for row in found["per_class"]] == pytest.approx(precisions.tolist(), abs=1e-6)
    assert found["map"] == pytest.approx(precisions.mean().item(), abs=1e-6)
    precision, recall, _, count = precision_recall_fscore_support(truth, answers)
    assert [row["precision"] for row in found["per_class"]] == pytest.approx(precision.tolist())
    assert [row["recall"] for row in found["per_class"]] == pytest.approx(recall.tolist())
    assert [row["images"] for row in found["per_class"]] == count.tolist()
    assert found["confusion"] == confusion_matrix(truth, answers).tolist()
    assert len(found["reliability"]) == 15 and 0 < found["ece"] < 1


def test_details_of_several_labels_against_scikit_learn() -> None:
    logits, hot = random_logits(50, 5), random_labels(50, 5)
    found = detailed(logits, [tuple(np.flatnonzero(row).tolist()) for row in hot], "multi")
    areas = roc_auc_score(hot, logits.numpy(), average=None)
    assert [row["auroc"] for row in found["per_class"]] == pytest.approx(areas.tolist())
    precision, recall, _, _ = precision_recall_fscore_support(hot, logits.numpy() >= 0)
    assert [row["precision"] for row in found["per_class"]] == pytest.approx(precision.tolist())
    assert [row["recall"] for row in found["per_class"]] == pytest.approx(recall.tolist())
    assert "confusion" not in found


def test_a_class_without_images_or_answers_has_no_figures() -> None:
    logits = torch.tensor([[3.0, 1, 0], [1, 2, 0], [2, 0, 1]])
    found = detailed(logits, [(0,), (0,), (1,)], "single")
    never = found["per_class"][2]
    assert never == {
        "class": "c",
        "images": 0,
        "recall": None,
        "precision": None,
        "average_precision": None,
        "auroc": None,
    }
    assert found["confusion"] == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    # Class a is found in 0 and 2, right once; scores 3, 1 against 2: half of the pairs.
    assert (found["per_class"][0]["precision"], found["per_class"][0]["auroc"]) == (0.5, 0.5)


def test_of_several_right_answers_the_given_one_is_the_truth() -> None:
    logits = torch.tensor([[0.0, 1, 2], [0, 2, 1], [2, 1, 0]])
    assert detailed(logits, [(0, 2), (0, 2), (0, 1)], "single")["confusion"] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
