"""Noticing early that a fit is lost, and saying so in words."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LatentHealth:
    """State of the latents of the training set after an epoch."""

    dead_units: float
    """Share of latent units that no training image activates."""
    norm: float
    """Mean latent norm."""


def latent_health(latents: NDArray[np.float32]) -> LatentHealth:
    """Of n×d latents."""
    dead = float((latents.max(axis=0) <= 0).mean())
    return LatentHealth(dead, float(np.linalg.norm(latents, axis=1).mean()))


FIRST_LOOK = 150
"""Steps before which a fit may look lost without being so."""


def collapse(health: LatentHealth, temperature: float, score: float, chance: float, steps: int) -> str | None:
    """A sentence if training has collapsed: at chance level, with dead units or with latents too short to matter."""
    if steps < FIRST_LOOK or (score > 1.5 * chance and np.isfinite(health.norm)):
        return None
    if health.dead_units > 0.5:
        sign = f"{health.dead_units:.0%} of the latent units are dead"
    elif not health.norm >= 0.1 * temperature:  # also where it is not a number
        sign = f"latents have shrunk to a norm of {health.norm:.2g}, too little evidence at T = {temperature:g}"
    else:
        return None
    return (
        f"The fit has collapsed: after {steps} steps the score is {score:.1%} (chance: {chance:.1%}) and {sign}. "
        "It will hardly recover; stop it and use --recipe scratch, a lower --lr, or pretrained --weights."
    )
