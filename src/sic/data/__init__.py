"""Datasets of labelled images in many layouts, and the preprocessing of images."""

from sic.data.dataset import Box, ImageData, Sample, Skipped, Task, UnusableData
from sic.data.images import Preprocessing, UnreadableImage, read_image, to_tensor
from sic.data.layouts import open

__all__ = [
    "Box",
    "ImageData",
    "Preprocessing",
    "Sample",
    "Skipped",
    "Task",
    "UnreadableImage",
    "UnusableData",
    "open",
    "read_image",
    "to_tensor",
]
