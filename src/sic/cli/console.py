"""How commands talk: people read standard error, results go to standard output."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

OUT = RichConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
ERR = RichConsole(stderr=True, highlight=False, soft_wrap=True)


class Talker(AbstractContextManager["Talker"]):
    """Progress bars on a terminal, a line now and then elsewhere. A `sic.training.Reporter`."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=ERR)
        self.tasks: dict[str, TaskID] = {}
        self.shown: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> "Talker":
        if ERR.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if ERR.is_terminal:
            self.bars.stop()

    def say(self, sentence: str) -> None:
        ERR.print(sentence, markup=False)

    def warn(self, sentence: str) -> None:
        ERR.print(f"! {sentence}", style="yellow", markup=False)

    def advance(self, task: str, done: int, total: int, note: str = "") -> None:
        if ERR.is_terminal:
            if task not in self.tasks:
                self.tasks[task] = self.bars.add_task(task, total=total, note=note)
            self.bars.update(self.tasks[task], completed=done, total=total, note=note)
            return
        tenths = 10 * done // max(total, 1)
        if self.shown.get(task, ("", -1))[1] < tenths:
            self.shown[task] = (note, tenths)
            ERR.print(f"{task}: {done}/{total} {note}".rstrip(), markup=False)

    def progress(self, task: str) -> Callable[[int, int], None]:
        """The same for functions that only count."""
        return lambda done, total: self.advance(task, done, total)


def print_json(content: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(content, indent=1, ensure_ascii=False))


class Results:
    """A list of results, printed while it grows: texts, or one JSON object whose last field is that list.

    To be made before a `Talker` starts, which takes standard output for itself while it shows its bars.
    """

    def __init__(self, fields: dict[str, Any], name: str, as_json: bool) -> None:
        self.out, self.as_json = sys.stdout, as_json
        self.before = json.dumps({**fields, name: []}, ensure_ascii=False)[:-2]

    def add(self, entry: dict[str, Any], text: str | None) -> None:
        if self.as_json:
            print(self.before, json.dumps(entry, ensure_ascii=False), sep="\n", end="", file=self.out, flush=True)
            self.before = ","
        elif text is not None and self.out.isatty():
            OUT.print(text, markup=False)  # above the bars
        elif text is not None:
            print(text, file=self.out, flush=True)

    def close(self) -> None:
        if self.as_json:
            print(("" if self.before == "," else self.before) + "]}", file=self.out)
