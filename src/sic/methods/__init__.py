"""Classifiers behind one contract."""

from sic.methods.contract import Classifier, Contributions
from sic.methods.sic import SIC

__all__ = ["SIC", "Classifier", "Contributions"]
