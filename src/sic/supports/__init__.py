"""Choosing, holding and editing the supports that a SIC model reasons with."""

from sic.supports.likeness import resembling_others
from sic.supports.select import Selection, directions, room_for, select, select_class, select_how, select_varied
from sic.supports.support import (
    Action,
    Edit,
    Support,
    by_position,
    find_support,
    read_supports,
    remove_unlisted,
    replaced,
    support_files,
    support_key,
    support_names,
    write_supports,
)

__all__ = [
    "Action",
    "Edit",
    "Selection",
    "directions",
    "Support",
    "by_position",
    "find_support",
    "resembling_others",
    "read_supports",
    "remove_unlisted",
    "replaced",
    "room_for",
    "select",
    "select_class",
    "select_how",
    "select_varied",
    "support_files",
    "support_key",
    "support_names",
    "write_supports",
]
