"""Choosing and holding the cases that a SIC model reasons with."""

from sic.supports.select import HOW, How, Selection, select, select_class, select_how
from sic.supports.store import Support, read_supports, write_supports

__all__ = [
    "HOW",
    "How",
    "Selection",
    "Support",
    "read_supports",
    "select",
    "select_class",
    "select_how",
    "write_supports",
]
