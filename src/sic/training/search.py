"""A grid search: one fit per point, each in a folder of its own. The folders and `search.json` hold all state."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sic.card import candidates, models_compared
from sic.data.labels import MAIN_SCORE
from sic.directory import CONFIG, RUN, read_config
from sic.errors import SicError
from sic.files import write_json
from sic.methods import Classifier
from sic.settings import Settings, flag, from_json, table, to_json
from sic.training.fit import recorded_settings

RECORD, TRIALS = "search.json", "trials"
LOST = re.compile(r"The fit has collapsed: .*?(?= It is unlikely to recover|$)|The (loss|latents) became NaN.*", re.M)
"""Messages of fits that would fail again in the same way."""

Point = dict[str, Any]
"""Values of the settings that a search varies."""
Axes = dict[str, tuple[Any, ...]]
"""The values to try for each setting."""

PRETRAINED: Axes = {"lr": (0.0022, 0.001, 0.00022, 0.0001, 0.000022, 0.00001), "temperature": (10.0, 30.0)}
"""The paper's grid for networks that start from ImageNet weights."""
FROM_SCRATCH: Axes = {"lr": (0.01, 0.003, 0.001, 0.0003), "temperature": (10.0, 30.0, 50.0)}
"""The paper's grid for RSNA, the one dataset that it trains from scratch."""


def default_axes(settings: Settings, kind: type[Classifier]) -> Axes:
    """The paper's grid, with the values that `sic train` would choose: a search must not end below these.

    The paper varies T only for the methods that it gives a T.
    """
    paper = FROM_SCRATCH if settings.weights is None else PRETRAINED
    axes: Axes = {"lr": tuple(sorted({*paper["lr"], settings.lr}, reverse=True))}
    if "temperature" in kind.options and not settings.projection_first:  # which chooses T itself
        temperatures = paper["temperature"] if "paper" in kind.temperatures else ()
        axes["temperature"] = tuple(sorted({*temperatures, settings.temperature}))
    return axes


def points_of(axes: Axes) -> list[Point]:
    """All combinations.

    >>> points_of({"lr": (0.1, 0.01), "latent": (8,)})
    [{'lr': 0.1, 'latent': 8}, {'lr': 0.01, 'latent': 8}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def name_of(point: Point) -> str:
    """The name of a trial's folder.

    >>> name_of({"lr": 0.003, "temperature": 10.0, "supports_per_class": 5})
    'lr0.003-T10-supports5'
    """
    short = {name: "T" if name == "temperature" else flag(name)[2:] for name in point}
    return "-".join(f"{short[name]}{value:g}" for name, value in point.items())


@dataclass(frozen=True)
class Trial:
    """One fit of a search."""

    trial: int
    point: Point
    state: Literal["finished", "failed", "running", "waiting"]
    score: float | None = None
    """Accuracy or, for multi-label data, mean average precision on the validation images."""
    reason: str | None = None
    """Why it failed."""
    model: str | None = None
    """The folder of the fit."""
    seconds: float | None = None

    @property
    def lost(self) -> bool:
        """Whether it would fail in the same way again."""
        return self.state == "failed" and LOST.search(self.reason or "") is not None

    def flat(self) -> dict[str, Any]:
        """One value per column: its number, its point, and the rest."""
        content = asdict(self)
        return {"trial": content.pop("trial"), **content.pop("point"), **content}


def best(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial with the highest score, the first of equals."""
    return max((t for t in trials if t.score is not None), key=lambda t: t.score or 0.0, default=None)


class Search:
    """The trials in a folder."""

    def __init__(self, out: Path, is_running: Callable[[Path], bool]) -> None:
        """`is_running`: whether a process writes this log."""
        self.out, self.is_running = out.resolve(), is_running
        file = self.out / RECORD
        try:
            self.record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            self.points: list[Point] = list(self.record.get("points", []))
        except (ValueError, AttributeError, TypeError):
            raise SicError(f"{file} is damaged; choose another --out.") from None

    def begin(self, said: Mapping[str, Any], settings: Settings, data: Mapping[str, Any]) -> None:
        """Record what all trials have in common; a search that is continued must have the same."""
        self.settings = settings
        if not self.record:
            self.record = {"said": dict(said), "settings": to_json(settings), "data": dict(data), "points": []}
            return
        if self.record["data"] != json.loads(json.dumps(data)):
            raise SicError(
                f"The images differ from those that the search in {self.out} started with; choose another --out."
            )
        before = from_json(self.record["settings"])
        for name in sorted(to_json(settings)):
            ours, theirs = getattr(settings, name), getattr(before, name)
            if ours != theirs and not (name in table() and table()[name].search):
                raise SicError(
                    f"The search in {self.out} was started with {name.replace('_', ' ')} {theirs}, and would now have "
                    f"{ours}; give the same settings, or start again with another --out."
                )

    def add(self, points: Iterable[Point]) -> None:
        """Add points that nobody has tried, and write the record."""
        known = {name_of(point) for point in self.points}
        self.points += [point for point in points if name_of(point) not in known]
        self.record["points"] = self.points
        (self.out / TRIALS).mkdir(parents=True, exist_ok=True)
        write_json(self.out / RECORD, self.record)

    def folder(self, point: Point) -> Path:
        return self.out / TRIALS / name_of(point)

    def log(self, point: Point) -> Path:
        return self.out / TRIALS / f"{name_of(point)}.log"

    def _notes(self, point: Point) -> Path:
        return self.out / TRIALS / f"{name_of(point)}.json"

    def _noted(self, point: Point) -> dict[str, Any]:
        notes = self._notes(point)
        return json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else {}

    def trials(self) -> list[Trial]:
        """One per point, in the order in which they were added."""
        return [self._trial(number, point) for number, point in enumerate(self.points)]

    def _trial(self, number: int, point: Point) -> Trial:
        folder, found = self.folder(point), self._noted(point)
        score = score_of(folder)
        if score is not None:
            return Trial(number, point, "finished", score, None, str(folder), found.get("seconds"))
        if self.is_running(self.log(point)):
            return Trial(number, point, "running", model=str(folder))
        if found.get("reason"):
            return Trial(number, point, "failed", None, found["reason"], str(folder), found.get("seconds"))
        return Trial(number, point, "waiting")

    def note(self, point: Point, reason: str | None, seconds: float) -> None:
        """Record how a trial has ended, and among how many models it has chosen, without those before the search."""
        folder, models = self.folder(point), 0
        if (folder / CONFIG).is_file():
            models = models_compared(read_config(folder)[0].training) - self.settings.compared
        write_json(self._notes(point), {"reason": reason, "seconds": seconds, "models": models})

    def compared_with(self, winner: Point) -> int:
        """How many models were compared with a winner on the validation images, before the search and in its finished
        trials, but for those that its own settings count (`candidates`)."""
        finished = [trial.point for trial in self.trials() if trial.state == "finished"]
        own = candidates(read_config(self.folder(winner))[0].training)
        return self.settings.compared + sum(map(self._models, finished)) - own

    def _models(self, point: Point) -> int:
        """Those of one trial, as noted at its end: the record of a winner counts those of the others, too."""
        noted = self._noted(point).get("models")
        return int(noted) if noted else candidates(read_config(self.folder(point))[0].training)

    def resumes(self, point: Point) -> bool:
        """Whether the folder of a point holds a run to continue; one with other settings is refused."""
        folder = self.folder(point)
        if not (folder / RUN).is_file():
            return False
        wanted, there = replace(self.settings, **point), recorded_settings(folder, {})
        if replace(wanted, compiled=there.compiled) != there:  # whether compiling pays depends on the point
            raise SicError(f"{folder} holds a run with other settings; move it away, or choose another --out.")
        return True


def score_of(folder: Path) -> float | None:
    """The validation score of a fit; None if it has not finished."""
    if not (folder / CONFIG).is_file():
        return None
    config, _ = read_config(folder)
    return float(config.figures["validation"][MAIN_SCORE[config.task]]) if config.figures else None


def draw(trials: Sequence[Trial], score: str, path: Path) -> None:
    """Write a heat map of the scores over the first two settings that vary, of each cell the best trial.

    The best of all has a frame; cells without a score are hatched.
    """
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    names = list(dict.fromkeys(name for trial in trials for name in trial.point))
    values = {name: sorted({t.point[name] for t in trials if name in t.point}) for name in names}
    up, *across = [*(name for name in names if len(values[name]) > 1), *(n for n in names if len(values[n]) == 1)][:2]
    rows, columns = values[up], values[across[0]] if across else [None]

    def place(trial: Trial) -> tuple[int, int]:
        return rows.index(trial.point[up]), columns.index(trial.point[across[0]]) if across else 0

    cells: dict[tuple[int, int], Trial] = {}
    for trial in trials:
        here = cells.setdefault(place(trial), trial)
        cells[place(trial)] = best([here, trial]) or here
    scores = np.full((len(rows), len(columns)), np.nan)
    for where, trial in cells.items():
        scores[where] = np.nan if trial.score is None else trial.score
    figure = Figure(figsize=(3.4 + 0.95 * len(columns), 1.7 + 0.55 * len(rows)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    shades = axes.imshow(scores, origin="lower", aspect="auto", cmap="viridis")
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2 if np.isfinite(scores).any() else 0.0
    for (row, column), trial in cells.items():
        if trial.score is None:
            corner = column - 0.5, row - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, facecolor="#eeeeee", edgecolor="#b5b5b5", hatch="///", linewidth=0))
        words = trial.state if trial.score is None else f"{trial.score:.1%}"
        ink = "white" if trial.score is not None and trial.score < middle else "black"
        axes.text(column, row, words, ha="center", va="center", color=ink, fontsize=9)
    winner = best(trials)
    if winner is not None:
        row, column = place(winner)
        axes.add_patch(
            Rectangle((column - 0.46, row - 0.45), 0.92, 0.9, fill=False, edgecolor="#d55e00", linewidth=2.5)
        )
        figure.colorbar(shades, format=lambda value, _: f"{100 * value:g}%")
    axes.set_xticks(range(len(columns)), [f"{value:g}" if across else "" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    if across:
        axes.set_xlabel(across[0].replace("_", " "))
    axes.set_ylabel(up.replace("_", " "))
    axes.set_title(f"{score}, validation images", fontsize=11)
    figure.savefig(path)
