"""The training of SIC: collapse, and the bank of latents."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sic.backbones import create
from sic.bcos import bcos_similarity
from sic.data.dataset import Sample
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.directory import Config, build
from sic.methods import SIC
from sic.training.batches import Batch, support_candidates
from sic.training.sic import (
    FIRST_LOOK,
    LatentHealth,
    SICTraining,
    SupportBank,
    collapse,
    distinct_positions,
    latent_health,
)
from tests.models import small_settings

DEAD, SHORT, WELL = LatentHealth(0.8, 20.0), LatentHealth(0.1, 0.05), LatentHealth(0.02, 20.0)


def test_health_against_a_loop() -> None:
    latents = np.random.default_rng(0).normal(size=(40, 16)).clip(0).astype(np.float32)
    latents[:, [2, 5, 11]] = 0
    latents[1:, 7] = 0
    latents[0, 7] = 1e-6  # one image is enough
    dead = sum(all(value <= 0 for value in column) for column in latents.T)
    norms = [sum(float(value) ** 2 for value in row) ** 0.5 for row in latents]
    health = latent_health(latents)
    assert dead == 3 and health.dead_units == pytest.approx(3 / 16)
    assert health.norm == pytest.approx(sum(norms) / 40, rel=1e-5)


def test_dead_units_at_chance_level_are_a_collapse() -> None:
    sentence = collapse(DEAD, temperature=1, score=0.1, chance=0.1, steps=500)
    assert sentence is not None
    assert "80% of the latent units are dead" in sentence
    assert "after 500 steps" in sentence and "10.0% (chance: 10.0%)" in sentence and "--recipe scratch" in sentence


def test_a_weak_fit_of_two_classes_has_not_collapsed() -> None:
    """A fit of X-rays had 58 % and 68 % dead units after 169 steps, and 94 % in the end."""
    assert collapse(LatentHealth(0.68, 1.0), 1, 0.583, 0.5, 169) is None
    assert collapse(LatentHealth(0.68, 1.0), 1, 0.52, 0.5, 169) is not None


def test_the_recipe_in_use_is_not_advised() -> None:
    sentences = [collapse(DEAD, 1, 0.1, 0.1, 500, guided=guided) or "" for guided in (False, True)]
    assert ["--recipe scratch" in sentence for sentence in sentences] == [True, False]


def test_short_latents_at_chance_level_are_a_collapse() -> None:
    sentence = collapse(SHORT, temperature=1, score=0.1, chance=0.1, steps=500)
    assert sentence is not None and "norm of 0.05" in sentence and "T = 1" in sentence


def test_how_short_is_too_short_depends_on_the_temperature() -> None:
    assert collapse(LatentHealth(0, 0.5), 1, 0.1, 0.1, 500) is None
    assert collapse(LatentHealth(0, 0.5), 30, 0.1, 0.1, 500) is not None
    assert collapse(LatentHealth(0, 0.1), 1, 0.1, 0.1, 500) is None
    assert collapse(LatentHealth(0, 0.0999), 1, 0.1, 0.1, 500) is not None


@pytest.mark.parametrize("health", [DEAD, SHORT])
def test_the_first_steps_are_left_in_peace(health: LatentHealth) -> None:
    assert 50 <= FIRST_LOOK <= 500
    steps = (0, 1, FIRST_LOOK - 1, FIRST_LOOK)
    assert [collapse(health, 1, 0.1, 0.1, step) is None for step in steps] == [True, True, True, False]


@pytest.mark.parametrize("health", [DEAD, SHORT])
def test_a_model_that_learns_has_not_collapsed(health: LatentHealth) -> None:
    assert collapse(health, 1, 0.16, 0.1, 500) is None
    assert collapse(health, 1, 0.14, 0.1, 500) is not None


def test_chance_level_alone_is_no_collapse() -> None:
    assert collapse(WELL, 1, 0.1, 0.1, 500) is None
    assert collapse(LatentHealth(0.5, 20.0), 1, 0.1, 0.1, 500) is None
    assert collapse(LatentHealth(0.51, 20.0), 1, 0.1, 0.1, 500) is not None


def test_latents_that_are_not_numbers_are_a_collapse() -> None:
    health = latent_health(np.full((4, 8), np.nan, np.float32))
    assert collapse(health, 1, 0.1, 0.1, 500) is not None


PER_CLASS = 3
# Five classes of 1, 2, 4, 12 and 30 images that have one label, in any order, and 11 with two.
LABELS = [(c,) for c, size in enumerate((1, 2, 4, 12, 30)) for _ in range(size)] + [(0, 3)] * 11
ORDER = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1)).tolist()
SAMPLES = [Sample(f"{i}", Path(f"{i}"), LABELS[i]) for i in ORDER]
CANDIDATES = support_candidates(SAMPLES)


def make(latent: int = 6) -> SupportBank:
    latents = torch.rand(len(SAMPLES), latent, generator=torch.Generator().manual_seed(0))
    return SupportBank(latents, CANDIDATES, PER_CLASS, seed=0)


def queries(number: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(SAMPLES), generator=generator)[:number], torch.rand(number, 6, generator=generator)


def direct(bank: SupportBank, rows: Tensor, latents: Tensor, step: int) -> Tensor:
    """Evidence per class, N×C: one query, one class and one support at a time."""
    random, exists = bank._random(PER_CLASS + 1, step)
    result = torch.zeros(len(rows), len(CANDIDATES))
    for i, row in enumerate(rows.tolist()):
        for label in CANDIDATES:
            vectors = [
                latents[j]
                for j, other in enumerate(rows.tolist())
                if other != row and SAMPLES[other].labels == (label,)
            ]
            for other, there in zip(random[label].tolist(), exists[label].tolist(), strict=True):
                if there and other not in rows.tolist():
                    vectors.append(bank.latents[other])
            for vector in vectors[:PER_CLASS]:
                result[i, label] += bcos_similarity(latents[i][None], vector[None])[0, 0]
    return result


@pytest.mark.parametrize("number", [1, 7, 40, len(SAMPLES)])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_evidence_is_that_of_the_direct_formula(number: int, step: int) -> None:
    bank, (rows, latents) = make(), queries(number, step)
    drawn = bank.draw(rows, latents, step)
    evidence = bcos_similarity(latents, drawn.vectors).view(drawn.counts.shape)
    assert torch.allclose((evidence * drawn.counts).sum(2), direct(bank, rows, latents, step), atol=1e-5)


@pytest.mark.parametrize("number", [1, 7, 40, len(SAMPLES)])
def test_nobody_is_compared_with_their_own_image_and_everybody_with_as_many_as_there_are(number: int) -> None:
    bank = make()
    for step in range(20):
        rows, latents = queries(number, step)
        drawn = bank.draw(rows, latents, step)
        for query, counts in zip(rows.tolist(), drawn.counts, strict=True):
            for label, members in CANDIDATES.items():
                used = drawn.rows[label][counts[label]].tolist()
                others = set(members) - {query}
                assert set(used) <= others  # which are images of that class and of no other
                assert len(used) == len(set(used)) == min(PER_CLASS, len(others))


def test_positions_are_different_and_equally_likely() -> None:
    sizes, draws = torch.tensor([1, 2, 3, 5]), 2000
    chance = torch.rand(draws, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = torch.stack([distinct_positions(sizes, each) for each in chance])
    for row, size in enumerate(sizes.tolist()):
        counts = torch.bincount(drawn[:, row, :size].flatten())
        assert len(counts) == size and (counts / draws - min(3, size) / size).abs().max() < 0.05
        assert all(len(set(each)) == 3 for each in drawn[:, row].tolist())


def test_random_members_are_different_and_all_have_their_turn() -> None:
    bank = make()
    seen = torch.zeros(len(SAMPLES))
    for step in range(600):
        random, exists = bank._random(4, step)
        assert exists.sum(1).tolist() == [1, 2, 4, 4, 4]
        for label in range(5):
            found = random[label][exists[label]]
            assert len(found.unique()) == len(found)
            seen[found] += 1
    for label, members in CANDIDATES.items():
        expected = 600 * min(4, len(members)) / len(members)
        assert (seen[members] - expected).abs().max() < 5 * expected**0.5 + 1e-9, label
    assert not seen[[i for i, sample in enumerate(SAMPLES) if len(sample.labels) > 1]].any()
    assert torch.equal(bank._random(4, 7)[0], make()._random(4, 7)[0])
    assert not torch.equal(bank._random(4, 7)[0], bank._random(4, 8)[0])


def test_gradients_reach_queries_and_supports_of_the_batch_but_not_the_bank() -> None:
    bank = make()
    rows = torch.tensor([CANDIDATES[4][0], CANDIDATES[4][1], CANDIDATES[3][0]])
    latents = torch.rand(3, 6, requires_grad=True)
    drawn = bank.draw(rows, latents, 0)
    evidence = bcos_similarity(latents, drawn.vectors).view(drawn.counts.shape) * drawn.counts
    evidence[0, 4].sum().backward()
    assert latents.grad is not None
    assert latents.grad[0].any() and latents.grad[1].any() and not latents.grad[2].any()
    assert not bank.latents.requires_grad
    bank.remember(rows, latents)
    assert torch.equal(bank.latents[rows], latents) and not bank.latents.requires_grad


def test_nothing_waits_for_the_device() -> None:
    """Tensors without contents: whoever asks for a number in them, or for a shape that depends on it, fails."""
    bank, (rows, latents) = make(), queries(9, 0)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        drawn = bank.draw(mode.from_tensor(rows), mode.from_tensor(latents), 0)
        assert drawn.vectors.shape == (5 * 4, 6) and drawn.counts.shape == (9, 5, 4)


def module(classes: int, source: str, form: str = "bcos") -> SICTraining:
    """Four images of each class."""
    preprocessing = Preprocessing(16, 16)
    recipe = "bcosify" if form == "bcosified" else "scratch"
    settings = small_settings(size=16, resize=16, lr=1e-3, recipe=recipe, form=form, latent=6, support_source=source)
    names = [str(c) for c in range(classes)]
    config = Config("resnet_tiny", names, "single", preprocessing, 3, 1.0, latent=6, form=form)  # type: ignore[arg-type]
    classifier = build(config, 3 * classes, biases=form == "bcosified", measure=False)
    candidates = {c: list(range(4 * c, 4 * c + 4)) for c in range(classes)}
    made = SICTraining(classifier, settings, candidates, False)  # type: ignore[arg-type]
    made.steps_per_epoch = 4
    return made


@pytest.mark.parametrize("form", ["bcos", "bcosified"])
def test_a_step_embeds_its_queries_whatever_the_number_of_classes(form: str) -> None:
    for classes in (3, 40):
        made = module(classes, "bank", form)
        assert not made.draws_supports and module(classes, "exact").draws_supports
        made.bank = SupportBank(torch.rand(4 * classes, 6), made.candidates, 3, 0)
        before = made.bank.latents.clone()
        rows = torch.tensor([0, 1, 4, 9, 11])
        samples = [Sample(str(r), Path(str(r)), (r // 4,)) for r in rows.tolist()]
        empty = torch.zeros(0, 3, 16, 16, dtype=torch.uint8)
        pixels = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
        none = rows[:0], torch.zeros(0, classes), rows[:0], torch.zeros(0, 9, dtype=torch.long)
        embedded: list[int] = []
        made.classifier.backbone.register_forward_hook(lambda _, images, __, n=embedded: n.append(len(images[0])))
        loss = made.training_step(Batch(pixels, None, rows, targets(samples, classes), empty, *none), 1)
        loss.backward()  # type: ignore[no-untyped-call]
        assert embedded == [5]
        assert (made.guide is not None) == (form == "bcos")
        assert made.guide is None or made.guide.head.weight.grad is not None
        changed = (made.bank.latents != before).any(dim=1).nonzero()[:, 0]
        assert changed.tolist() == rows.tolist()


def test_competition_is_softmax_cross_entropy_that_fades() -> None:
    settings = small_settings(recipe="tuned")
    classifier = SIC(create("resnet_tiny", "bcosified"), 3, 6, latent=16)
    module = SICTraining(classifier, settings, {label: [label] for label in range(3)}, False)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    wanted = torch.eye(3)[labels]
    assert float(module.competition(logits, wanted, 0.0)) == 0  # unless the fit of the projection turns it on
    module.competing = 2.0
    expected = 2 * float(torch.nn.functional.cross_entropy(logits, labels))
    for done, strength in ((0.0, 1.0), (0.5, 1.0), (0.8, 0.4), (1.0, 0.0)):
        assert float(module.competition(logits, wanted, done)) == pytest.approx(strength * expected, abs=1e-6)
