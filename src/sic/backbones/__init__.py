"""Named feature extractors."""

from sic.backbones import resnet, vit  # noqa: F401  (their builders register themselves)
from sic.backbones.registry import Backbone, create, names, register, require

__all__ = ["Backbone", "create", "names", "register", "require"]
