"""Classifiers behind one contract."""

from sic.errors import SicError
from sic.methods.bagnet import BagNet
from sic.methods.bcos import Bcos
from sic.methods.blackbox import BlackBox
from sic.methods.contract import LOSSES, Answered, Classifier, Comparing, Contributions, device_of, opacity
from sic.methods.nwhead import NWHead
from sic.methods.protopnet import ProtoPNet
from sic.methods.sic import SIC

METHODS: dict[str, type[Classifier]] = {kind.name: kind for kind in (SIC, BlackBox, Bcos, BagNet, NWHead, ProtoPNet)}


def method(name: str) -> type[Classifier]:
    if name not in METHODS:
        raise SicError(f"There is no method called {name!r}; choose one of {', '.join(METHODS)}.")
    return METHODS[name]


__all__ = [
    "LOSSES",
    "METHODS",
    "SIC",
    "Answered",
    "BagNet",
    "Bcos",
    "BlackBox",
    "Classifier",
    "Comparing",
    "Contributions",
    "NWHead",
    "ProtoPNet",
    "device_of",
    "method",
    "opacity",
]
