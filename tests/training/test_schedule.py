import pytest

from sic.training.base import learning_rate_factor


def reference(steps_per_epoch: int, epochs: int) -> list[float]:
    """From the words: linear from 10 % over two epochs, constant to half of all steps, halved there and every 10 %."""
    total = steps_per_epoch * epochs
    factors = []
    for step in range(total):
        factor = 1.0
        if step < 2 * steps_per_epoch:
            factor = 0.1 + (1 - 0.1) * step / (2 * steps_per_epoch)
        for percent in (50, 60, 70, 80, 90):
            if 100 * step >= percent * total:
                factor /= 2
        factors.append(factor)
    return factors


@pytest.mark.parametrize(
    ("steps_per_epoch", "epochs"), [(1, 10), (1, 100), (7, 13), (10, 20), (3, 33), (250, 4), (5, 3)]
)
def test_against_the_words(steps_per_epoch: int, epochs: int) -> None:
    total = steps_per_epoch * epochs
    factors = [learning_rate_factor(step, steps_per_epoch, total) for step in range(total)]
    assert factors == pytest.approx(reference(steps_per_epoch, epochs), rel=1e-12)


def test_levels_of_a_long_run() -> None:
    factors = [learning_rate_factor(step, 10, 1000) for step in range(1000)]
    assert factors[0] == 0.1 and factors[10] == pytest.approx(0.55)
    assert factors[:20] == sorted(factors[:20]) and factors[20:500] == [1.0] * 480
    for level, start in enumerate(range(500, 1000, 100), 1):
        assert factors[start : start + 100] == [0.5**level] * 100
