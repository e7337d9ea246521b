"""k-means of many classes at once against scikit-learn, class by class."""

import importlib

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from sic.supports import room_for, select, select_how
from sic.supports.kmeans import kmeans

CPU = torch.device("cpu")
chooser = importlib.import_module("sic.supports.select")


def clusters(sizes: list[int], spread: float, seed: int = 0, columns: int = 16) -> list[np.ndarray]:
    """Classes of so many rows around three points each, far from zero."""
    rng = np.random.default_rng(seed)
    return [
        (50 + rng.normal(0, 1, (3, columns))[rng.integers(0, 3, size)] + rng.normal(0, spread, (size, columns))).astype(
            np.float32
        )
        for size in sizes
    ]


def padded(classes: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = torch.tensor([len(rows) for rows in classes])
    points = torch.full((len(classes), int(sizes.max()), classes[0].shape[1]), 1e3)  # what fills up must not count
    for place, rows in enumerate(classes):
        points[place, : len(rows)] = torch.from_numpy(rows)
    return points, sizes


def inertia(rows: np.ndarray, centroids: np.ndarray) -> float:
    distances = ((rows[:, None].astype(np.float64) - centroids[None]) ** 2).sum(axis=2)
    return float(distances.min(axis=1).sum())


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_no_worse_than_scikit_learn(number: int, spread: float) -> None:
    classes = clusters([60, 31, 200, 44, 80, 8] * 3, spread)
    found = kmeans(*padded(classes), number, seed=3).numpy()
    ours = sum(inertia(rows, means) for rows, means in zip(classes, found, strict=True))
    theirs = sum(KMeans(number, n_init=4, random_state=3).fit(rows).inertia_ for rows in classes)
    assert ours <= 1.01 * theirs
    for rows, means in zip(classes, found, strict=True):  # a centroid is the mean of the rows that are nearest to it
        owners = ((rows[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
        for centroid in range(number):
            assert np.abs(rows[owners == centroid].mean(axis=0) - means[centroid]).max() < 0.05 * spread


@pytest.mark.parametrize("spread", [0.05, 1.0, 3.0])
def test_the_same_rows_as_with_scikit_learn(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = clusters([40, 90, 3, 25, 2, 60], spread)
    latents = np.concatenate(classes)
    order = np.random.default_rng(1).permutation(len(latents))
    ends = np.cumsum([len(rows) for rows in classes])
    places = np.argsort(order)
    candidates = {
        7 * label: places[end - len(rows) : end].tolist()
        for label, (rows, end) in enumerate(zip(classes, ends, strict=True))
    }
    shuffled = latents[order]
    expected = select(shuffled, candidates, 3)
    for at_once in (chooser.AT_ONCE, 1, 64 * 16 * 4):
        monkeypatch.setattr(chooser, "AT_ONCE", at_once)
        found = select(shuffled, candidates, 3, device=CPU)
        np.testing.assert_array_equal(found, expected)


def test_means_on_the_device_are_scikit_learns() -> None:
    classes = clusters([40, 2, 60], spread=0.05)
    candidates = {0: list(range(40)), 1: [40, 41], 2: list(range(42, 102))}
    latents = np.concatenate(classes)
    ours = select_how("centroid", latents, candidates, 3, device=CPU)
    theirs = select_how("centroid", latents, candidates, 3)
    assert ours.rows.tolist() == theirs.rows.tolist() and ours.classes.tolist() == theirs.classes.tolist()
    for label in range(3):
        first, second = (np.sort(one.vectors[one.classes == label], axis=0) for one in (ours, theirs))
        np.testing.assert_allclose(first, second, rtol=1e-5)


def test_other_classes_do_not_matter() -> None:
    classes = clusters([50, 300, 70], spread=1)
    together = kmeans(*padded(classes), 3, seed=1)
    for rows, means in zip(classes, together, strict=True):
        torch.testing.assert_close(kmeans(*padded([rows]), 3, seed=1)[0], means, rtol=1e-6, atol=1e-6)


def test_the_seed_decides() -> None:
    points = padded(clusters([200], spread=5))
    first, again, other = (kmeans(*points, 8, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other)


@pytest.mark.parametrize("distinct", [1, 2])
def test_identical_latents_still_give_distinct_rows(distinct: int) -> None:
    points = np.repeat(clusters([distinct], 1)[0], [4, 3][:distinct], axis=0)
    rows, _ = select(points, {0: range(len(points))}, 3, device=CPU)
    assert len(set(rows.tolist())) == 3
    assert len(np.unique(points[rows], axis=0)) == distinct


def test_dead_latents_give_distinct_rows() -> None:
    rows, _ = select(np.zeros((5, 4), np.float32), {0: range(5)}, 3, device=CPU)
    assert len(set(rows.tolist())) == 3


def test_two_centroids_do_not_end_in_the_same_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both centroids are nearest to row 0; the second best of one of them is closer."""
    points = np.array([[0.0], [3.0], [-10.0]], np.float32)
    monkeypatch.setattr(chooser, "kmeans", lambda *_: torch.tensor([[[-0.5], [1.0]]], dtype=torch.double))
    assert select(points, {0: range(3)}, 2, device=CPU)[0].tolist() == [0, 1]


def test_latents_that_do_not_fit_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = room_for(40, 16)
    assert not isinstance(kept, np.memmap)
    monkeypatch.setattr(chooser, "IN_MEMORY", 100)
    mapped = room_for(40, 16)
    assert isinstance(mapped, np.memmap) and mapped.shape == kept.shape and mapped.dtype == np.float32
    mapped[:] = kept[:] = clusters([40], 1)[0]
    for device in (None, CPU):
        found, expected = (
            select(latents, {0: range(20), 1: range(20, 40)}, 3, device=device) for latents in (mapped, kept)
        )
        np.testing.assert_array_equal(found, expected)
