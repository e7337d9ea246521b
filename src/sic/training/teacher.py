"""A trained model of the same classes that a fit imitates, beside the labels: its answers, and its features where both
networks have as many."""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic import directory
from sic.data.dataset import ImageData
from sic.directory import RUN, read_config, read_run
from sic.errors import SicError
from sic.methods import Classifier

IMITATED = 0.5
"""Share of the teacher's answers in what the fit is asked for; the rest are the labels."""


class Lesson(NamedTuple):
    """What a teacher computes from N images."""

    probabilities: Tensor
    """N×C."""
    maps: Tensor | None
    """The last feature maps, N×F×h×w; None: its network has none."""

    def targets(self, labels: Tensor) -> Tensor:
        """Targets N×C between labels N×C and the teacher's answers; those that do not count stay NaN."""
        return labels + IMITATED * (self.probabilities.to(labels) - labels)

    def unlikeness(self, features: Tensor) -> Tensor:
        """How far features are from the teacher's, the mean over images.

        Args:
            features: Pooled features N×F, or those of P places, N×P×F.

        Returns:
            1 - cosine of the pooled features, plus that of the features of all places where there are as many; 0 for
            networks of another width.
        """
        if self.maps is None or self.maps.shape[1] != features.shape[-1]:
            return features.new_zeros(())
        wanted = self.maps.flatten(2).transpose(1, 2).to(features)
        pooled = features if features.dim() == 2 else features.mean(dim=1)
        result = 1 - F.cosine_similarity(pooled, wanted.mean(dim=1)).mean()
        if features.shape == wanted.shape:
            result = result + 1 - F.cosine_similarity(features.flatten(1), wanted.flatten(1)).mean()
        return result


class Teacher:
    """A trained classifier. It is no module: it is neither trained nor saved with the one that it teaches."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier.requires_grad_(False).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._maps: Tensor | None = None
        classifier.backbone.network.register_forward_hook(self._keep)

    def _keep(self, network: nn.Module, inputs: object, output: Tensor) -> None:
        self._maps = output if output.dim() == 4 else None

    def to(self, device: torch.device) -> None:
        self.classifier.to(device)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Lesson:
        """Its lesson on RGB images N×3×S×S."""
        logits = self.classifier(images)
        return Lesson(self.classifier.probabilities(logits.float()), self._maps)


def check_teacher(folder: Path, data: ImageData, size: int) -> None:
    """Refuse a teacher of other classes than those of `data`, or of images that are not `size` px wide."""
    config, _ = read_config(folder)
    if config.classes != list(data.classes) or config.task != data.task:
        raise SicError(
            f"--teacher {folder} was trained on other classes than those of {data.root}; train it on the same data."
        )
    if config.preprocessing.size != size:
        raise SicError(
            f"--teacher {folder} sees {config.preprocessing.size} px, not {size}; give both the same --size."
        )


def load_teacher(folder: Path) -> Teacher:
    """The model in `folder` as a teacher."""
    return Teacher(directory.load(folder)[0])


def seen_by(folder: Path, held_out: set[str]) -> int:
    """How many of the held-out images, by their ids, the teacher in `folder` was trained on, as far as is known."""
    return len(held_out & set(read_run(folder)["train"])) if (folder / RUN).is_file() else 0
