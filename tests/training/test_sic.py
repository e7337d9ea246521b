import numpy as np
import pytest

from sic.training.sic import FIRST_LOOK, LatentHealth, collapse, latent_health

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
