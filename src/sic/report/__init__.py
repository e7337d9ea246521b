"""The self-contained HTML report, and its figures as files."""

from sic.report.html import render
from sic.report.page import Page, gather

__all__ = ["Page", "gather", "render"]
