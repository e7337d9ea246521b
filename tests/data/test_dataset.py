from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sic.data.dataset import SMALLEST_CLASS, Sample, stratified


def grouped(*groups: tuple[int, ...]) -> list[Sample]:
    """A group per entry, with an image of each class in it."""
    return [
        Sample(f"{i}-{j}.png", Path(f"{i}-{j}.png"), (label,), group=f"patient {i}")
        for i, labels in enumerate(groups)
        for j, label in enumerate(labels)
    ]


def samples(*labels: tuple[int, ...]) -> list[Sample]:
    return [Sample(f"{i:03d}.png", Path(f"{i:03d}.png"), label) for i, label in enumerate(labels)]


SIZES = (4, 5, 20, 33, 100)
BALANCED = samples(*[(label,) for label, size in enumerate(SIZES) for _ in range(size)])


def ids(chosen: list[Sample]) -> set[str]:
    return {sample.id for sample in chosen}


@pytest.mark.parametrize("fraction", [0.1, 0.15, 0.3])
def test_every_class_gives_its_share(fraction: float) -> None:
    _, held = stratified(BALANCED, fraction, seed=0)
    counts = Counter(sample.labels[0] for sample in held)
    for label, size in enumerate(SIZES):
        if size < SMALLEST_CLASS:
            assert counts[label] == 0
        else:
            assert counts[label] >= 1 and abs(counts[label] - size * fraction) <= max(0.5, 1 - size * fraction)


def test_both_parts_are_disjoint_complete_and_in_order() -> None:
    rest, held = stratified(BALANCED, 0.25, seed=3)
    assert not ids(rest) & ids(held) and len(rest) + len(held) == len(BALANCED)
    for part in (rest, held):
        assert part == [sample for sample in BALANCED if sample.id in ids(part)]


def test_the_seed_decides() -> None:
    assert stratified(BALANCED, 0.2, seed=1) == stratified(BALANCED, 0.2, seed=1)
    assert ids(stratified(BALANCED, 0.2, seed=1)[1]) != ids(stratified(BALANCED, 0.2, seed=2)[1])
    # It is the images that are drawn, not their places in the list.
    assert ids(stratified(BALANCED[::-1], 0.2, seed=1)[1]) == ids(stratified(BALANCED, 0.2, seed=1)[1])


def test_one_class_more_does_not_change_the_others() -> None:
    more = BALANCED + [Sample(f"new{i}.png", Path(f"new{i}.png"), (len(SIZES),)) for i in range(10)]
    held = ids(stratified(more, 0.2, seed=0)[1])
    assert {name for name in held if not name.startswith("new")} == ids(stratified(BALANCED, 0.2, seed=0)[1])


def test_several_labels_count_for_the_rarest() -> None:
    """100 images of class 0; 10 of them also show class 1, which nothing else does."""
    mixed = samples(*[(0, 1) if i % 10 == 0 else (0,) for i in range(100)])
    for seed in range(5):
        _, held = stratified(mixed, 0.2, seed)
        assert Counter(sample.labels for sample in held) == {(0, 1): 2, (0,): 18}


def test_classes_one_below_the_limit_keep_everything() -> None:
    small = samples(*[(label,) for label in range(3) for _ in range(SMALLEST_CLASS - 1)])
    assert stratified(small, 0.5, seed=0) == (small, [])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_groups_stay_together_and_shares_are_kept(fraction: float, seed: int) -> None:
    """Patients with one to six images, some of them of both classes."""
    people = grouped(*[(0,) * (1 + i % 6) + (1,) * (i % 3 == 0) * (i % 4) for i in range(120)])
    rest, held = stratified(people, fraction, seed)
    assert not {s.group for s in rest} & {s.group for s in held}
    assert len(rest) + len(held) == len(people)
    for label in (0, 1):
        total, chosen = (sum(s.labels == (label,) for s in part) for part in (people, held))
        assert abs(chosen - fraction * total) <= 3


def test_groups_of_one_image_are_as_good_as_none() -> None:
    alone = [replace(sample, group=sample.id) for sample in BALANCED]
    assert ids(stratified(alone, 0.2, seed=1)[1]) == ids(stratified(BALANCED, 0.2, seed=1)[1])


def test_a_group_may_be_called_like_an_image() -> None:
    people = [replace(sample, group="000.png" if i in (1, 2) else None) for i, sample in enumerate(BALANCED)]
    assert {len(ids(stratified(people, 0.5, seed)[1]) & {"001.png", "002.png"}) for seed in range(9)} <= {0, 2}


def test_a_class_that_is_one_group_is_not_held_out() -> None:
    people = grouped((0,) * 10, (1,) * 10, *[(1,)] * 10)
    for seed in range(5):
        _, held = stratified(people, 0.5, seed)
        assert {s.labels for s in held} == {(1,)} and "patient 0" not in {s.group for s in held}


def test_images_without_labels_give_their_share() -> None:
    _, held = stratified(samples(*[()] * 20, *[(0,)] * 20), 0.25, seed=0)
    assert Counter(s.labels for s in held) == {(): 5, (0,): 5}


def test_copies_stay_together_and_join_groups() -> None:
    single = samples(*[(i % 2,) for i in range(60)])
    together = [[0, 7], [7, 20], [33, 2, 5]]
    sides = []
    for seed in range(30):
        _, held = stratified(single, 0.3, seed, together)
        assert 12 <= len(held) <= 24
        inside = [[single[i].id in ids(held) for i in positions] for positions in together]
        assert all(len(set(row)) == 1 for row in inside) and inside[0] == inside[1]
        sides.append((inside[0][0], inside[2][0]))
    assert set(sides) == {(False, False), (False, True), (True, False), (True, True)}
    # A copy in two groups makes one of them.
    pairs = grouped(*[(0, 1)] * 12)
    for seed in range(10):
        _, held = stratified(pairs, 0.3, seed, [[0, 23], [23, 8]])
        assert len(ids(held) & {pairs[i].id for i in (0, 1, 8, 9, 22, 23)}) in (0, 6)


def test_nothing_to_keep_together_changes_nothing() -> None:
    assert stratified(BALANCED, 0.3, 1, [[4]]) == stratified(BALANCED, 0.3, 1) == stratified(BALANCED, 0.3, 1, [])
