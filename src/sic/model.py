"""The model as users hold it: `sic.load`, then `predict` and `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sic import directory
from sic.data.images import UnreadableImage, read_image, to_tensor
from sic.directory import Config, SavedModel
from sic.errors import SicError
from sic.explain import Explanation, explain_classes
from sic.methods import SIC
from sic.supports import Support

ImageInput = str | Path | Image.Image | Tensor


@dataclass(frozen=True)
class Evidence:
    """What one support adds to its class's logit."""

    label: str
    source: str
    value: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    labels: list[str]
    """The classes found; in single-label data exactly one, the best."""
    probabilities: dict[str, float]
    """Sigmoids, one per class; they need not add up to 1."""
    evidence: list[Evidence]
    """All supports, the most similar first."""
    similar_case: bool
    """False where every class stays below 0.5: the image looks like none of the cases."""


class Model:
    """A loaded classifier with its classes and its cases."""

    def __init__(self, saved: SavedModel) -> None:
        self.classifier: SIC = saved.classifier
        self.config: Config = saved.config
        self.supports: list[Support] = saved.supports

    @property
    def classes(self) -> list[str]:
        return self.config.classes

    @property
    def device(self) -> torch.device:
        return self.classifier.support_vectors.device

    def tensor(self, image: ImageInput) -> Tensor:
        """The model's view of an image: 3×S×S. A tensor must be that already (3×H×W, RGB in [0, 1])."""
        if isinstance(image, Tensor):
            return image.to(self.device, self.classifier.support_vectors.dtype)
        if not isinstance(image, Image.Image):
            try:
                image = read_image(Path(image))
            except UnreadableImage as error:
                raise SicError(f"{image} cannot be used: {error}.") from None
        view = to_tensor(self.config.preprocessing(image.convert("RGB")))
        return view.to(self.device, self.classifier.support_vectors.dtype)

    def predict(self, image: ImageInput) -> Prediction:
        """Classify one image."""
        return self.predict_many([image])[0]

    @torch.no_grad()
    def predict_many(self, images: Sequence[ImageInput]) -> list[Prediction]:
        """Classify several images in one pass."""
        evidence = self.classifier.evidence(self.classifier.encoder(torch.stack([self.tensor(i) for i in images])))
        logits = self.classifier.logits(evidence)
        return [self._prediction(e, p) for e, p in zip(evidence, logits.sigmoid(), strict=True)]

    def _prediction(self, evidence: Tensor, probabilities: Tensor) -> Prediction:
        found = (probabilities >= 0.5).nonzero()[:, 0].tolist()
        labels = found if self.config.task == "multi" else [int(probabilities.argmax())]
        ranked = evidence.argsort(descending=True).tolist()
        return Prediction(
            [self.classes[label] for label in labels],
            dict(zip(self.classes, probabilities.tolist(), strict=True)),
            [
                Evidence(self.classes[self.supports[i].label], self.supports[i].source, evidence[i].item())
                for i in ranked
            ],
            bool(found),
        )

    def explain(self, image: ImageInput, classes: Sequence[str] | None = None, truth: str | None = None) -> Explanation:
        """Explain one image: the predicted classes (the nearest one where nothing is similar), or those named."""
        view = self.tensor(image)
        prediction = self.predict(view)
        wanted = list(classes or prediction.labels)
        nearest = max(prediction.probabilities, key=lambda name: prediction.probabilities[name])
        wanted = wanted or [nearest]
        for name in wanted:
            if name not in self.classes:
                raise SicError(f"The model has no class {name!r}; it knows {', '.join(self.classes)}.")
        explained = explain_classes(
            self.classifier, self.supports, self.classes, view, [self.classes.index(name) for name in wanted]
        )
        title = Path(image).name if isinstance(image, str | Path) else "Why this answer"
        return Explanation(
            view,
            title,
            self.classifier.bias,
            prediction.similar_case,
            explained,
            prediction.labels,
            nearest,
            prediction.probabilities,
            truth,
        )

    def to(self, device: str | torch.device) -> "Model":
        self.classifier.to(device)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the model directory."""
        directory.save(SavedModel(self.classifier, self.config, self.supports), Path(folder))


def load(folder: str | Path, device: str | torch.device = "cpu") -> Model:
    """Read a model directory; nothing else is needed."""
    return Model(directory.load(Path(folder), device))


def fit(data: str | Path, out: str | Path = "runs/model", **said: Any) -> Model:
    """Train on a folder of images and load the result; `said`: settings as in `sic train` (epochs, backbone, …)."""
    from sic import training  # brings in Lightning, which predicting does not need
    from sic.data import open as open_data

    opened = open_data(data)
    settings, _ = training.choose(opened, said)
    training.fit(opened, settings, Path(out))
    return load(out)
