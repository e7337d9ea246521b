"""Named feature extractors and their weights."""

from sic.backbones import bagnet, from_torchvision, resnet, vit  # noqa: F401  (their builders register themselves)
from sic.backbones.registry import FORMS, Backbone, Load, create, names, register, require

__all__ = ["FORMS", "Backbone", "Load", "create", "names", "register", "require"]
