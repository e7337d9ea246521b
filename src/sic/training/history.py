"""What a run writes down whenever it was checked, and what it tells the user meanwhile."""

import csv
import time
from pathlib import Path
from typing import Any, Protocol

import lightning

from sic.files import write_atomically
from sic.training.base import Training

HISTORY = "history.csv"
COLUMNS = ["epoch", "learning_rate", "train_loss", "val_loss", "val_score", "dead_units", "latent_norm", "seconds"]


class Reporter(Protocol):
    """Who is told how work goes; the command line draws bars, a library user may pass nothing."""

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
