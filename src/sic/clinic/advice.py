"""Advice: the commands that findings come with. An edit is advised only if it was tried and the problem is gone."""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sic.clinic.edits import plan, selects_varied, unwanted
from sic.clinic.examined import Examined
from sic.errors import SicError
from sic.supports import Edit, support_key

COST = 0.01
"""How much of the main score on the validation images an advised edit may cost."""
TRIED = 5
"""The number of images that are tried in the place of a support, the most typical of the class first."""


@dataclass(frozen=True)
class Commands:
    """Writes commands for the model in `folder`; `data` is where its images are, if they were moved."""

    folder: Path
    data: str | None = None
    trained_on: str = "DATA"
    """The data that `sic train` was given."""
    options: Sequence[str] = ()
    """The options that `sic train` needs to open it in the same way."""

    def edit(self, edit: Edit) -> str:
        words: list[object] = ["sic", "supports", self.folder, edit.action]
        words += [word for word in (edit.support, edit.label, edit.image) if word is not None]
        words += [] if edit.number is None else ["--supports", edit.number]
        words += [] if edit.varied is None else ["--varied" if edit.varied else "--nearest"]
        words += [] if self.data is None else ["--data", self.data]
        return shlex.join(map(str, words))

    def explain(self, image: Path) -> str:
        return shlex.join(["sic", "explain", str(self.folder), str(image), "--out", f"why-{image.stem}.png"])

    def train(self, temperature: float, per_class: int, selection: str) -> str:
        """Train the model further with another temperature, and as many supports, selected in the same way."""
        out = self.folder.with_name(f"{self.folder.name}-T{temperature:g}")
        words = ["sic", "train", self.data or self.trained_on, *self.options, "--weights", self.folder]
        words += ["-T", f"{temperature:g}", "--supports", per_class, "--inference-supports", selection]
        return shlex.join(map(str, [*words, "--out", out]))


@dataclass(frozen=True)
class Advice:
    """The result of trying edits against a problem."""

    command: str | None
    """The command of the edit that helps; None: no edit that was tried helps."""
    tried: bool
    """Whether any edit was tried."""


def first_that_helps(
    examined: Examined, commands: Commands, edits: Iterable[Edit], remains: Callable[[Examined], bool]
) -> Advice:
    """The first edit after which a problem does not remain, at a cost of at most `COST`. Edits that are refused do not
    count as tried."""
    before, tried = _score(examined), False
    for edit in edits:
        try:
            after = examined.with_supports(plan(edit, examined)[1])
        except SicError:
            continue
        tried = True
        if not remains(after) and _score(after) >= before - COST:
            return Advice(commands.edit(edit), tried)
    return Advice(None, tried)


def exchanges(examined: Examined, index: int) -> list[Edit]:
    """Edits that take a support out: typical images of its class in its place, or none."""
    label, name, avoided = examined.supports[index].label, support_key(examined.supports, index), unwanted(examined)
    free = [one.id for one in examined.candidates(label) if not one.support and (label, one.id) not in avoided]
    return [*(Edit.replace(name, image) for image in free[:TRIED]), Edit.drop(name)]


def selections(examined: Examined, label: int) -> list[Edit]:
    """Edits that select the supports of a class again: as training did, and in the other way."""
    name, varied = examined.classes[label], selects_varied(examined)
    return [Edit.reselect(name), Edit.reselect(name, varied=not varied)]


def _score(examined: Examined) -> float:
    """The main score on the validation images; 0 where it is not defined."""
    predictions = examined.predictions("validation")
    score = predictions.main_score(predictions.targets)
    return score if math.isfinite(score) else 0.0
