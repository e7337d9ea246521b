"""The record of edits in `config.json`: enough to understand each of them, and to take it back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


def now() -> str:
    """To the second, in universal time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Record:
    """One edit that was made."""

    action: str
    label: str
    """The class whose supports were edited."""
    removed: list[str]
    added: list[str]
    before: dict[str, Any]
    after: dict[str, Any]
    """Figures on the validation images."""
    to_right: list[str]
    to_wrong: list[str]
    """Validation images whose answers became right, and wrong."""
    supports_before: list[list[Any]]
    """The class's supports before the edit, each with whether it was pinned: what undo goes back to."""
    forced: bool = False
    """An image of another class was taken on purpose."""
    when: str = field(default_factory=now)
    undone: str | None = None
    """When it was taken back."""


def standing(records: Sequence[Record]) -> list[Record]:
    """Those that were not taken back."""
    return [record for record in records if record.undone is None]


def taken_out(records: Sequence[Record]) -> set[tuple[str, str]]:
    """Classes and the images that the user did not want as their supports, and has not put back since."""
    out: set[tuple[str, str]] = set()
    for record in standing(records):
        if record.action in ("drop", "replace"):
            out |= {(record.label, source) for source in record.removed}
        out -= {(record.label, source) for source in record.added}
    return out
