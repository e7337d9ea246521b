"""Distillation: a conventional network teaches a B-cos network with unlabelled images."""

from sic.distill.distill import Outcome, distill
from sic.distill.fit import Plan

__all__ = ["Outcome", "Plan", "distill"]
