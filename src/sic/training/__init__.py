"""The fit."""

from sic.training.fit import fit, recorded_settings
from sic.training.history import Reporter, Silent
from sic.training.ranks import Machines
from sic.training.settings import Settings, choose

__all__ = ["Machines", "Reporter", "Settings", "Silent", "choose", "fit", "recorded_settings"]
