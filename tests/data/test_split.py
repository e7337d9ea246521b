from collections import Counter
from pathlib import Path

import pytest

from sic.data.dataset import Sample
from sic.data.split import SMALLEST_CLASS, stratified


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
