"""The fit."""

from sic.settings import Settings
from sic.training.choose import choose
from sic.training.fit import fit, recorded_settings
from sic.training.history import Reporter, Silent

__all__ = ["Reporter", "Settings", "Silent", "choose", "fit", "recorded_settings"]
