"""The fit."""

from sic.training.fit import FitResult, fit, recorded_settings
from sic.training.history import Reporter
from sic.training.settings import Settings, choose

__all__ = ["FitResult", "Reporter", "Settings", "choose", "fit", "recorded_settings"]
