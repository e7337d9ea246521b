"""Reading image data in the layouts that people have it in."""

from sic.data.dataset import ImageData, Sample, Skipped, Task
from sic.data.images import Preprocessing, UnreadableImage, read_image, to_tensor
from sic.data.source import open

__all__ = [
    "ImageData",
    "Preprocessing",
    "Sample",
    "Skipped",
    "Task",
    "UnreadableImage",
    "open",
    "read_image",
    "to_tensor",
]
