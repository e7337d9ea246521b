"""Choosing supports, and k-means of many classes at once against scikit-learn, class by class."""

import importlib
import itertools
import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from sic.supports import directions, room_for, select, select_class, select_how, select_varied
from sic.supports.select import TYPICAL, kmeans, typical
from sic.supports.select import centroids as means_of


def latents(rows: int, columns: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(1, 1, (rows, columns)).astype(np.float32)


def cost(rows: tuple[int, ...], centroids: np.ndarray, points: np.ndarray) -> float:
    """Total distance of the cheapest way to give each centroid one of the rows."""
    return min(
        sum(
            float(np.sqrt(((centroid - points[row]) ** 2).sum()))
            for centroid, row in zip(centroids, order, strict=True)
        )
        for order in itertools.permutations(rows)
    )


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_centroids_are_as_good_as_scikit_learns_own(number: int) -> None:
    def inertia(points: np.ndarray, means: np.ndarray) -> float:
        return float(((points[:, None] - means) ** 2).sum(axis=2).min(axis=1).sum())

    classes = {seed: latents(60, seed=seed) for seed in range(40)}
    ours = sum(inertia(points, means_of(points, number, seed)) for seed, points in classes.items())
    theirs = sum(KMeans(number, n_init=4, random_state=seed).fit(points).inertia_ for seed, points in classes.items())
    assert ours <= 1.02 * theirs


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_against_all_assignments(number: int, seed: int) -> None:
    points = latents(8, seed=seed)
    centroids = means_of(points, number, seed)
    chosen = select_class(points, number, seed)
    costs = {rows: cost(rows, centroids, points) for rows in itertools.combinations(range(8), number)}
    as_near = [rows for rows, found in costs.items() if found <= min(costs.values()) * (1 + 1e-5)]
    assert tuple(chosen) == min(as_near, key=sum)  # of images that are as near, the first
    nearest = {int(((points - centroid) ** 2).sum(1).argmin()) for centroid in centroids}
    if len(nearest) == number and len(as_near) == 1:
        assert set(chosen.tolist()) == nearest


@pytest.mark.parametrize("pinned", [[5], [2, 7], [0, 1, 2]])
@pytest.mark.parametrize("seed", range(4))
def test_the_pinned_take_a_centroid_each_and_the_others_are_filled_as_ever(pinned: list[int], seed: int) -> None:
    points = latents(8, seed=seed)
    centroids = means_of(points, 3, seed)
    chosen = select_class(points, 3, seed, pinned)
    assert set(pinned) <= set(chosen.tolist()) and len(set(chosen.tolist())) == 3
    # First the pinned choose their centroids, then the free rows fill what is left, each time as cheaply as can be.
    taken = min(
        itertools.permutations(range(3), len(pinned)),
        key=lambda order: sum(np.linalg.norm(centroids[c] - points[r]) for c, r in zip(order, pinned, strict=True)),
    )
    left = np.delete(centroids, taken, axis=0)
    free = [row for row in range(8) if row not in pinned]
    best = min(itertools.combinations(free, 3 - len(pinned)), key=lambda rows: cost(rows, left, points))
    assert set(chosen.tolist()) == {*pinned, *best}


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_of_two_images_that_are_as_near_the_first_is_chosen(device: torch.device | None) -> None:
    """Which of a pair is nearer to its mean is a matter of the last bits: those must not decide."""
    rng = np.random.default_rng(0)
    pairs = np.repeat(rng.gamma(2, 1, (3, 16)) * [[1], [5], [25]], 2, axis=0) + rng.normal(0, 0.1, (6, 16))
    for seed in range(20):
        points = (pairs * (1 + 1e-7 * np.random.default_rng(seed).standard_normal(pairs.shape))).astype(np.float32)
        assert select(points, {0: list(range(6))}, 3, device=device)[0].tolist() == [0, 2, 4]


def test_two_centroids_do_not_end_in_the_same_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both centroids are nearest to row 0; the second best of one of them is closer."""
    points = np.array([[0.0], [3.0], [-10.0]], np.float32)

    class Fixed:
        def __init__(self, *_: object, **__: object) -> None:
            self.cluster_centers_, self.inertia_ = np.array([[-0.5], [1.0]]), 0.0

        def fit(self, _: np.ndarray) -> "Fixed":
            return self

    monkeypatch.setattr("sklearn.cluster.KMeans", Fixed)
    assert select_class(points, 2, 0).tolist() == [0, 1]


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_few_images_are_all_taken(rows: int) -> None:
    assert select_class(latents(rows), 3, 0).tolist() == list(range(rows))


@pytest.mark.parametrize("distinct", [1, 2])
def test_identical_latents_still_give_distinct_rows(distinct: int) -> None:
    points = np.repeat(latents(distinct), [4, 3][:distinct], axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = select_class(points, 3, 0)
    assert len(chosen) == len(set(chosen.tolist())) == 3
    # Every distinct latent is represented.
    assert len(np.unique(points[chosen], axis=0)) == distinct


def test_dead_latents_give_distinct_rows() -> None:
    assert len(set(select_class(np.zeros((5, 4), np.float32), 3, 0).tolist())) == 3


def test_separate_clusters_get_one_support_each() -> None:
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(3)
    points = np.concatenate([centre + rng.normal(0, 0.1, (20, 3)) for centre in centres]).astype(np.float32)
    chosen = select_class(points, 3, 0)
    assert [row // 20 for row in chosen] == [0, 1, 2]
    for cluster, row in enumerate(chosen):
        members = points[20 * cluster : 20 * cluster + 20]
        assert row == 20 * cluster + ((members - members.mean(0)) ** 2).sum(1).argmin()


def test_classes_are_chosen_separately() -> None:
    points = latents(30, seed=1)
    order = np.random.default_rng(2).permutation(30).tolist()
    candidates = {7: order[:12], 0: order[12:14], 3: order[14:29]}  # row order[29] is nobody's
    rows, classes = select(points, candidates, 3, seed=5)
    assert classes.tolist() == [0, 0, 3, 3, 3, 7, 7, 7]
    for label, members in candidates.items():
        of_class = rows[classes == label].tolist()
        assert set(of_class) <= set(members)
        assert of_class == [members[i] for i in select_class(points[members], 3, 5)]
    # What another class looks like does not matter.
    moved = points.copy()
    moved[candidates[3]] += 5
    again, _ = select(moved, candidates, 3, seed=5)
    assert again[classes != 3].tolist() == rows[classes != 3].tolist()


def test_the_choice_is_deterministic() -> None:
    points = latents(40, seed=3)
    candidates = {0: range(20), 1: range(20, 40)}
    first, second = (select(points, candidates, 3, seed=1) for _ in range(2))
    np.testing.assert_array_equal(first, second)


CANDIDATES = {0: [0, 2, 4, 6, 8, 10], 2: [1, 3, 5], 1: [7]}


def test_nearest_is_select() -> None:
    points = latents(12)
    chosen, (rows, classes) = select_how("nearest", points, CANDIDATES, 2), select(points, CANDIDATES, 2)
    np.testing.assert_array_equal(chosen.rows, rows)
    np.testing.assert_array_equal(chosen.classes, classes)
    np.testing.assert_array_equal(chosen.vectors, points[rows])


def test_centroids_are_means_and_no_images() -> None:
    points = latents(12)
    chosen = select_how("centroid", points, CANDIDATES, 2)
    assert chosen.rows.tolist() == [-1] * 5 and chosen.classes.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_allclose(chosen.vectors[2], points[7], rtol=1e-6)
    one = select_how("centroid", points, CANDIDATES, 1)
    np.testing.assert_allclose(one.vectors[0], points[CANDIDATES[0]].mean(axis=0), rtol=1e-5)
    assert chosen.vectors.dtype == np.float32


def test_random_supports_are_of_their_class_and_depend_on_the_seed_alone() -> None:
    points = latents(12)
    drawn = [select_how("random", points, CANDIDATES, 2, seed) for seed in range(20)]
    for chosen in drawn:
        assert chosen.classes.tolist() == [0, 0, 1, 2, 2] and len(set(chosen.rows.tolist())) == 5
        assert all(row in CANDIDATES[label] for row, label in zip(chosen.rows, chosen.classes, strict=True))
        np.testing.assert_array_equal(chosen.vectors, points[chosen.rows])
    assert {row for chosen in drawn for row in chosen.rows.tolist()} == {*range(9), 10}
    np.testing.assert_array_equal(drawn[3].rows, select_how("random", latents(12, seed=9), CANDIDATES, 2, 3).rows)


def test_full_is_everyone() -> None:
    chosen = select_how("full", latents(12), CANDIDATES, 1)
    assert chosen.rows.tolist() == [0, 2, 4, 6, 8, 10, 7, 1, 3, 5]
    assert chosen.classes.tolist() == [0] * 6 + [1] + [2] * 3


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
def test_identical_latents_still_give_distinct_rows_on_a_device(distinct: int) -> None:
    points = np.repeat(clusters([distinct], 1)[0], [4, 3][:distinct], axis=0)
    rows, _ = select(points, {0: range(len(points))}, 3, device=CPU)
    assert len(set(rows.tolist())) == 3
    assert len(np.unique(points[rows], axis=0)) == distinct


def test_dead_latents_give_distinct_rows_on_a_device() -> None:
    rows, _ = select(np.zeros((5, 4), np.float32), {0: range(5)}, 3, device=CPU)
    assert len(set(rows.tolist())) == 3


def test_two_centroids_do_not_end_in_the_same_image_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_varied_supports_differ_in_direction_and_not_in_length() -> None:
    rng = np.random.default_rng(0)
    spread = np.repeat(np.eye(3), 10, axis=0) + 0.02 * rng.random((30, 3))
    latents = (spread * rng.uniform(1, 50, (30, 1))).astype(np.float32)
    candidates = {0: list(range(30))}
    varied = select_how("varied", latents, candidates, 3)
    assert sorted(varied.rows // 10) == [0, 1, 2]
    np.testing.assert_array_equal(varied.vectors, latents[varied.rows])
    units = latents / np.linalg.norm(latents, axis=1, keepdims=True)
    np.testing.assert_array_equal(varied.rows, select(units, candidates, 3)[0])
    assert (directions(np.zeros((2, 3), np.float32)) == 0).all()


def with_an_outlier() -> np.ndarray:
    """30 images of two kinds that have something in common, and a last one that is like none of them."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.eye(4)[[0, 1]] + np.eye(4)[2], 15, axis=0) + 0.02 * rng.random((30, 4))
    return np.concatenate([kinds, np.eye(4)[[3]]]).astype(np.float32)


@pytest.mark.parametrize("device", [None, CPU])
def test_an_image_that_is_like_no_other_is_no_varied_support(device: torch.device | None) -> None:
    points = with_an_outlier()
    assert 30 in select(directions(points), {0: range(31)}, 3, device=device)[0]
    found = select_how("varied", points, {0: range(31)}, 3, device=device).rows
    assert 30 not in found and len(found) == 3 and set(found // 15) == {0, 1}
    np.testing.assert_array_equal(select_varied(points, 3, 0), found)
    assert 30 in select_varied(points, 3, 0, pinned=[30])


def test_varied_supports_of_each_class_are_among_its_own_images() -> None:
    points = np.concatenate([with_an_outlier(), with_an_outlier()])
    rows = np.random.default_rng(0).permutation(62).tolist()
    candidates = {label: [row for row in rows if row // 31 == label] for label in (0, 1)}
    found = select_how("varied", points, candidates, 3)
    np.testing.assert_array_equal(found.rows // 31, found.classes)
    assert not {30, 61} & set(found.rows.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_typical_images_against_a_loop(seed: int) -> None:
    units = directions(latents(12, seed=seed))
    likeness = [np.mean([units[i] @ units[j] for j in range(12) if j != i]) for i in range(12)]
    expected = [i for i in range(12) if likeness[i] >= TYPICAL * np.median(likeness)]
    assert typical(units, 3).tolist() == expected


def test_as_many_images_are_typical_as_there_are_to_be_supports() -> None:
    strangers = np.concatenate([np.repeat(np.eye(6, dtype=np.float32)[:1], 5, axis=0), np.eye(6, dtype=np.float32)[1:]])
    assert typical(strangers, 3).tolist() == list(range(5))
    assert len(typical(strangers, 7)) >= 7
    assert typical(strangers[:2], 7).tolist() == [0, 1]
    assert typical(strangers[:0], 1).tolist() == []
