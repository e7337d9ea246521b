"""The model as users hold it: `sic.load`, then `predict` and `explain`."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from sic import directory
from sic.backbones.distilled import distilled_file
from sic.data.dataset import Sample
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
from sic.methods import SIC, Answered, Contributions
from sic.predictions import Predictions
from sic.predictor import ImageInput, Predictor, require_several

KEPT = 256 << 20
"""Bytes of support contributions that a model keeps in memory."""


def _title(image: ImageInput) -> str:
    return Path(image).name if isinstance(image, str | Path) else "Why this answer"


class Model(Predictor):
    """A trained classifier with its classes and its supports.

    `sic.load` and `sic.fit` return one. An image is a file name, a Pillow image, a NumPy array H×W×3 (bytes, or
    numbers in [0, 1]), or a float tensor 3×H×W (RGB in [0, 1]) of the model's input size.
    """

    @cached_property
    def _own(self) -> OrderedDict[int, Contributions]:
        """Support contributions that are known, by support; the last one used is at the end."""
        return OrderedDict()

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as "cuda", and return it."""
        self._own.clear()
        return super().to(device)

    def explain(
        self,
        image: ImageInput,
        classes: Sequence[str] | None = None,
        truth: str | None = None,
        most: int | None = None,
        matches: bool = False,
        versus: str | None = None,
        specific: bool = False,
    ) -> Explanation:
        """Explain one image, in one forward pass.

        Args:
            image: A file, a Pillow image, an array, or a tensor (see `tensor`).
            classes: The classes to explain; by default those of the answer, or the nearest one if it has none.
            truth: The true class, to be shown.
            most: How many classes of the answer to explain, the most probable first; by default all of them.
            matches: Also split the evidence of every case into regions that match (SIC only).
            versus: Compare the first class with this one, region by region (SIC only). If it is the best class itself,
                the next best is compared with it.
            specific: Draw what is specific to a class: how much more each pixel adds to its score than to the mean
                score of all classes.

        Returns:
            Contribution maps and evidence of each class explained; `save` draws them.
        """
        self._check_specific(specific)
        answered = self.classifier.answered(self.tensor(image)[None])
        targets = self._targets(answered, [self._wanted(classes)], self._versus(versus))
        if most is not None and not classes and versus is None:
            probable = self.answers(answered.logits).probabilities[0].tolist()
            targets = [sorted(targets[0], key=lambda label: -probable[label])[:most]]
        found = self._explanations(answered, targets, True, matches, versus, specific)[0]
        return replace(found, title=_title(image), truth=truth)

    def explain_many(
        self,
        images: Iterable[ImageInput],
        classes: Sequence[str] | Sequence[Sequence[str]] | None = None,
        matches: bool = False,
        versus: str | None = None,
        specific: bool = False,
    ) -> Iterator[Explanation]:
        """Explain any number of images in batches that fit into memory.

        Args:
            images: Files, Pillow images, arrays or tensors; they are read as needed.
            classes: The classes to explain, or a list of classes for each image; by default those of each answer.
            matches: As in `explain`.
            versus: As in `explain`.
            specific: As in `explain`.

        Yields:
            One explanation per image, in order, as from `explain` but without the maps of single supports.
        """
        require_several(images)
        self._check_specific(specific)
        other, titles = self._versus(versus), deque[str]()
        lists = [each for each in classes or [] if not isinstance(each, str)]
        same = self._wanted([each for each in classes or [] if isinstance(each, str)])
        asked = [self._wanted(each) for each in lists] or [same]
        rows = iter(asked) if lists else repeat(same)

        def views() -> Iterator[Tensor]:
            for image in images:
                titles.append(_title(image))
                yield self.tensor(image)

        maps = (max(len(each or [0]) for each in asked) + (other is not None)) * (1 + specific)
        if matches or other is not None:
            maps *= 1 + len(self.supports) // len(self.classes)
        for batch in in_chunks(self.classifier, views(), maps):
            answered = self.classifier.answered(batch)
            wanted = list(islice(rows, len(batch)))
            if len(wanted) < len(batch):
                raise SicError(f"There are more images than the {len(lists)} lists of classes.")
            targets = self._targets(answered, wanted, other)
            for each in self._explanations(answered, targets, False, matches, versus, specific):
                yield replace(each, title=titles.popleft())

    def contributions(
        self, images: Iterable[ImageInput], classes: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], Contributions]]:
        """Contributions of the pixels of many images, without dynamic weights and supports.

        Takes one forward pass and at most K backward passes per batch.

        Args:
            images: Files, Pillow images, arrays or tensors; they are read as needed.
            classes: The classes to explain; by default those of each answer.

        Yields:
            For each image the K class names, and contributions with maps K×H×W.
        """
        require_several(images)
        wanted = self._wanted(classes)
        for batch in in_chunks(self.classifier, map(self.tensor, images), len(wanted or [0])):
            answered = self.classifier.answered(batch)
            targets = self._targets(answered, [wanted] * len(batch))
            found = answered.explain(as_rows(targets, batch), weights=False)
            for n, labels in enumerate(targets):
                yield [self.classes[label] for label in labels], found.at((n, slice(len(labels))))

    def _wanted(self, classes: Sequence[str] | None) -> list[int] | None:
        for name in classes or []:
            if name not in self.classes:
                raise SicError(f"The model has no class {name!r}; it knows {', '.join(self.classes)}.")
        return [self.classes.index(name) for name in classes] if classes else None

    def _check_specific(self, specific: bool) -> None:
        if specific and not self.classifier.specific:
            raise SicError(
                f"Models of --method {self.config.method} have no maps that are specific to a class (--specific)."
            )

    def _versus(self, name: str | None) -> int | None:
        """The class to compare with."""
        if name is None:
            return None
        self.sic.require_evaluation()
        if len(self.classes) < 2:
            raise SicError("The model has one class; there is no other to compare it with.")
        if any(support.image is None for support in self.supports):
            raise SicError(
                "The model does not keep the images of its cases, so classes cannot be compared region by region."
            )
        return (self._wanted([name]) or [0])[0]

    def _targets(
        self, answered: Answered, wanted: Sequence[list[int] | None], versus: int | None = None
    ) -> list[list[int]]:
        """The classes to explain of each image: those `wanted`, or else those of the answer.

        With `versus`, two: if it is the best class itself, the next best is compared with it.
        """
        if versus is not None:
            if any(own and len(own) > 1 for own in wanted):
                raise SicError("Only one class can be compared with another one; name one class.")
            if any(own and own[0] == versus for own in wanted):
                raise SicError(f"{self.classes[versus]} cannot be compared with itself; name another class.")
            ranked = answered.logits.argsort(dim=1, descending=True).tolist()
            first = [(own or row)[0] for own, row in zip(wanted, ranked, strict=True)]
            return [
                [one, versus if one != versus else next(label for label in row if label != one)]
                for one, row in zip(first, ranked, strict=True)
            ]
        answers = self.answers(answered.logits)
        return [
            own or labels or [best]
            for own, labels, best in zip(wanted, answers.labels, answers.nearest.tolist(), strict=True)
        ]

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
        self,
        answered: Answered,
        targets: list[list[int]],
        evidence_maps: bool = False,
        matches: bool = False,
        versus: str | None = None,
        specific: bool = False,
    ) -> list[Explanation]:
        """Of the classes `targets` of each image; with `versus`, the first is compared with the second."""
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
            matches=matches or versus is not None,
            specific=specific,
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
                    None if versus is None else parts[1].name,
                    versus is not None and parts[1].name != versus,
                    self.classifier.calibration,
                    bool(answers.promised[row]),
                    self.classifier.loss == "ce",
                )
            )
        return result

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


def load(folder: str | Path, device: str | torch.device = "cpu") -> Model:
    """Read a model directory, or a file of `sic distill` that has a classifier.

    Args:
        folder: The directory that `sic train` or `Model.save` wrote, or the file. Nothing else is needed. "photos" is
            a classifier of ImageNet's 1,000 classes that comes with this package, "photos-small" a smaller one.
        device: Where to compute.

    Returns:
        The model.

    Raises:
        SicError: The directory is missing or damaged, or this version cannot read it.
    """
    path = Path(folder)
    file = path if path.is_file() and path.suffix == ".safetensors" else distilled_file(folder)
    if file is not None:
        return Model(*load_distilled(file, device), file)
    return Model(*directory.load(path, device), path)
