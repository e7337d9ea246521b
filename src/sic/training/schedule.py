"""The paper's learning-rate schedule."""


def learning_rate_factor(step: int, steps_per_epoch: int, total_steps: int) -> float:
    """Share of the initial learning rate at `step` (from 0).

    Linear from 10 % to 100 % over the first two epochs, constant until half of all steps are done, halved there and
    again at 60, 70, 80 and 90 %.

    >>> [learning_rate_factor(step, 10, 1000) for step in (0, 10, 20, 499, 500, 600, 999)]
    [0.1, 0.55, 1.0, 1.0, 0.5, 0.25, 0.03125]
    """
    warm_up = 2 * steps_per_epoch
    ramp = 0.1 + 0.9 * step / warm_up if step < warm_up else 1.0
    tenths_past_half = 10 * step // total_steps - 5
    return ramp * 0.5 ** max(0, tenths_past_half + 1)
