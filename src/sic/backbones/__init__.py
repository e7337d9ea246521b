"""Named feature extractors and their weights."""

from sic.backbones import libraries, networks  # noqa: F401  (their builders register themselves)
from sic.backbones.registry import FORMS, Backbone, Load, create, names, register, require

__all__ = ["FORMS", "Backbone", "Load", "create", "names", "register", "require"]
