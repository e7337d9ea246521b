"""What a model predicts for images, and the one rule that turns its logits into answers.

A class is *found* in an image where its probability reaches 50 %. The *answer* is the class of the highest logit where
an image has one label, and all classes found where it may have several. An image in which no class is found has *no
similar case*: its answer is shown, but should not be relied on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from sic.calibration import Calibration
from sic.data.dataset import Sample, Task
from sic.data.labels import average_precisions, mean_precision, shared, split_targets, targets
from sic.evaluate.headline import Headline, Part
from sic.settings import Loss

THRESHOLD = 0.5
"""Probability from which a class is found, the same for every class."""


@dataclass(frozen=True)
class Answers:
    """The answers that n×C logits stand for."""

    logits: Tensor
    task: Task
    loss: Loss = "bce"
    """Decides what the probabilities are: sigmoids (bce) or a softmax (ce)."""
    calibration: Calibration = Calibration()
    """How logits become probabilities."""

    @cached_property
    def probabilities(self) -> Tensor:
        """n×C, in double precision."""
        return self.calibration.probabilities(self.logits.double(), self.loss)

    @cached_property
    def scores(self) -> Tensor:
        """n×C, the log odds of the probabilities: 0 at 50 %."""
        return self.calibration.scores(self.logits, self.loss)

    @cached_property
    def found(self) -> Tensor:
        """n×C, bool: the classes found."""
        return self.probabilities >= THRESHOLD

    @cached_property
    def similar_case(self) -> Tensor:
        """n, bool: whether any class is found."""
        return self.found.any(dim=1)

    @cached_property
    def nearest(self) -> Tensor:
        """n: the class of the highest logit (the probabilities of very sure answers are all 1)."""
        return self.logits.argmax(dim=1)

    @cached_property
    def answers(self) -> Tensor:
        """n×C, bool: the classes of each answer; exactly one for single labels."""
        if self.task == "multi":
            return self.found
        return torch.zeros_like(self.found).scatter(1, self.nearest[:, None], True)

    @cached_property
    def confidence(self) -> Tensor:
        """n: the score of the nearest class without calibration, so that it does not depend on the images that the
        calibration was fitted on; minus infinity without a similar case. A promise is a threshold for it."""
        scores = Calibration().scores(self.logits, self.loss).amax(dim=1)
        return scores.masked_fill(~self.similar_case, -torch.inf)

    @cached_property
    def promised(self) -> Tensor:
        """n, bool: the answers that the model's promise covers; none, where it makes no promise."""
        promise = self.calibration.promise
        return torch.zeros_like(self.similar_case) if promise is None else promise.covers(self.confidence)

    @property
    def accepted(self) -> Tensor:
        """n×C, bool: the answers that have a similar case."""
        return self.answers & self.similar_case[:, None]

    @cached_property
    def labels(self) -> list[list[int]]:
        """The classes of each answer, in the model's order."""
        return [row.nonzero()[:, 0].tolist() for row in self.answers]

    def mistakes(self, wanted: Tensor) -> Tensor:
        """n: wrong labels of each image, given n×C targets; unsure ones (NaN) do not count.

        Single labels: 0 or 1. Where several answers are right (a bird that lacks parts), any of them is.
        """
        truth, counts = split_targets(wanted.to(self.logits.device))
        if self.task == "multi":
            return ((self.answers != truth.bool()) & counts).sum(dim=1)
        return 1 - (self.answers & truth.bool()).sum(dim=1)

    def main_score(self, wanted: Tensor) -> float:
        """Accuracy, or mean average precision for several labels: the figure by which models are chosen."""
        if self.task == "multi":
            return mean_precision(average_precisions(self.scores, wanted))
        return (self.mistakes(wanted) == 0).float().mean().item()

    def headline(self, wanted: Tensor, classes: Sequence[str]) -> Headline:
        """How often images are answered, and how often that is right, given n×C targets.

        An answer to several labels is right if none of them is wrong.
        """
        truth, _ = split_targets(wanted)
        number, right, shown = len(wanted), self.mistakes(wanted) == 0, truth.sum(dim=1)
        answered = self.similar_case
        correct = right & (answered | (shown == 0))
        chance = (shown / len(classes)).mean().item() if self.task == "single" and number else None
        if self.task == "multi":
            sets = Counter(tuple(row.nonzero()[:, 0].tolist()) for row in truth)
            labels, commonest = sets.most_common(1)[0] if sets else ((), 0)
        else:
            labels, commonest = (int(truth.sum(dim=0).argmax()),), int(truth.sum(dim=0).max())
        return Headline(
            Part(int(answered.sum()), number),
            Part(int((right & answered).sum()), int(answered.sum())),
            Part(int(correct.sum()), number),
            chance,
            " and ".join(classes[label] for label in labels) or "nothing",
            commonest / max(number, 1),
        )

    def figures(self, wanted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
        """How good the answers are, as kept in `config.json`.

        single: `accuracy` and `balanced_accuracy` (mean over classes of the share of their images that are right).
        multi: `map` and the `average_precision` of each class; `exact_match`, the share of images with every label
        right; `per_label_accuracy`, the share of all yes-or-no decisions that are right (the paper's accuracy on VOC).
        """
        figures: dict[str, Any] = {
            "images": len(wanted),
            "similar_case": self.similar_case.float().mean().item(),
            "headline": self.headline(wanted, classes).as_json(),
        }
        truth, counts = split_targets(wanted)
        mistakes = self.mistakes(wanted)
        if self.task == "single":
            # An image with several right answers is shared by their classes.
            shares = shared(truth)
            shown = shares.any(dim=0)
            recall = (shares * (1 - mistakes[:, None])).sum(dim=0)[shown] / shares.sum(dim=0)[shown]
            accuracy = self.main_score(wanted)
            return {"accuracy": accuracy, "balanced_accuracy": recall.mean().item(), **figures}
        precisions = average_precisions(self.scores, wanted)
        return {
            "map": mean_precision(precisions),
            "per_label_accuracy": ((counts.sum() - mistakes.sum()) / counts.sum()).item(),
            "exact_match": (mistakes == 0).float().mean().item(),
            "threshold": THRESHOLD,
            "average_precision": dict(zip(classes, precisions, strict=True)),
            **figures,
        }


@dataclass(frozen=True)
class Reliance:
    """An image whose accepted answer is a support's class."""

    row: int
    evidence: float
    """What the support adds to the logit."""
    share: float
    """Of all evidence for the class."""
    decisive: bool
    """Without the support, the class would not be an accepted answer."""


@dataclass(frozen=True, kw_only=True)
class Predictions(Answers):
    """The answers to labelled images, with what they are made of. Everything is on the CPU."""

    classes: Sequence[str]
    samples: Sequence[Sample]
    evidence: Tensor
    """n×S, of SIC's supports; n×0 for other methods."""
    owners: Tensor
    """S: the class of each support."""
    latents: Tensor | None = None
    """n×d; None for other methods."""
    name: str = "images"
    """Which images of which data, for people."""
    caution: str | None = None
    """Why the images are no fair test."""
    copies: frozenset[str] = frozenset()
    """Ids of images that the model was trained on, or that are copies of such images."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Ids of images that were left out, with the reason."""

    def __len__(self) -> int:
        return len(self.samples)

    def subset(self, rows: Sequence[int]) -> Self:
        """The predictions for some of the images."""
        chosen = torch.tensor(list(rows), dtype=torch.long)
        return replace(
            self,
            logits=self.logits[chosen],
            samples=[self.samples[row] for row in rows],
            evidence=self.evidence[chosen],
            latents=None if self.latents is None else self.latents[chosen],
        )

    @cached_property
    def targets(self) -> Tensor:
        """n×C, NaN where a sample is unsure."""
        return targets(self.samples, len(self.classes))

    @cached_property
    def right(self) -> Tensor:
        """n, bool: no label is wrong."""
        return self.mistakes(self.targets) == 0

    @property
    def without_copies(self) -> Self | None:
        """The predictions for the images that are no copies; None if there are no copies, or nothing else."""
        rows = [row for row, sample in enumerate(self.samples) if sample.id not in self.copies]
        return replace(self.subset(rows), copies=frozenset()) if 0 < len(rows) < len(self) else None

    @cached_property
    def quality(self) -> dict[str, Any]:
        """The `figures` of these images."""
        return self.figures(self.targets, self.classes)

    def measured(self, split: str) -> dict[str, dict[str, Any]]:
        """`quality` as the model's configuration has it: of a split, and of its images that are no copies."""
        found, clean = {split: self.quality}, self.without_copies
        if clean is not None:
            note = f"images that are in training, too, are left out: {len(self) - len(clean)}"
            found[f"{split}_without_copies"] = clean.quality | {"note": note}
        return found

    def answer(self, row: int) -> list[str]:
        """The names of the classes of an answer."""
        return [self.classes[label] for label in self.labels[row]]

    def truth(self, row: int) -> list[str]:
        """The names of the classes that an image shows."""
        return [self.classes[label] for label in self.samples[row].labels]

    def relying_on(self, support: int) -> list[Reliance]:
        """The images whose accepted answer is (or includes) the class of a SIC support, the most evidence first.

        An image without a similar case relies on nothing, whatever class is nearest.
        """
        label = int(self.owners[support])
        mine = self.evidence[:, support]
        without = self.logits.clone()
        without[:, label] -= mine
        kept = Answers(without, self.task, self.loss, self.calibration).accepted[:, label]
        total = self.evidence[:, self.owners == label].sum(dim=1).clamp_min(1e-12)
        found = [
            Reliance(row, mine[row].item(), (mine[row] / total[row]).item(), not kept[row])
            for row in self.accepted[:, label].nonzero()[:, 0].tolist()
        ]
        return sorted(found, key=lambda reliance: -reliance.evidence)


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
    promised: bool = False
    """Whether the promise of the model covers the answer (see `Model.promise`)."""
