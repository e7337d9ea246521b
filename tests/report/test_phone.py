"""The report on a phone, in a real browser (Chromium)."""

import re
from pathlib import Path
from typing import Any

import pytest

from sic.report import render
from tests.report.conftest import Saved, make_page
from tests.serve.test_browser import browser

__all__ = ["browser"]
pytestmark = pytest.mark.slow
LONG = "american_pit_bull_terrier"
LEGIBLE = 60
"""Pixels: a column of names is not broken letter by letter."""


def test_long_class_names_leave_room_for_each_other(browser: Any, single: Saved, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    html = render(make_page(single.folder, single.data, examples=1))
    file.write_text(re.sub(r"bird \d", LONG, html), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(file.as_uri())
    assert LONG in "".join(page.locator("#quality .rows td").all_inner_texts())  # what another class is taken for
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in page.locator("#quality th[scope=row]").all():
        assert name.bounding_box()["width"] >= LEGIBLE, name.inner_text()
    page.close()
