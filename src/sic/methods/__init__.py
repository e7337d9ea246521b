"""Classifiers behind one contract."""

from sic.errors import SicError
from sic.methods.bcos import Bcos
from sic.methods.blackbox import BlackBox
from sic.methods.comparing import Comparing
from sic.methods.contract import LOSSES, Classifier, Contributions, Loss, odds
from sic.methods.sic import SIC

METHODS: dict[str, type[Classifier]] = {"sic": SIC, "blackbox": BlackBox, "bcos": Bcos}


def method(name: str) -> type[Classifier]:
    if name not in METHODS:
        raise SicError(f"There is no method called {name!r}; --method knows {', '.join(METHODS)}.")
    return METHODS[name]


__all__ = [
    "LOSSES",
    "METHODS",
    "SIC",
    "Bcos",
    "BlackBox",
    "Classifier",
    "Comparing",
    "Contributions",
    "Loss",
    "method",
    "odds",
]
