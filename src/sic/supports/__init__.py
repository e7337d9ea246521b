"""Choosing, holding and editing the supports that a SIC model reasons with."""

from sic.supports.edits import Action, Edit, by_position, find_support, replaced, support_key, support_names
from sic.supports.select import Selection, directions, room_for, select, select_class, select_how
from sic.supports.store import Support, read_supports, remove_unlisted, support_files, write_supports

__all__ = [
    "Action",
    "Edit",
    "Selection",
    "directions",
    "Support",
    "by_position",
    "find_support",
    "read_supports",
    "remove_unlisted",
    "replaced",
    "room_for",
    "select",
    "select_class",
    "select_how",
    "support_files",
    "support_key",
    "support_names",
    "write_supports",
]
