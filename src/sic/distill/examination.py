"""How well student and teacher answer labelled images that nobody was trained on, and find them in grids."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import Progress, Watch
from sic.data.images import Preprocessing
from sic.distill.images import decode, image_files
from sic.errors import SicError
from sic.evaluate.localisation import GRIDS, draw_grids, one_size_only, point_in_grids
from sic.methods import Classifier, device_of

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
    def answers(self, classifier: Classifier) -> Tensor:
        """The probabilities of all classes, N×C."""
        logits = (classifier(_views(batch, classifier)) for batch in self.pixels.split(AT_ONCE))
        return torch.cat([classifier.probabilities(each).cpu() for each in logits])

    def top(self, answers: Tensor, number: int = 1) -> float:
        """Share of images whose class is among the `number` most probable ones."""
        found = answers.topk(number).indices == self.labels[:, None]
        return int(found.sum()) / len(self.labels)

    def point(
        self,
        classifiers: Mapping[str, Classifier],
        usable: Tensor,
        *,
        side: int = 2,
        grids: int = GRIDS,
        progress: Progress | None = None,
    ) -> dict[str, Any] | None:
        """Show the same grids of images to all classifiers: which share of a class's contributions lies on its image?

        Args:
            classifiers: Those that explain, by name.
            usable: N, whether an image may be in a grid; usually those that all networks answer with confidence.
            side: Images along a side of a grid.
            grids: The most grids to draw.
            progress: Called with the number of finished grids, of all classifiers together.

        Returns:
            The number of `grids`, the share that is `chance`, the side of a grid in `pixels`, and what
            `point_in_grids` found for each classifier by its name. None if too few classes have a usable image.
        """
        rows = draw_grids(self.labels, usable, side, grids)
        if not rows:
            return None
        one_size = any(one_size_only(each, _views(self.pixels[:1], each), side) for each in classifiers.values())
        size = self.pixels.shape[-1] * (1 if one_size else side)
        finished = itertools.count(1)

        def watch(*_: object) -> None:
            if progress is not None:
                progress(next(finished), len(rows) * len(classifiers))

        shares = {name: self._shares(classifier, rows, size, watch) for name, classifier in classifiers.items()}
        return {"grids": len(rows), "chance": 1 / side**2, "pixels": size, **shares}

    def _shares(
        self, classifier: Classifier, rows: Sequence[list[int]], size: int, watch: Watch
    ) -> dict[str, dict[str, float | None]]:
        """`point_in_grids` of one classifier; `rows`: the positions of the images of each grid."""
        return point_in_grids(
            lambda images, targets: classifier.explain(images, targets).maps,
            (_views(self.pixels[row], classifier) for row in rows),
            [self.labels[row].tolist() for row in rows],
            size,
            watch,
        )


def _views(pixels: Tensor, classifier: Classifier) -> Tensor:
    """Bytes as RGB in [0, 1], where the classifier is."""
    return pixels.to(device_of(classifier)).float() / 255
