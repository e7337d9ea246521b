"""Models for other programs: ONNX and torch.export files that need no `sic` to answer, or to say why."""

from sic.export.files import Exported, export

__all__ = ["Exported", "export"]
