"""The fit."""

from sic.training.fit import fit, recorded_settings
from sic.training.history import Reporter, Silent
from sic.training.settings import Settings, choose

__all__ = ["Reporter", "Settings", "Silent", "choose", "fit", "recorded_settings"]
