"""The paper's grid of learning rates and temperatures, and the picture of what a search found on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sic.training.settings import Settings

Point = tuple[float, float]
"""Learning rate and temperature."""
Axes = tuple[tuple[float, ...], tuple[float, ...]]
"""Learning rates and temperatures."""

PRETRAINED: Axes = (0.0022, 0.001, 0.00022, 0.0001, 0.000022, 0.00001), (10.0, 30.0)
"""The paper's for networks that start from ImageNet's weights."""
FROM_NOTHING: Axes = (0.01, 0.003, 0.001, 0.0003), (10.0, 30.0, 50.0)
"""The paper's for RSNA, the one data set that it trains without."""


def default_axes(settings: Settings) -> Axes:
    """The paper's grid, and on it what `sic train` would choose: a search must not end below that. Its temperatures are
    SIC's."""
    rates, temperatures = FROM_NOTHING if settings.weights is None else PRETRAINED
    if settings.method != "sic":
        temperatures = ()
    return tuple(sorted({*rates, settings.lr}, reverse=True)), tuple(sorted({*temperatures, settings.temperature}))


@dataclass(frozen=True)
class Trial:
    """One fit of a search."""

    trial: int
    lr: float
    temperature: float
    state: Literal["finished", "failed", "running", "waiting"]
    score: float | None = None
    """Accuracy or, of multi-label data, mean average precision on the images held out from training."""
    reason: str | None = None
    """Why it failed."""
    model: str | None = None
    """The folder of the fit, on the machine that made it."""
    seconds: float | None = None

    @property
    def point(self) -> Point:
        return self.lr, self.temperature


def best(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial with the highest score, the first of equals."""
    return max((t for t in trials if t.score is not None), key=lambda t: t.score or 0.0, default=None)


def draw(trials: Sequence[Trial], score: str, path: Path) -> None:
    """Write a heat map of the scores, learning rates upwards; the best has a frame, what has no score is hatched."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rates, temperatures = sorted({t.lr for t in trials}), sorted({t.temperature for t in trials})
    scores = np.full((len(rates), len(temperatures)), np.nan)
    places = {t.trial: (rates.index(t.lr), temperatures.index(t.temperature)) for t in trials}
    for trial in trials:
        scores[places[trial.trial]] = np.nan if trial.score is None else trial.score
    figure = Figure(figsize=(3.4 + 0.95 * len(temperatures), 1.7 + 0.55 * len(rates)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    shades = axes.imshow(scores, origin="lower", aspect="auto", cmap="viridis")
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2 if np.isfinite(scores).any() else 0.0
    for trial in trials:
        row, column = places[trial.trial]
        if trial.score is None:
            corner = column - 0.5, row - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, facecolor="#eeeeee", edgecolor="#b5b5b5", hatch="///", linewidth=0))
        words = trial.state if trial.score is None else f"{trial.score:.1%}"
        ink = "white" if trial.score is not None and trial.score < middle else "black"
        axes.text(column, row, words, ha="center", va="center", color=ink, fontsize=9)
    winner = best(trials)
    if winner is not None:
        row, column = places[winner.trial]
        axes.add_patch(
            Rectangle((column - 0.46, row - 0.45), 0.92, 0.9, fill=False, edgecolor="#d55e00", linewidth=2.5)
        )
        figure.colorbar(shades, format=lambda value, _: f"{100 * value:g}%")
    axes.set_xticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
    axes.set_yticks(range(len(rates)), [f"{lr:g}" for lr in rates])
    axes.set_xlabel("temperature T")
    axes.set_ylabel("learning rate")
    axes.set_title(f"{score}, validation images", fontsize=11)
    figure.savefig(path)
