"""Figures and the self-contained HTML report."""

from sic.report.content import Finding, Page, gather
from sic.report.page import render
from sic.report.trial import Trial, attempt

__all__ = ["Finding", "Page", "Trial", "attempt", "gather", "render"]
