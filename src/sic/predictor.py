"""`Predictor`: a trained model that classifies single images and whole datasets."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sic import directory
from sic.calibration import Promise, calibrated, needed_images, one_of_each, promised
from sic.card import models_compared
from sic.data.dataset import Progress, Sample
from sic.data.images import UnreadableImage, as_rgb, read_image, to_tensor
from sic.data.loading import readable_batches
from sic.directory import Config
from sic.errors import SicError
from sic.latents import Latents
from sic.methods import SIC, Classifier, device_of
from sic.predictions import Answers, Evidence, Prediction, Predictions
from sic.supports import Support, support_names

ImageInput = str | Path | Image.Image | NDArray[Any] | Tensor
"""A file, a Pillow image, an array H×W×3 or H×W (bytes, or numbers in [0, 1]), or the model's input as a tensor."""
ImageInputs = Sequence[ImageInput] | NDArray[Any] | Tensor
"""A sequence of images, an array N×H×W×3, or a tensor N×3×H×W."""


def require_several(images: object) -> None:
    """Refuse an array of one image, whose rows would pass for images."""
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise SicError(f"An array of several images must be N×H×W×3, not {'×'.join(map(str, images.shape))}.")


class Predictor:
    """A trained classifier with its classes and its supports, without explanations; `sic.model.Model` adds those."""

    def __init__(
        self, classifier: Classifier, config: Config, supports: list[Support], folder: Path | None = None
    ) -> None:
        """Combine the parts of a model; use `sic.load` to read one.

        Args:
            classifier: The network, in evaluation mode.
            config: Its classes, task, preprocessing and metrics.
            supports: Its supports, in the classifier's order.
            folder: The directory that the model was read from.
        """
        self.classifier, self.config, self.supports, self.folder = classifier, config, supports, folder

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
    def promise(self) -> Promise:
        """The promise of the model: which share of the answers that it covers may be wrong, and with what confidence.

        Raises:
            SicError: The model makes no promise.
        """
        found = self.classifier.calibration.promise
        if found is None:
            raise SicError(f"This model makes no promise: {self._no_promise}, or do not ask for one (--promise).")
        return found

    @property
    def _no_promise(self) -> str:
        """Why the model makes no promise, and the way out."""
        training, figures = self.config.training, self.config.figures
        held_out = figures.get("validation_without_copies", figures.get("validation", {})).get("images", 0)
        if self.config.task == "multi":
            return "its images have several labels each; train it with one label per image"
        if any(edit.get("promise") for edit in self.config.edits):
            return "its supports were edited, which ended the one that it had; undo the edits"
        if training.get("compared") and held_out >= needed_images():  # which could do for one model
            return (
                f"{models_compared(training)} models were compared on its held-out images, and none was found that "
                "allows for all of them; train it with more images"
            )
        return (
            "when it was trained, there were too few held-out images (without copies of training images), or too many "
            "mistakes among them; train it with more images"
        )

    def calibrate(self, held_out: Predictions, models: int = 1) -> None:
        """Fit the calibration and the promise to images that the model was not trained on.

        Args:
            held_out: Predictions for these images. Copies of training images play no part; where there is nothing else,
                they decide about the probabilities, and there is no promise.
            models: How many models were compared on them to choose this one (see `sic.calibration.promised`).
        """
        lowest, single = self.classifier.bias if self.classifier.by_similarity else None, held_out.task == "single"
        used = held_out.without_copies or held_out
        found = calibrated(used.logits, used.targets, used.loss, single=single, lowest=lowest)
        self.config.calibration = self.classifier.calibration = found
        self.promise_again(held_out, models)

    def promise_again(self, held_out: Predictions, models: int) -> None:
        """Fit the promise alone, with the arguments of `calibrate`: for a model that was compared with more others."""
        fitted, used = self.config.calibration, held_out.without_copies or held_out
        found = None
        if held_out.task == "single" and not used.copies.issuperset(sample.id for sample in used.samples):
            alone = used.subset(one_of_each([sample.group for sample in used.samples]))
            alone = replace(alone, calibration=fitted)
            found = promised(alone.confidence, alone.right, models)
        self.config.calibration = self.classifier.calibration = replace(fitted, promise=found)

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return device_of(self.classifier)

    def tensor(self, image: ImageInput) -> Tensor:
        """Prepare an image as the model's input.

        Args:
            image: A file, a Pillow image, a NumPy array H×W×3 or H×W (bytes, or numbers in [0, 1]), or a float tensor
                3×H×W (RGB in [0, 1]), which is only moved to the device.

        Returns:
            A tensor 3×S×S, RGB in [0, 1], on the model's device.

        Raises:
            SicError: The image cannot be read, or the tensor or array has another shape or type.
        """
        if isinstance(image, Tensor):
            if image.dim() != 3 or len(image) != 3 or not image.is_floating_point():
                raise SicError(f"A tensor must be 3×H×W, RGB in [0, 1], not {image.dtype} of {tuple(image.shape)}.")
            return image.to(next(self.classifier.parameters()))
        if isinstance(image, np.ndarray):
            image = _from_array(image)
        if not isinstance(image, str | Path | Image.Image):
            raise SicError(
                f"Give a file, a Pillow image, an array or a tensor, not {type(image).__name__} (predict_many and "
                "embed take lists)."
            )
        try:
            picture = as_rgb(image) if isinstance(image, Image.Image) else read_image(Path(image))
        except UnreadableImage as error:
            raise SicError(f"{image} cannot be used: {error}.") from None
        view = to_tensor(self.config.preprocessing(picture))
        return view.to(next(self.classifier.parameters()))

    def _tensors(self, images: ImageInputs) -> Tensor:
        """Several images as the model's input, N×3×S×S."""
        require_several(images)
        return torch.stack([self.tensor(image) for image in images])

    def predict(self, image: ImageInput, *, promise: bool = False) -> Prediction:
        """Classify one image.

        Args:
            image: A file, a Pillow image, an array, or a tensor (see `tensor`).
            promise: Refuse to answer where the promise of the model does not cover the answer: it has no labels then.

        Returns:
            The classes found, all probabilities, and the evidence of every support.

        Raises:
            SicError: The image cannot be read; or a promise is asked of a model that makes none.
        """
        return self.predict_many([image], promise=promise)[0]

    @torch.no_grad()
    def predict_many(self, images: ImageInputs, *, promise: bool = False) -> list[Prediction]:
        """Classify several images in one forward pass.

        Args:
            images: Files, Pillow images, arrays, or tensors of one size; or an array N×H×W×3, or a tensor N×3×H×W.
            promise: As in `predict`.

        Returns:
            One prediction per image, in the same order.
        """
        if len(images) == 0:
            return []
        logits, evidence = self.classifier.answer(self._tensors(images))
        answers, names = self.answers(logits), support_names(self.supports, self.classes)
        found = [self._prediction(answers, row, values, names) for row, values in enumerate(evidence)]
        if not promise or not self.promise:
            return found
        return [one if one.promised else replace(one, labels=[]) for one in found]

    def answers(self, logits: Tensor) -> Answers:
        """Apply the answer rule to logits.

        Args:
            logits: N×C, of this model.

        Returns:
            Labels, probabilities, nearest class and "similar case" flag of each row.
        """
        return Answers(logits, self.config.task, self.classifier.loss, self.classifier.calibration)

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
            bool(answers.promised[row]),
        )

    @cached_property
    def latents(self) -> Latents:
        """Latents of the images that the model was trained and tested on, kept in its directory."""
        return Latents(self.sic.encoder, self.config.preprocessing, self.folder)

    @torch.no_grad()
    def embed(self, images: ImageInputs) -> Tensor:
        """Compute the latents `f⁺` of images (SIC only).

        Args:
            images: As in `predict_many`.

        Returns:
            A tensor N×d, one row per image.
        """
        if len(images) == 0:
            return self.sic.support_vectors[:0]
        return self.sic.encoder(self._tensors(images))

    def embed_samples(
        self, samples: Sequence[Sample], *, own: bool = False, progress: Progress | None = None
    ) -> Latents:
        """Compute the latents `f⁺` of the images of a dataset, file by file.

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
            own: As in `embed_samples`.
            progress: As in `embed_samples`.

        Returns:
            Predictions for the files that can be read; `unreadable` has the reasons for the others.
        """
        if isinstance(self.classifier, SIC):
            latents = self.embed_samples(samples, own=own, progress=progress)
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
            self.classifier.calibration,
            classes=self.classes,
            samples=known,
            evidence=nothing,
            owners=nothing.new_zeros(0, dtype=torch.long),
        )
        return found, unreadable

    @torch.no_grad()
    def predictions_of(
        self, samples: Sequence[Sample], latents: Tensor, supports: tuple[Tensor, Tensor] | None = None
    ) -> Predictions:
        """Classify labelled images whose latents are known.

        Args:
            samples: N images with their labels.
            latents: Their latents, N×d.
            supports: Vectors S×d and classes S of other supports than the model's own.

        Returns:
            Their predictions.
        """
        vectors, owners = supports or (self.sic.support_vectors, self.sic.support_classes)
        evidence = self.sic.evidence(latents.to(self.device), vectors.to(self.device))
        return Predictions(
            self.sic.logits(evidence, owners.to(self.device)).cpu(),
            self.config.task,
            self.classifier.loss,
            self.classifier.calibration,
            classes=self.classes,
            samples=samples,
            evidence=evidence.cpu(),
            owners=owners.cpu(),
            latents=latents.cpu(),
        )

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as "cuda".

        Args:
            device: Where to compute.

        Returns:
            The model itself.
        """
        self.classifier.to(device)
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


def _from_array(pixels: NDArray[Any]) -> Image.Image:
    """The image of an array H×W×3 or H×W."""
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or 0 in pixels.shape:
        raise SicError(f"An array must be H×W×3 (RGB) or H×W, not {'×'.join(map(str, pixels.shape)) or 'a number'}.")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise SicError("An array of floating-point numbers must have values in [0, 1].")
        pixels = (255 * pixels).round().astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise SicError(f"An array must hold bytes (uint8) or floating-point numbers in [0, 1], not {pixels.dtype}.")
    return Image.fromarray(pixels).convert("RGB")
