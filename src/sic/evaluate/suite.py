"""Run all protocols that apply to a dataset on one model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import ImageData, Watch, nobody
from sic.data.layouts.funnybirds import has_interventions
from sic.data.loading import view_batches
from sic.errors import SicError
from sic.evaluate.accuracy import detailed_figures
from sic.evaluate.faithfulness import deletion_insertion, frame, randomisation, stability
from sic.evaluate.funnybirds import funnybirds
from sic.evaluate.localisation import GRIDS, box_pointing_game, grid_pointing_game
from sic.evaluate.matches import matches
from sic.evaluate.unfamiliar import BIRDS, BLURRED, NOISE, blurred_noise, drawn_birds, noise, unfamiliar
from sic.files import plain
from sic.methods import Classifier
from sic.model import Model
from sic.predictions import Predictions
from sic.run import spread

PROTOCOLS = ("accuracy", "funnybirds", "localisation", "faithfulness", "frame", "matches", "unfamiliar")
MOST = {"faithfulness": 32, "frame": 200, "matches": 60, "boxes": 500, "grids": GRIDS, "strangers": 200}
"""The default number of images (or grids of images)."""


@dataclass
class Suite:
    """The protocols, one method each; a method returns its metrics, or the reason why it does not apply."""

    model: Model
    data: ImageData
    predictions: Predictions
    limit: int | None = None
    """The most images in every protocol, spread evenly."""
    strangers: Mapping[str, Iterable[Tensor]] = field(default_factory=dict)
    """Other unfamiliar images: batches by name."""
    seed: int = 0
    watch: Watch = nobody

    def run(self, only: Sequence[str] = PROTOCOLS) -> dict[str, Any]:
        """Metrics by protocol; `left_out` holds the protocols that do not apply, with the reason."""
        result: dict[str, Any] = {
            "data": self.predictions.name,
            "caution": self.predictions.caution,
            "images": len(self.predictions),
            "left_out": {},
        }
        for name in only:
            protocol: Callable[[], dict[str, Any] | str] = getattr(self, name)
            found = protocol()
            if isinstance(found, str):
                result["left_out"][name] = found
            else:
                result[name] = plain(found)
        return result

    def _most(self, what: str) -> int:
        return min(MOST[what], self.limit or MOST[what])

    def accuracy(self) -> dict[str, Any]:
        return detailed_figures(self.predictions)

    def funnybirds(self) -> dict[str, Any] | str:
        if self.data.layout != "FunnyBirds" or not has_interventions(self.data.root, self.predictions.samples):
            return "the dataset has no images with parts removed, as FunnyBirds has"
        if list(self.model.classes) != list(self.data.classes):
            return "the classes of the model differ from those of the dataset"
        return funnybirds(
            self.model.classifier, self.data.root, self.predictions.samples, self.model.config.preprocessing, self.watch
        )

    def localisation(self) -> dict[str, Any] | str:
        classifier, view = self.model.classifier, self.model.config.preprocessing
        samples, probabilities = self.predictions.samples, self.predictions.probabilities
        found: dict[str, Any] = {}
        for side in (2, 3):
            most = self._most("grids")
            for specific in (False, True) if classifier.specific else (False,):
                game = grid_pointing_game(
                    classifier, samples, view, probabilities, side, most, self.seed, self.watch, specific
                )
                if game is not None:
                    found[f"grid_{side}x{side}{'_specific' if specific else ''}"] = game
        boxed = [row for row, sample in enumerate(samples) if sample.boxes]
        chosen = [boxed[number] for number in spread(len(boxed), self._most("boxes"))]
        predicted = self.predictions.found[chosen]
        boxes = box_pointing_game(classifier, [samples[row] for row in chosen], view, predicted, self.watch)
        if boxes is not None:
            found["boxes"] = boxes
        return found or "there are no boxes, and too few classes have an image that is classified with confidence"

    def _images(self, what: str) -> tuple[Classifier, Tensor, Tensor]:
        """The classifier, images for a protocol and their predicted classes."""
        rows = spread(len(self.predictions.samples), self._most(what))
        paths = [self.predictions.samples[row].path for row in rows]
        images = torch.cat(list(view_batches(paths, self.model.config.preprocessing)))
        return self.model.classifier, images, self.predictions.nearest[rows]

    def frame(self) -> dict[str, Any]:
        return frame(*self._images("frame"), watch=self.watch)

    def faithfulness(self) -> dict[str, Any]:
        arguments = self._images("faithfulness")
        return deletion_insertion(*arguments, seed=self.seed, watch=self.watch) | {
            "stability": stability(*arguments, seed=self.seed, watch=self.watch),
            "randomisation": randomisation(*arguments, seed=self.seed, watch=self.watch),
        }

    def matches(self) -> dict[str, Any] | str:
        rows = spread(len(self.predictions.samples), self._most("matches"))
        samples = [self.predictions.samples[row] for row in rows]
        return matches(self.model, self.data, samples, self.seed, self.watch)

    def unfamiliar(self) -> dict[str, Any]:
        count, size = self._most("strangers"), self.model.config.preprocessing.size
        kinds: dict[str, Iterable[Tensor]] = {
            NOISE: noise(count, size, self.seed).split(64),
            BLURRED: blurred_noise(count, size, self.seed).split(64),
        }
        if self.data.layout != "FunnyBirds":
            kinds[BIRDS] = drawn_birds(count, size, self.seed).split(64)
        return unfamiliar(self.model.classifier, self.predictions, kinds | dict(self.strangers))


def chosen(only: str | None) -> list[str]:
    """The protocols in a comma-separated list; all of them for None."""
    names = list(PROTOCOLS) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in PROTOCOLS:
            raise SicError(f"--only {name} is not a protocol; choose from {', '.join(PROTOCOLS)}.")
    return names
