"""Image classifiers that people can check: every decision is a sum of similarities to real training images."""

from typing import TYPE_CHECKING, Any

from sic.errors import SicError
from sic.version import __version__

if TYPE_CHECKING:
    from sic.clinic import Clinic
    from sic.fitting import fit
    from sic.model import Model, load

__all__ = ["Clinic", "Model", "SicError", "__version__", "fit", "load"]

_HOMES = {"Clinic": "sic.clinic", "Model": "sic.model", "load": "sic.model", "fit": "sic.fitting"}


def __getattr__(name: str) -> Any:
    """Import torch and Lightning only when they are asked for: `sic --help` must answer at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sic' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
