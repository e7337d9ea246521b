"""The fit."""

from sic.settings import Settings
from sic.training.choose import choose, rival
from sic.training.fit import Fitted, fit, recorded_settings, require_new
from sic.training.history import Reporter, Silent

__all__ = ["Fitted", "Reporter", "Settings", "Silent", "choose", "fit", "recorded_settings", "require_new", "rival"]
