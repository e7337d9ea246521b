"""Output of commands: messages for people on standard error, results on standard output.

Class names, file names and messages come from outside. Everything is printed here, without interpreting markup and
without passing control characters to the terminal.
"""

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal or reorder text, except tabs and line breaks."""


def harmless(text: str) -> str:
    r"""The text with its control characters escaped.

    >>> print(harmless("a\x1b[31mb"))
    a\x1b[31mb
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def styled(text: str, style: str) -> Text:
    """A cell or a line in a style, such as `red`."""
    return Text(harmless(text), style)


class _Console(RichConsole):
    """A console that interprets neither markup nor emoji codes nor control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(harmless(text), **options)


OUT = _Console(width=None if sys.stdout.isatty() else 200)
ERR = _Console(stderr=True)


class Talker(AbstractContextManager["Talker"]):
    """Progress bars on a terminal, occasional lines elsewhere. A `sic.training.Reporter`."""

    def __init__(self) -> None:
        task, note = TextColumn("{task.description:<16}", markup=False), TextColumn("{task.fields[note]}", markup=False)
        self.bars = Progress(task, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note, console=ERR)
        self.tasks: dict[str, TaskID] = {}
        self.shown: dict[str, int] = {}
        """Tenths that were printed last."""

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
        ERR.print(sentence)

    def warn(self, sentence: str) -> None:
        ERR.print(f"! {sentence}", style="yellow")

    def advance(self, task: str, done: int, total: int, note: str = "") -> None:
        task, note = harmless(task), harmless(note)
        if ERR.is_terminal:
            if task not in self.tasks:
                self.tasks[task] = self.bars.add_task(task, total=total, note=note)
            self.bars.update(self.tasks[task], completed=done, total=total, note=note)
            return
        tenths = 10 * done // max(total, 1)
        if self.shown.get(task) != tenths:  # fewer where a task begins again
            self.shown[task] = tenths
            ERR.print(f"{task}: {done}/{total} {note}".rstrip())

    def progress(self, task: str) -> Callable[[int, int], None]:
        """A `sic.data.dataset.Progress` that reports this task."""
        return lambda done, total: self.advance(task, done, total)


def print_json(content: Any) -> None:
    """One JSON object on standard output."""
    print(_json(content, indent=1))


def _json(content: Any, indent: int | None = None) -> str:
    """Readable JSON with all control characters escaped; JSON requires that for some of them only."""
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Results:
    """A list of results, printed while it grows: texts, or one JSON object whose last field is that list.

    Create it before a `Talker` starts, which captures standard output while it shows progress bars.
    """

    def __init__(self, fields: dict[str, Any], name: str, as_json: bool) -> None:
        self.out, self.as_json = sys.stdout, as_json
        self.before = _json({**fields, name: []})[:-2]

    def add(self, entry: dict[str, Any], text: str | None) -> None:
        if self.as_json:
            print(self.before, _json(entry), sep="\n", end="", file=self.out, flush=True)
            self.before = ","
        elif text is not None and self.out.isatty():
            OUT.print(text)  # above the bars
        elif text is not None:
            print(harmless(text), file=self.out, flush=True)

    def close(self) -> None:
        if self.as_json:
            print(("" if self.before == "," else self.before) + "]}", file=self.out)
