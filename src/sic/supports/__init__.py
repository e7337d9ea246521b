"""Choosing, holding and editing the cases that a SIC model reasons with."""

from sic.supports.edits import Case, Edit, find_support, replaced
from sic.supports.select import select, select_class
from sic.supports.store import Support, read_supports, remove_unlisted, write_supports

__all__ = [
    "Case",
    "Edit",
    "Support",
    "find_support",
    "read_supports",
    "remove_unlisted",
    "replaced",
    "select",
    "select_class",
    "write_supports",
]
