import pytest

from sic.errors import SicError
from sic.supports import Edit, Support, by_position, find_support, replaced, support_key, support_names

SUPPORTS = [Support(0, "a.png"), Support(0, "b.png", pinned=True), Support(2, "a.png")]
CLASSES = ["owl", "wren", "heron"]


def test_an_edit_says_what_it_lacks() -> None:
    for wrong, words in (
        ({"action": "shuffle"}, "no edit 'shuffle'; choose one of drop, add, replace, pin, unpin, reselect"),
        ({"action": "drop"}, "To drop, say which support"),
        ({"action": "replace", "support": 1}, "To replace, say which image"),
        ({"action": "reselect"}, "To reselect, say which class"),
        ({"action": "reselect", "label": "x", "number": 0}, "at least one support, not 0"),
    ):
        with pytest.raises(SicError, match=words):
            Edit(**wrong)  # type: ignore[arg-type]


def test_supports_by_number_name_or_image() -> None:
    found = [find_support(SUPPORTS, which, CLASSES) for which in (2, "2", "b.png", "owl #2", "heron #1")]
    assert found == [2, 2, 1, 1, 2]
    with pytest.raises(SicError, match="0 or 2"):
        find_support(SUPPORTS, "a.png", CLASSES)
    for which in (3, "3", -1):
        with pytest.raises(SicError, match="numbered 0 to 2"):
            find_support(SUPPORTS, which, CLASSES)


def test_a_support_is_called_by_its_image_where_that_is_enough() -> None:
    assert [support_key(SUPPORTS, index) for index in range(3)] == ["0", "b.png", "2"]
    assert support_key([Support(0, "17"), Support(0, "b.png")], 0) == "0"
    assert [by_position(which) for which in (3, "3", "owl #2", "a.png", None)] == [True, True, True, False, False]


def test_a_class_is_exchanged_in_its_place() -> None:
    assert replaced(SUPPORTS, 0, [Support(0, "c.png")]) == [Support(0, "c.png"), Support(2, "a.png")]
    assert replaced(SUPPORTS, 1, [Support(1, "c.png")]) == [*SUPPORTS[:2], Support(1, "c.png"), SUPPORTS[2]]


def test_supports_are_named_by_class_and_number() -> None:
    assert support_names(SUPPORTS, CLASSES) == ["owl #1", "owl #2", "heron #1"]
