import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sic.data.dataset import Sample
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.data.transforms import TrainingTransform
from sic.training.base import Training
from sic.training.batches import (
    Batch,
    EpochSteps,
    TrainingBatches,
    Views,
    support_candidates,
    training_loader,
    view_loader,
)
from sic.training.trainer import held_views

PREPROCESSING = Preprocessing(4, 6)


def samples(*labels: tuple[int, ...]) -> list[Sample]:
    return [Sample(f"{i}.png", Path(f"{i}.png"), label) for i, label in enumerate(labels)]


# Every seventh image has two labels; three classes.
SAMPLES = samples(*[((i % 3, (i + 1) % 3) if i % 7 == 0 else (i % 3,)) for i in range(45)])


def numbered(count: int) -> list[np.ndarray]:
    """Reduced images, 6×8×3, all of whose pixels say which image it is."""
    return [np.full((6, 8, 3), i, np.uint8) for i in range(count)]


def make(
    chosen: list[Sample] = SAMPLES,
    batch_size: int = 10,
    supports: int = 3,
    seed: int = 0,
    augmentation: str = "none",
    classes: int = 3,
    ways: int | None = None,
) -> TrainingBatches:
    return TrainingBatches(
        numbered(len(chosen)),
        targets(chosen, classes),
        support_candidates(chosen),
        PREPROCESSING,
        TrainingTransform(augmentation, PREPROCESSING),  # type: ignore[arg-type]
        batch_size,
        supports,
        seed,
        ways=ways,
    )


def shown(images: torch.Tensor) -> list[int]:
    """Which images a batch of numbered ones holds."""
    assert images.dtype == torch.uint8 and images.shape[1:] == (3, 4, 4)
    return images[:, 0, 0, 0].tolist()


def equal(a: Batch, b: Batch) -> bool:
    names = [name for name in Batch.__dataclass_fields__ if name != "moves"]
    return a.moves is b.moves is None and all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def test_only_images_with_one_label_are_candidates() -> None:
    found = support_candidates(samples((1,), (0, 1), (2,), (1,), (0, 1, 2)))
    assert found == {1: [0, 3], 2: [2]}


def test_a_batch_depends_on_seed_epoch_and_step_alone() -> None:
    first, second = make(augmentation="affine"), make(augmentation="affine")
    wanted = second[2, 1]
    for other in ((0, 0), (2, 0), (1, 1)):
        assert not equal(first[other], wanted)
    torch.manual_seed(99)
    np.random.seed(99)
    assert equal(first[2, 1], wanted)
    assert not equal(make(seed=1, augmentation="affine")[2, 1], wanted)


@pytest.mark.parametrize("batch_size", [4, 7, 10, 64])
def test_every_image_is_a_query_at_most_once_an_epoch(batch_size: int) -> None:
    batches = make(batch_size=batch_size)
    orders = []
    for epoch in range(2):
        seen = [i for step in range(len(batches)) for i in shown(batches[epoch, step].queries)]
        assert len(seen) == len(set(seen)) > 45 - len(batches)
        orders.append(seen)
    assert orders[0] != orders[1]
    sizes = {len(batches[0, step].queries) for step in range(len(batches))}
    assert len(sizes) == 1 and 0.6 * min(batch_size, 45) < sizes.pop() < 1.5 * batch_size + 1


def test_queries_and_supports_carry_their_own_targets() -> None:
    batches, expected = make(), targets(SAMPLES, 3)
    for step in range(len(batches)):
        batch = batches[0, step]
        assert batch.rows.tolist() == shown(batch.queries)
        assert torch.equal(batch.targets, expected[batch.rows])
        assert torch.equal(batch.support_targets, expected[shown(batch.supports)])


@pytest.mark.parametrize("number", [1, 3, 5])
def test_supports_are_distinct_images_of_their_class_and_no_queries(number: int) -> None:
    batches = make(supports=number)
    drawn = set()
    for epoch in range(10):
        for step in range(len(batches)):
            batch = batches[epoch, step]
            supports = shown(batch.supports)
            assert batch.support_classes.tolist() == [label for label in range(3) for _ in range(number)]
            assert len(set(supports)) == 3 * number
            assert [SAMPLES[i].labels for i in supports] == [(label,) for label in batch.support_classes.tolist()]
            # 10 queries of 45 leave at least 5 of some 13 candidates in a class nearly always; check where they do.
            for label in range(3):
                free = [i for i in support_candidates(SAMPLES)[label] if i not in shown(batch.queries)]
                if len(free) >= number:
                    assert set(supports[label * number : (label + 1) * number]) <= set(free)
            drawn.update(supports)
    assert len(drawn) > 30  # all of the 38 candidates have their turn


@pytest.mark.parametrize("ways", [2, 6, 20])
def test_some_classes_have_supports_and_count_and_the_queries_own_are_among_them(ways: int) -> None:
    many = samples(*[((i % 20, (i + 3) % 20) if i % 9 == 0 else (i % 20,)) for i in range(120)])
    batches, expected = make(many, batch_size=4, classes=20, ways=ways), targets(many, 20)
    drawn = set()
    for step in range(len(batches)):
        batch = batches[0, step]
        own = {label for row in batch.rows.tolist() for label in many[row].labels}
        classes = batch.support_classes.unique().tolist()
        assert own <= set(classes) and len(classes) == max(ways, len(own))
        assert [many[i].labels for i in shown(batch.supports)] == [(c,) for c in batch.support_classes.tolist()]
        assert batch.targets.isnan().all(dim=0).nonzero()[:, 0].tolist() == sorted(set(range(20)) - set(classes))
        assert torch.equal(batch.targets[:, classes], expected[batch.rows][:, classes])
        drawn |= set(classes) - own
    assert ways == 2 or len(drawn) > 15
    assert not batches.targets.isnan().any()


def test_queries_are_supports_only_where_nothing_else_is_left() -> None:
    few = samples(*[(0,)] * 20, (1,), (1,), (2,), (2,), (2,))
    batches = make(few, batch_size=25)
    batch = batches[0, 0]
    assert len(batch.queries) == 25
    assert batch.support_classes.tolist() == [0] * 3 + [1] * 2 + [2] * 3
    assert sorted(shown(batch.supports)[3:]) == [20, 21, 22, 23, 24]


def test_queries_only_fill_up_what_the_others_leave_open() -> None:
    """Class 0 has four images, of which two are asked for; three supports are the other two and one of these."""
    batches = make(samples((0,), (0,), (0,), (0,), (1,), (2,)))
    filled = set()
    for seed in range(20):
        rows, classes = batches._draw_supports(np.array([1, 2, 4]), np.random.default_rng(seed))
        assert classes.tolist() == [0, 0, 0, 1, 2] and rows[3:].tolist() == [4, 5]
        assert set(rows[:2].tolist()) == {0, 3}
        filled.add(int(rows[2]))
    assert filled == {1, 2}


@pytest.mark.parametrize("augmentation", ["affine", "photo"])
def test_the_number_of_workers_does_not_matter(augmentation: str) -> None:
    batches = make(augmentation=augmentation)
    runs = []
    for workers in (0, 2):
        loader = training_loader(batches, workers, 0)
        found = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            found += list(loader)
        runs.append(found)
    assert len(runs[0]) == 2 * len(batches) == len(runs[1])
    assert all(equal(a, b) for a, b in zip(*runs, strict=True))
    assert not equal(runs[0][0], runs[0][len(batches)])


@pytest.mark.parametrize("augmentation", ["none", "affine", "photo", "xray"])
def test_a_device_can_do_what_the_loader_would_have_done(augmentation: str) -> None:
    ready, pending = make(augmentation=augmentation), make(augmentation=augmentation)
    pending.on_device = True
    moved, waiting = ready[1, 2], pending[1, 2]
    assert (waiting.moves is None) == (augmentation == "none")
    assert torch.equal(pending.transform.apply(waiting.queries, waiting.moves), moved.queries)


@pytest.mark.parametrize("augmentation", ["none", "affine", "xray"])
def test_a_device_that_holds_all_views_makes_the_same_batches(augmentation: str) -> None:
    ready, bare = make(augmentation=augmentation), make(augmentation=augmentation)
    bare.on_device = bare.resident = True
    expected, batch = ready[1, 2], bare[1, 2]
    assert len(batch.queries) == len(batch.supports) == 0 < len(expected.supports)
    views = held_views(Views(bare.pixels, bare.targets, PREPROCESSING), 0, "cpu")
    module = SimpleNamespace(views=views, transform=bare.transform)
    made = Training.on_after_batch_transfer(module, batch, 0)  # type: ignore[arg-type]
    assert equal(made, expected)


def test_views_of_the_training_images_are_the_same_from_a_loader_and_from_a_device() -> None:
    views = Views(numbered(45), targets(SAMPLES, 3), PREPROCESSING)
    loader = view_loader(views, 0, batch_size=20)
    held = held_views(views, 0, "cpu")
    found = [
        list(Training.training_views(SimpleNamespace(views=each, embedding=loader, device="cpu")))  # type: ignore[arg-type]
        for each in (None, held)
    ]
    assert [len(batch) for batch in found[0]] == [20, 20, 5]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert shown((torch.cat(found[1]) * 255).byte()) == list(range(45))


def test_grids_of_queries_show_a_class_once() -> None:
    batch = make(batch_size=20)[0, 1]
    labels = batch.targets.argmax(dim=1)
    assert batch.grids.shape[1] == len(labels.unique())
    assert all(len(row.unique()) == len(row) for row in labels[batch.grids])


def test_epoch_steps() -> None:
    steps = EpochSteps(3)
    assert len(steps) == 3 and list(steps) == [(0, 0), (0, 1), (0, 2)]
    steps.set_epoch(4)
    assert list(steps) == [(4, 0), (4, 1), (4, 2)] == list(steps)


def test_a_resumed_run_sees_what_the_whole_one_would_have_seen() -> None:
    batches = make(augmentation="affine")
    resumed = list(training_loader(batches, 0, 3))
    assert all(equal(batch, batches[3, step]) for step, batch in enumerate(resumed)) and len(resumed) == len(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_views_come_in_order_with_their_targets(workers: int) -> None:
    loader = view_loader(Views(numbered(45), targets(SAMPLES, 3), PREPROCESSING), workers, batch_size=20)
    parts = list(loader)
    assert [len(images) for images, _ in parts] == [20, 20, 5]
    assert shown(torch.cat([images for images, _ in parts])) == list(range(45))
    assert torch.equal(torch.cat([target for _, target in parts]), targets(SAMPLES, 3))


def test_the_first_steps_generator_is_not_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 0 must not draw its supports with the very numbers that shuffled the epoch."""
    drawn: list[int] = []

    def draw(_: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        drawn.append(int(rng.integers(2**62)))
        return np.array([0]), np.array([0])

    batches = make()
    monkeypatch.setattr(batches, "_draw_supports", draw)
    batches[3, 0]
    assert drawn != [int(np.random.default_rng((0, 3)).integers(2**62))]


@pytest.mark.parametrize("augmentation", ["none", "affine", "photo"])
def test_workers_need_not_be_forks(augmentation: str) -> None:
    """Where processes are spawned (macOS, Windows, Python 3.14) the dataset travels as a pickle."""
    original = make(augmentation=augmentation)
    copy = pickle.loads(pickle.dumps(original))
    assert torch.equal(copy[0, 1].queries, original[0, 1].queries)
