import pytest

from sic.errors import SicError
from sic.supports import Edit, Support, find_support, is_number, replaced, support_name

SUPPORTS = [Support(0, "a.png"), Support(0, "b.png", pinned=True), Support(2, "a.png")]


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
    assert [find_support(SUPPORTS, which) for which in (2, "2", "b.png")] == [2, 2, 1]
    with pytest.raises(SicError, match="0 or 2"):
        find_support(SUPPORTS, "a.png")
    for which in (3, "3", -1):
        with pytest.raises(SicError, match="numbered 0 to 2"):
            find_support(SUPPORTS, which)


def test_a_support_is_called_by_its_image_where_that_is_enough() -> None:
    assert [support_name(SUPPORTS, index) for index in range(3)] == ["0", "b.png", "2"]
    assert support_name([Support(0, "17"), Support(0, "b.png")], 0) == "0"
    assert [is_number(which) for which in (3, "3", "a.png", None)] == [True, True, False, False]


def test_a_class_is_exchanged_in_its_place() -> None:
    assert replaced(SUPPORTS, 0, [Support(0, "c.png")]) == [Support(0, "c.png"), Support(2, "a.png")]
    assert replaced(SUPPORTS, 1, [Support(1, "c.png")]) == [*SUPPORTS[:2], Support(1, "c.png"), SUPPORTS[2]]
