"""The fit."""

from sic.settings import Settings
from sic.training.choose import choose
from sic.training.fit import Fitted, fit, recorded_settings
from sic.training.history import Reporter, Silent

__all__ = ["Fitted", "Reporter", "Settings", "Silent", "choose", "fit", "recorded_settings"]
