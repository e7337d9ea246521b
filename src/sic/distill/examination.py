"""How well student and teacher answer labelled images that nobody was trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.data.images import Preprocessing
from sic.distill.images import decode, image_files
from sic.distill.teacher import Lesson
from sic.errors import SicError

PREPROCESSING = Preprocessing(224, 256, "crop")
AT_ONCE = 100


@dataclass
class Examination:
    """Images, bytes N×3×224×224, and the class of each."""

    pixels: Tensor
    labels: Tensor

    @classmethod
    def read(cls, folder: Path, classes: int, workers: int, progress: Progress | None = None) -> "Examination":
        """A folder for each of the teacher's classes, in their order."""
        folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        if len(folders) != classes:
            raise SicError(f"--test {folder} must hold a folder for each of the teacher's {classes} classes.")
        files = [(file, label) for label, each in enumerate(folders) for file in image_files(each)]
        pixels, places = decode([file for file, _ in files], PREPROCESSING, workers, progress)
        return cls(pixels, torch.tensor([files[place][1] for place in places]))

    @torch.inference_mode()
    def top1(self, network: Callable[[Tensor], Lesson], device: torch.device) -> float:
        """Share of right answers."""
        right = 0
        for pixels, labels in zip(self.pixels.split(AT_ONCE), self.labels.split(AT_ONCE), strict=True):
            logits = network(pixels.to(device).float() / 255).logits
            assert logits is not None
            right += int((logits.argmax(1).cpu() == labels).sum())
        return right / len(self.labels)
