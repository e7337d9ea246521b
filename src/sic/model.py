"""The model as users hold it: `sic.load`, then `predict` and `explain`."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sic import directory
from sic.backbones.distilled import is_distilled
from sic.data.dataset import Progress, Sample
from sic.data.images import UnreadableImage, read_image, to_tensor
from sic.data.loading import readable_batches
from sic.directory import Config
from sic.distilled_model import load_distilled
from sic.errors import SicError
from sic.explain import (
    Explanation,
    Overview,
    ProjectionMethod,
    as_rows,
    explain_answers,
    in_chunks,
    make_overview,
    own_contributions,
)
from sic.latents import Latents
from sic.methods import SIC, Answered, Classifier, Contributions
from sic.predictions import Answers, Predictions
from sic.supports import Support, support_names

ImageInput = str | Path | Image.Image | Tensor


@dataclass(frozen=True)
class Evidence:
    """The part of a class's logit that comes from one support (NW-Head: of its probability)."""

    support: int
    """The index of the support in `Model.supports`."""
    name: str
    """Its name for people: class and number, such as "Beagle #2"."""
    label: str
    """The class of the support."""
    source: str
    """The id of its training image in the dataset."""
    value: float
    """For SIC the similarity divided by T; with the bias, the values of a class's supports add up to its logit."""


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    labels: list[str]
    """The classes found; in single-label data exactly one, the best."""
    probabilities: dict[str, float]
    """One per class; sigmoids, which need not add up to 1, unless the model was trained with --loss ce."""
    evidence: list[Evidence]
    """All supports, the most similar first; empty where the method has none."""
    similar_case: bool
    """False where every class stays below 0.5: the image is not similar to any support."""


KEPT = 256 << 20
"""Bytes of support contributions that a model keeps in memory."""


def _title(image: ImageInput) -> str:
    return Path(image).name if isinstance(image, str | Path) else "Why this answer"


class Model:
    """A trained classifier with its classes and its supports.

    `sic.load` and `sic.fit` return one. An image is a file name, a Pillow image, or a float tensor 3×H×W (RGB in
    [0, 1]) of the model's input size.
    """

    def __init__(
        self, classifier: Classifier, config: Config, supports: list[Support], folder: Path | None = None
    ) -> None:
        """Combine the parts of a model; use `sic.load` to read one.

        Args:
            classifier: The network, in evaluation mode.
            config: Its classes, task, preprocessing and metrics.
            supports: Its supports, in the order of the classifier.
            folder: The directory that the model was read from.
        """
        self.classifier, self.config, self.supports, self.folder = classifier, config, supports, folder
        self._own: OrderedDict[int, Contributions] = OrderedDict()

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return self.config.classes

    @property
    def sic(self) -> SIC:
        """The classifier of a SIC model. Raises `SicError` for models of other methods."""
        if not isinstance(self.classifier, SIC):
            raise SicError(f"This is for SIC models; this model was trained with --method {self.config.method}.")
        return self.classifier

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return next((value.device for value in self.classifier.state_dict().values()), torch.device("cpu"))

    def tensor(self, image: ImageInput) -> Tensor:
        """Prepare an image as the model's input.

        Args:
            image: A file, a Pillow image, or a float tensor 3×H×W (RGB in [0, 1]), which is only moved to the device.

        Returns:
            A tensor 3×S×S, RGB in [0, 1], on the model's device.

        Raises:
            SicError: The image cannot be read, or the tensor has another shape or type.
        """
        if isinstance(image, Tensor):
            if image.dim() != 3 or len(image) != 3 or not image.is_floating_point():
                raise SicError(f"A tensor must be 3×H×W, RGB in [0, 1], not {image.dtype} of {tuple(image.shape)}.")
            return image.to(next(self.classifier.parameters()))
        if not isinstance(image, str | Path | Image.Image):
            raise SicError(
                f"Give a file, a Pillow image or a tensor, not {type(image).__name__} (predict_many takes lists)."
            )
        if not isinstance(image, Image.Image):
            try:
                image = read_image(Path(image))
            except UnreadableImage as error:
                raise SicError(f"{image} cannot be used: {error}.") from None
        view = to_tensor(self.config.preprocessing(image.convert("RGB")))
        return view.to(next(self.classifier.parameters()))

    def predict(self, image: ImageInput) -> Prediction:
        """Classify one image.

        Args:
            image: A file, a Pillow image, or a tensor (see `tensor`).

        Returns:
            The classes found, all probabilities, and the evidence of every support.
        """
        return self.predict_many([image])[0]

    @torch.no_grad()
    def predict_many(self, images: Sequence[ImageInput]) -> list[Prediction]:
        """Classify several images in one forward pass.

        Args:
            images: Files, Pillow images, or tensors of one size.

        Returns:
            One prediction per image, in the same order.
        """
        logits, evidence = self.classifier.answer(torch.stack([self.tensor(i) for i in images]))
        answers, names = self.answers(logits), support_names(self.supports, self.classes)
        return [self._prediction(answers, row, values, names) for row, values in enumerate(evidence)]

    def answers(self, logits: Tensor) -> Answers:
        """Apply the answer rule to logits.

        Args:
            logits: N×C, of this model.

        Returns:
            Labels, probabilities, nearest class and "similar case" flag of each row.
        """
        return Answers(logits, self.config.task, self.classifier.loss)

    def _prediction(self, answers: Answers, row: int, evidence: Tensor, names: Sequence[str]) -> Prediction:
        ranked = evidence.argsort(descending=True).tolist()
        values = evidence.tolist()
        return Prediction(
            [self.classes[label] for label in answers.labels[row]],
            dict(zip(self.classes, answers.probabilities[row].tolist(), strict=True)),
            [
                Evidence(i, names[i], self.classes[self.supports[i].label], self.supports[i].source, values[i])
                for i in ranked
            ],
            bool(answers.similar_case[row]),
        )

    def explain(
        self,
        image: ImageInput,
        classes: Sequence[str] | None = None,
        truth: str | None = None,
        most: int | None = None,
        matches: bool = False,
    ) -> Explanation:
        """Explain one image, in one forward pass.

        Args:
            image: A file, a Pillow image, or the model's view of one.
            classes: The classes to explain; by default those of the answer, or the nearest one if it has none.
            truth: The true class, to be shown.
            most: How many classes of the answer to explain, the most probable first; by default all of them.
            matches: Also split the evidence of every case into regions that match (SIC only).

        Returns:
            Contribution maps and evidence of each class explained; `save` draws them.
        """
        answered = self.classifier.answered(self.tensor(image)[None])
        targets = self._targets(answered, self._wanted(classes))
        if most is not None and not classes:
            probable = self.answers(answered.logits).probabilities[0].tolist()
            targets = [sorted(targets[0], key=lambda label: -probable[label])[:most]]
        found = self._explanations(answered, targets, evidence_maps=True, matches=matches)[0]
        return replace(found, title=_title(image), truth=truth)

    def explain_many(
        self, images: Iterable[ImageInput], classes: Sequence[str] | None = None, matches: bool = False
    ) -> Iterator[Explanation]:
        """Explain any number of images in batches that fit into memory.

        Args:
            images: Files, Pillow images or tensors; they are read as needed.
            classes: The classes to explain; by default those of each answer.
            matches: As in `explain`.

        Yields:
            One explanation per image, in order, as from `explain` but without the maps of single supports.
        """
        wanted, titles = self._wanted(classes), deque[str]()

        def views() -> Iterator[Tensor]:
            for image in images:
                titles.append(_title(image))
                yield self.tensor(image)

        maps = self.sic.support_vectors.shape[1] if matches else len(wanted or [0])
        for batch in in_chunks(self.classifier, views(), maps):
            answered = self.classifier.answered(batch)
            for each in self._explanations(answered, self._targets(answered, wanted), matches=matches):
                yield replace(each, title=titles.popleft())

    def contributions(
        self, images: Iterable[ImageInput], classes: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], Contributions]]:
        """Contributions of the pixels of many images, without dynamic weights and supports.

        Takes one forward pass and at most K backward passes per batch.

        Args:
            images: Files, Pillow images or tensors; they are read as needed.
            classes: The classes to explain; by default those of each answer.

        Yields:
            For each image the K class names, and contributions with maps K×H×W.
        """
        wanted = self._wanted(classes)
        for batch in in_chunks(self.classifier, map(self.tensor, images), len(wanted or [0])):
            answered = self.classifier.answered(batch)
            targets = self._targets(answered, wanted)
            found = answered.explain(as_rows(targets, batch), weights=False)
            for n, labels in enumerate(targets):
                yield [self.classes[label] for label in labels], found.at((n, slice(len(labels))))

    def _wanted(self, classes: Sequence[str] | None) -> list[int] | None:
        for name in classes or []:
            if name not in self.classes:
                raise SicError(f"The model has no class {name!r}; it knows {', '.join(self.classes)}.")
        return [self.classes.index(name) for name in classes] if classes else None

    def _targets(self, answered: Answered, wanted: list[int] | None) -> list[list[int]]:
        """The classes to explain of each image."""
        if wanted is not None:
            return [wanted] * len(answered.images)
        answers = self.answers(answered.logits)
        return [labels or [best] for labels, best in zip(answers.labels, answers.nearest.tolist(), strict=True)]

    def support_contributions(self, indices: Sequence[int]) -> dict[int, Contributions]:
        """Contributions of a support's own pixels to its similarity with itself. Those used last stay in memory.

        Args:
            indices: Places in `supports`.

        Returns:
            Contributions by index; supports whose images were not kept are missing.
        """
        missing = [index for index in indices if index not in self._own]
        self._own |= own_contributions(self.sic, self.supports, missing)
        found = {index: self._own[index] for index in indices if index in self._own}
        for index in found:
            self._own.move_to_end(index)
        each = 24 * self.config.preprocessing.size**2  # six channels of weights, 4 bytes each
        while len(self._own) > KEPT // each:
            self._own.popitem(last=False)
        return found

    def _explanations(
        self, answered: Answered, targets: list[list[int]], evidence_maps: bool = False, matches: bool = False
    ) -> list[Explanation]:
        """Of the classes `targets` of each image."""
        own: dict[int, Contributions] = {}
        if isinstance(self.classifier, SIC):
            shown = {label for labels in targets for label in labels}
            own = self.support_contributions([i for i, support in enumerate(self.supports) if support.label in shown])
        explained = explain_answers(
            self.classifier,
            self.supports,
            self.classes,
            answered,
            targets,
            own,
            evidence_maps=evidence_maps,
            matches=matches,
        )
        result = []
        answers = self.answers(answered.logits)
        for row, (view, parts) in enumerate(zip(answered.images, explained, strict=True)):
            result.append(
                Explanation(
                    view,
                    "",
                    self.classifier.bias,
                    bool(answers.similar_case[row]),
                    parts,
                    [self.classes[label] for label in answers.labels[row]],
                    self.classes[answers.nearest[row]],
                    dict(zip(self.classes, answers.probabilities[row].tolist(), strict=True)),
                    None,
                    self.config.method,
                )
            )
        return result

    @cached_property
    def latents(self) -> Latents:
        """Latents of the images that the model was trained and tested on, kept in its directory."""
        return Latents(self.sic.encoder, self.config.preprocessing, self.folder)

    def embed(self, samples: Sequence[Sample], *, own: bool = False, progress: Progress | None = None) -> Latents:
        """Compute the latents `f⁺` of image files.

        Args:
            samples: The images; their labels do not matter.
            own: Whether they belong to the data that the model was trained on. Then latents that are known are not
                computed again, and new ones are kept in the model directory.
            progress: Told how many images are embedded.

        Returns:
            The latents by image, with the reasons why files could not be read.
        """
        latents = self.latents if own else Latents(self.sic.encoder, self.config.preprocessing)
        latents.embed(samples, progress)
        return latents

    def predictions(
        self,
        samples: Sequence[Sample],
        *,
        name: str = "images",
        caution: str | None = None,
        own: bool = False,
        progress: Progress | None = None,
    ) -> Predictions:
        """Classify labelled images.

        Args:
            samples: The images with their labels.
            name: What to call these images in reports.
            caution: A sentence about them that reports must show.
            own: As in `embed`.
            progress: As in `embed`.

        Returns:
            Predictions for the files that can be read; `unreadable` has the reasons for the others.
        """
        if isinstance(self.classifier, SIC):
            latents = self.embed(samples, own=own, progress=progress)
            known = [sample for sample in samples if sample.id in latents]
            found = self.predictions_of(known, latents.of([sample.id for sample in known]))
            reasons = latents.unreadable
        else:
            found, reasons = self._predictions_of_files(samples, progress)
        unreadable = {sample.id: reasons[sample.id] for sample in samples if sample.id in reasons}
        return replace(found, name=name, caution=caution, unreadable=unreadable)

    @torch.no_grad()
    def _predictions_of_files(
        self, samples: Sequence[Sample], progress: Progress | None
    ) -> tuple[Predictions, dict[str, str]]:
        """Of the files that can be read, and why the others cannot."""
        logits, known, unreadable = [torch.zeros(0, len(self.classes))], [], {}
        done = 0
        for images, reasons in readable_batches(
            [sample.path for sample in samples], self.config.preprocessing, self.device
        ):
            for sample, reason in zip(samples[done : done + len(reasons)], reasons, strict=True):
                if reason is None:
                    known.append(sample)
                else:
                    unreadable[sample.id] = reason
            if len(images):
                logits.append(self.classifier(images).cpu())
            done += len(reasons)
            if progress is not None:
                progress(done, len(samples))
        nothing = torch.zeros(len(known), 0)
        found = Predictions(
            torch.cat(logits),
            self.config.task,
            self.classifier.loss,
            classes=self.classes,
            samples=known,
            evidence=nothing,
            owners=nothing.new_zeros(0, dtype=torch.long),
        )
        return found, unreadable

    @torch.no_grad()
    def predictions_of(self, samples: Sequence[Sample], latents: Tensor) -> Predictions:
        """Classify labelled images whose latents are known.

        Args:
            samples: N images with their labels.
            latents: Their latents, N×d.

        Returns:
            Their predictions.
        """
        evidence = self.sic.evidence(latents.to(self.device))
        return Predictions(
            self.sic.logits(evidence).cpu(),
            self.config.task,
            self.classifier.loss,
            classes=self.classes,
            samples=samples,
            evidence=evidence.cpu(),
            owners=self.sic.support_classes.cpu(),
            latents=latents.cpu(),
        )

    def overview(
        self,
        images: Sequence[Sample] | Predictions | None = None,
        *,
        method: ProjectionMethod = "tsne",
        seed: int = 0,
    ) -> Overview:
        """Describe the whole model (SIC only).

        Args:
            images: Labelled images, or the predictions for them, to show beside the supports.
            method: How to project the latents to a plane: "tsne" or "pca".
            seed: Of the projection.

        Returns:
            The supports with their own contributions, class similarities, silhouettes, and the projection.
        """
        found = images if images is None or isinstance(images, Predictions) else self.predictions(images)
        own = self.support_contributions
        return make_overview(self.sic, self.supports, self.classes, found, own, method=method, seed=seed)

    def to(self, device: str | torch.device) -> "Model":
        """Move the model to a device, such as "cuda".

        Args:
            device: Where to compute.

        Returns:
            The model itself.
        """
        self.classifier.to(device)
        self._own.clear()
        return self

    def save(self, folder: str | Path, *, replacing: str | None = None) -> str:
        """Write the model directory.

        Args:
            folder: Where to; an existing model there is replaced in one step.
            replacing: The version that may be replaced; if another one is there, nothing is written.

        Returns:
            The version of the saved model.
        """
        return directory.save(self.classifier, self.config, self.supports, Path(folder), replacing=replacing)


def load(folder: str | Path, device: str | torch.device = "cpu") -> Model:
    """Read a model directory, or a file of `sic distill` that has a classifier.

    Args:
        folder: The directory that `sic train` or `Model.save` wrote, or the file. Nothing else is needed.
        device: Where to compute.

    Returns:
        The model.

    Raises:
        SicError: The directory is missing or damaged, or this version cannot read it.
    """
    path = Path(folder)
    if path.is_file() and is_distilled(path):
        return Model(*load_distilled(path, device), path)
    return Model(*directory.load(path, device), path)
