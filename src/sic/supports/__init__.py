"""Choosing and holding the cases that a SIC model reasons with."""

from sic.supports.select import select, select_class
from sic.supports.store import Support, read_supports, write_supports

__all__ = ["Support", "read_supports", "select", "select_class", "write_supports"]
