"""Inspect and edit the supports of a trained model, and measure the effect of each edit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sic import directory
from sic.card import validation_note
from sic.clinic import diagnostics
from sic.clinic.advice import Commands
from sic.clinic.diagnostics import Finding
from sic.clinic.edits import (
    Outcome,
    Record,
    class_index,
    compare,
    now,
    plan,
    recorded,
    same_supports,
    standing,
)
from sic.clinic.examined import Candidate, Examined, Reliance, SupportSummary
from sic.clinic.pixels import background, negative_mass
from sic.data import UnreadableImage, read_image
from sic.data.dataset import Progress
from sic.errors import SicError
from sic.latents import Latents
from sic.machines import best_device
from sic.methods import SIC
from sic.model import Model, load
from sic.run import ImagesNotFound, Run
from sic.supports import Edit, Support, find_support, replaced

FAR = 0.02
"""How far the latent of a support's image may be from its vector, relative to its norm. Devices differ by less than
1e-4."""


class Clinic:
    """The supports of the model in a directory. Only `apply` and `undo` change the directory."""

    def __init__(
        self,
        folder: str | Path,
        data: str | Path | None = None,
        progress: Progress | None = None,
        model: Model | None = None,
    ) -> None:
        """Open the model in `folder` and embed its images.

        Args:
            folder: The model directory.
            data: Where the training images are, if they were moved.
            progress: Called with the number of images embedded so far, and the number to embed.
            model: The model of the directory, if it is loaded already. An edit changes its supports.
        """
        self.folder, self._data = Path(folder), data
        self._version = directory.version(self.folder)
        model = model or load(self.folder, best_device())
        if not isinstance(model.classifier, SIC):
            raise SicError(f"{folder} is a {model.config.method} model: it has no supports to edit.")
        if len({(support.label, support.source) for support in model.supports}) < len(model.supports):
            raise SicError(f"The supports of {folder} are not single training images, so they cannot be edited.")
        run = Run(self.folder, model.config)
        self.images, self._options = run.images(data), _options(run.record.get("data", {}).get("opened_with", {}))
        everyone = [sample for samples in self.images.splits.values() for sample in samples]
        latents = model.embed_samples(everyone, own=True, progress=progress)
        self.problems = [*self.images.problems]
        """Sentences about missing images."""
        self.problems += [f"{id} can no longer be used: {reason}." for id, reason in latents.unreadable.items()]
        splits = {
            split: [sample for sample in samples if sample.id in latents]
            for split, samples in self.images.splits.items()
        }
        for split in ("train", "validation"):
            if not splits[split]:
                raise SicError(f"None of the {split} images in {self.images.root} can be read.")
        vectors = model.sic.support_vectors.cpu()
        self.problems += _trust(model.supports, vectors, latents, self.images.root)
        self.problems += [] if latents.problem is None else [latents.problem]
        self.examined = Examined(model, model.supports, vectors, splits, latents)

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self.examined.classes

    def list(self) -> Sequence[SupportSummary]:
        """Describe all supports.

        Returns:
            One entry per support; its position is the number of the support.
        """
        return self.examined.describe()

    def candidates(self, label: str, near: int | str | None = None) -> Sequence[Candidate]:
        """Find training images that could be supports of a class.

        Args:
            label: The name of the class.
            near: The support to compare with, by number, name or image; by default the mean latent of the images.

        Returns:
            Images that show this class alone, from the nearest to the farthest.
        """
        support = None if near is None else find_support(self.examined.supports, near, self.classes)
        return self.examined.candidates(class_index(self.classes, label), support)

    def relying_on(self, support: int | str) -> Sequence[Reliance]:
        """Find validation and test images that rely on a support (see `Predictions.relying_on`).

        Args:
            support: Its number, its name, or its image.

        Returns:
            The images, those with the most evidence first.
        """
        return self.examined.relying_on(find_support(self.examined.supports, support, self.classes))

    def history(self) -> Sequence[Record]:
        """All edits.

        Returns:
            Records from the first to the last edit, including those that were undone.
        """
        return recorded(self.examined.model.config.edits, self.folder)

    def preview(self, edit: Edit) -> Outcome:
        """Measure an edit without saving anything.

        Args:
            edit: The change, such as `Edit.drop(3)`.

        Returns:
            Metrics before and after, and the validation images whose answer changes.
        """
        _, supports = plan(edit, self.examined, self.images)
        return compare(self.examined, self.examined.with_supports(supports))

    def apply(self, edit: Edit) -> Outcome:
        """Apply and save an edit. Supports, metrics and history are written together, or not at all.

        An edit that changes nothing is not written.

        Args:
            edit: The change, such as `Edit.drop(3)`.

        Returns:
            As `preview`.
        """
        label, supports = plan(edit, self.examined, self.images)
        after = self.examined.with_supports(supports)
        outcome = compare(self.examined, after)
        record = Record(
            edit.action,
            self.classes[label],
            outcome.removed,
            outcome.added,
            outcome.before,
            outcome.after,
            outcome.ids("to_right"),
            outcome.ids("to_wrong"),
            [[support.source, support.pinned] for support in self.examined.supports if support.label == label],
            edit.force,
        )
        if outcome.labels:
            self._save(after, [*self.history(), record])
        return outcome

    def undo(self, steps: int = 1) -> Outcome:
        """Undo the last edits that are in effect.

        Args:
            steps: How many.

        Returns:
            Metrics before and after, and the validation images whose answer changes.
        """
        records = self.history()
        last = standing(records)[-steps:]
        if not last:
            raise SicError(f"There is nothing to undo: the supports of {self.folder} are those that training selected.")
        if steps < 1 or len(last) < steps:
            raise SicError(f"{self.folder} has {len(standing(records))} edits that can be undone, not {steps}.")
        supports = self.examined.supports
        for record in reversed(last):
            label = class_index(self.classes, record.label)
            before = [Support(label, source, pinned=pinned) for source, pinned in record.supports_before]
            supports = replaced(supports, label, before)
            record.undone = now()
        after = self.examined.with_supports(supports)
        outcome = compare(self.examined, after)
        self._save(after, records)
        return outcome

    def diagnose(self, pixels: bool = True, progress: Progress | None = None) -> Sequence[Finding]:
        """Look for problems of the supports.

        Args:
            pixels: Whether to include the checks that explain images, which take longer.
            progress: Called with the number of images explained so far, and the number to explain.

        Returns:
            Findings, the most serious first, with commands that solve them or show them, as far as there are any.
        """
        data = None if self._data is None else str(self._data)
        commands = Commands(self.folder, data, self.images.where, self._options)
        return diagnose(self.examined, commands, pixels, progress)

    def _save(self, after: Examined, records: Sequence[Record]) -> None:
        """Save the model with its new supports and new metrics."""
        classifier = after.classifier
        figures: dict[str, Any] = {}
        for split in ("validation", "test"):
            if after.splits[split]:
                figures |= with_changes(after.predictions(split), copies=self.images.copies).measured(split)
        calibration = after.model.config.calibration
        edited = not same_supports(records)
        note = validation_note(after.model.config.training, calibration.images, edited)
        figures["validation"] |= {} if note is None else {"note": note}
        if edited and calibration.promise is not None:
            records[-1].promise = calibration.promise
            calibration = with_changes(calibration, promise=None)
        elif not edited and calibration.promise is None:
            ended = [record.promise for record in records if record.promise is not None]
            calibration = with_changes(calibration, promise=ended[-1] if ended else None)
        edits = [asdict(record) for record in records]
        config = with_changes(after.model.config, figures=figures, edits=edits, calibration=calibration)
        classifier.calibration = calibration
        model = Model(classifier, config, [*self._pictured(after.supports)], self.folder)
        held = classifier.support_vectors, classifier.support_classes
        try:
            classifier.support_vectors = after.vectors.to(held[0])
            classifier.support_classes = after.labels.to(held[1])
            self._version = model.save(self.folder, replacing=self._version)
        except BaseException:
            classifier.support_vectors, classifier.support_classes = held
            raise
        self.examined = with_changes(after, model=model)

    def _pictured(self, supports: Sequence[Support]) -> Sequence[Support]:
        """The supports with their images, if the model keeps any."""
        before = self.examined.model.supports
        known = {(support.label, support.source): support.image for support in before}
        keep = any(support.image is not None for support in before)
        paths = {sample.id: sample.path for sample in self.examined.splits["train"]}
        result = []
        for support in supports:
            image = known.get((support.label, support.source))
            if image is None and keep:
                try:
                    image = self.examined.model.config.preprocessing(read_image(paths[support.source]))
                except UnreadableImage as error:
                    raise SicError(f"{support.source} cannot be a support: {error}.") from None
            result.append(with_changes(support, image=image))
        return result


def diagnose(
    examined: Examined, commands: Commands, pixels: bool = True, progress: Progress | None = None
) -> Sequence[Finding]:
    """All findings, the serious ones first; without `pixels`, only those that need no explanation of an image."""
    found = diagnostics.strangers(examined, commands)
    known = {index for finding in found for index in finding.supports}
    for look in (diagnostics.coinciding, diagnostics.identical, diagnostics.unbalanced):
        # A support of the wrong class explains whatever else is wrong with it.
        found += [finding for finding in look(examined, commands) if known.isdisjoint(finding.supports)]
    found += diagnostics.label_suspects(examined, commands)
    found += diagnostics.saturated(examined, commands)
    if pixels:
        found += negative_mass(examined)
        found += background(examined, commands, progress)
    return sorted(found, key=lambda finding: finding.severity != "serious")


def _options(opened_with: Mapping[str, Any]) -> Sequence[str]:
    """The options of `sic train` that open data as a run did."""
    named = {name: opened_with.get(name) for name in ("layout", "group")}
    found = [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
    return [*found, "--roi"] if opened_with.get("roi") else found


def _trust(supports: Sequence[Support], vectors: Tensor, latents: Latents, root: Path) -> Sequence[str]:
    """Use the vectors of the supports as the latents of their images, so that undo restores the same model bit for bit.

    Returns a sentence for each image that has changed since training; raises `ImagesNotFound` if most have.
    """
    strangers, replaced = [], False
    for support, vector in zip(supports, vectors, strict=True):
        if support.source not in latents:
            continue
        found = latents.of([support.source])[0]
        if (found - vector).norm() > FAR * vector.norm() + 1e-6:
            strangers.append(f"{support.source} has changed since it became a support of the model.")
        elif not torch.equal(found, vector):
            latents.replace(support.source, vector)
            replaced = True
    if 2 * len(strangers) > len(supports):
        raise ImagesNotFound(
            f"The images in {root} are not those that the model was trained on ({len(strangers)} of its supports "
            "differ); say where they are: --data PATH."
        )
    if replaced:  # after an edit, the model no longer has the vector of a support that it dropped
        latents.keep()
    return strangers
