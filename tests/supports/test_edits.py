import pytest

from sic.errors import SicError
from sic.supports import Case, Edit, find_support, replaced

CASES = [Case(0, "a.png"), Case(0, "b.png", True), Case(2, "a.png")]


def test_an_edit_says_what_it_lacks() -> None:
    for wrong, words in (
        ({"action": "shuffle"}, "no edit 'shuffle'; there are drop, add, replace, pin, unpin, reselect"),
        ({"action": "drop"}, "To drop, say which support"),
        ({"action": "replace", "support": 1}, "To replace, say which image"),
        ({"action": "reselect"}, "To reselect, say which class"),
        ({"action": "reselect", "label": "x", "number": 0}, "at least one support, not 0"),
    ):
        with pytest.raises(SicError, match=words):
            Edit(**wrong)  # type: ignore[arg-type]


def test_supports_by_number_or_by_image() -> None:
    assert [find_support(CASES, which) for which in (2, "2", "b.png")] == [2, 2, 1]
    with pytest.raises(SicError, match="0 or 2"):
        find_support(CASES, "a.png")
    for which in (3, "3", -1):
        with pytest.raises(SicError, match="numbered 0 to 2"):
            find_support(CASES, which)


def test_a_class_is_exchanged_in_its_place() -> None:
    assert replaced(CASES, 0, [Case(0, "c.png")]) == [Case(0, "c.png"), Case(2, "a.png")]
    assert replaced(CASES, 1, [Case(1, "c.png")]) == [*CASES[:2], Case(1, "c.png"), CASES[2]]
