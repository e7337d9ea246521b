"""Records of a run while it goes on: progress, the history of its epochs, checkpoints."""

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO

from sic.errors import SicError
from sic.files import real_folder, write_atomically
from sic.training.base import Training, near_chance

HISTORY = "history.csv"
COLUMNS = ["epoch", "learning_rate", "train_loss", "val_loss", "val_score", "dead_units", "latent_norm", "seconds"]


SLOW = 3
"""Checks after which a fit that is still near chance is called slow."""


class Reporter(Protocol):
    """Receives messages and progress. The command line draws bars; `Silent` ignores everything."""

    def say(self, sentence: str) -> None: ...
    def warn(self, sentence: str) -> None: ...
    def advance(self, task: str, done: int, total: int, note: str = "") -> None: ...


class Silent:
    """Tells nobody."""

    def say(self, sentence: str) -> None:
        pass

    def warn(self, sentence: str) -> None:
        pass

    def advance(self, task: str, done: int, total: int, note: str = "") -> None:
        pass


def read_history(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class History(lightning.Callback):
    """One CSV row per epoch that ends with a check; after a resume, rows of epochs that are done again are replaced."""

    def __init__(self, file: Path, reporter: Reporter) -> None:
        self.file, self.reporter = file, reporter
        self.started = time.monotonic()
        self.warned = False

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self.started = time.monotonic()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *args: Any) -> None:
        if not trainer.is_global_zero:
            return
        score = module.figures.get("val_score")
        note = f"epoch {trainer.current_epoch + 1}" + ("" if score is None else f", validation {score:.1%}")
        self.reporter.advance("training", trainer.global_step, module.total_steps, note)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        assert isinstance(module, Training)
        if not trainer.is_global_zero or (trainer.current_epoch + 1) % module.settings.check_every:
            return
        row: dict[str, Any] = {
            "epoch": trainer.current_epoch + 1,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            **module.figures,
            "seconds": round(time.monotonic() - self.started, 2),
        }
        rows = [old for old in read_history(self.file) if int(old["epoch"]) <= trainer.current_epoch]

        def write(path: Path) -> None:
            with path.open("w", newline="", encoding="utf-8") as lines:
                writer = csv.DictWriter(lines, COLUMNS)
                writer.writeheader()
                writer.writerows([*rows, row])

        write_atomically(self.file, write)
        self.started = time.monotonic()
        if module.collapsed is not None and not self.warned:
            self.reporter.warn(module.collapsed)
            self.warned = True
        scores = [float(one["val_score"]) for one in [*rows, row]]
        if len(scores) == SLOW and module.collapsed is None and module.chance is not None:
            slow = slow_start(scores, module.chance, trainer.current_epoch + 1, trainer.max_epochs or 0)
            if slow is not None:
                self.reporter.say(slow)


def slow_start(scores: Sequence[float], chance: float, done: int, epochs: int) -> str | None:
    """A sentence if all validation scores of the first `done` epochs are near chance and more epochs come; else None.

    >>> slow_start([0.11, 0.17, 0.22], 1 / 6, 12, 20)  # doctest: +ELLIPSIS
    'A slow start: 22% after 12 of 20 epochs, and chance is 17%. This is common ...'
    >>> slow_start([0.2, 0.3, 0.5], 1 / 6, 12, 20)
    >>> slow_start([0.11, 0.17, 0.22], 1 / 6, 12, 12)
    """
    if epochs <= done or not near_chance(max(scores), chance):
        return None
    return (
        f"A slow start: {max(scores):.0%} after {done} of {epochs} epochs, and chance is {chance:.0%}. This is "
        "common without pretrained weights; scores usually rise later. If they do not, train with more images, more "
        "epochs, or --weights."
    )


CHECKPOINTS = "checkpoints"
LAST, BEST = "last", "best"


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the target and renames. Lightning's own writes to TMPDIR, and from another file system only a copy
    leads to the target: whoever is killed then leaves half a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomically(target, content.getbuffer())


def checkpoint_folder(run: Path) -> Path:
    """The folder of a run's checkpoints. Removes half-written files of killed processes."""
    folder = real_folder(run / CHECKPOINTS)
    for unfinished in folder.glob(".*.ckpt.*.tmp"):
        unfinished.unlink(missing_ok=True)
    return folder


def read_checkpoint(folder: Path, names: Sequence[str], reporter: Reporter) -> tuple[Path, dict[str, Any]] | None:
    """The first checkpoint of these names that can be read, None if there is none; says which of them are damaged."""
    damaged = []
    for name in names:
        file = folder / f"{name}.ckpt"
        if not file.is_file():
            continue
        try:
            content = dict(torch.load(file, map_location="cpu", weights_only=True))
            epoch = int(content["epoch"]) + 1
        except (RuntimeError, EOFError, UnpicklingError, ValueError, KeyError, TypeError):
            damaged.append(file)
            continue
        if damaged:
            reporter.warn(f"{damaged[0]} is damaged; {file.name} of epoch {epoch} is used instead.")
        return file, content
    if damaged:
        raise SicError(f"{' and '.join(map(str, damaged))} can no longer be read; start again with another --out.")
    return None


def starting_point(folder: Path, reporter: Reporter) -> tuple[Path | None, int]:
    """The checkpoint that a resumed run goes on from, and how many epochs are done by then."""
    found = read_checkpoint(folder, (LAST, BEST), reporter)
    return (None, 0) if found is None else (found[0], found[1]["epoch"] + 1)
