"""Figures and the self-contained HTML report."""

from sic.report.content import Page, gather
from sic.report.page import render

__all__ = ["Page", "gather", "render"]
