"""The training of SIC: its step, its guide, its bank of latents, and a check of its latents after every epoch."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sic.bcos import BcosLinear
from sic.methods import SIC
from sic.settings import RECIPES
from sic.training.base import Candidates, near_chance, softmax_loss
from sic.training.batches import Batch
from sic.training.comparing import ComparingTraining
from sic.training.penalties import competition_scale, misplaced_evidence, penalty_scale, sameness


@dataclass
class Drawn:
    """The supports of a step: C·K vectors in order of class. Some of them are for some queries only."""

    vectors: Tensor
    """C·K×d; 0 where a class has no more."""
    rows: Tensor
    """C×K positions among the training images; -1: none."""
    counts: Tensor
    """N×C×K: whether a query is compared with it; never with its own image."""


class Members:
    """The training images that may stand for each of C classes."""

    def __init__(self, candidates: Candidates, device: torch.device | str = "cpu") -> None:
        classes = [torch.tensor(candidates[label], device=device) for label in sorted(candidates)]
        self.rows = torch.cat(classes)
        """Their positions among the training images, in order of class."""
        self.sizes = torch.tensor([len(members) for members in classes], device=device)
        """How many each class has, C."""
        self._starts = self.sizes.cumsum(0) - self.sizes

    def draw(self, chance: Tensor) -> tuple[Tensor, Tensor]:
        """Different members of every class, C×K, and whether it has so many: a smaller class repeats some.

        `chance`: random numbers from 0 to 1, C×K.
        """
        taken = distinct_positions(self.sizes, chance)
        exists = torch.arange(chance.shape[1], device=taken.device) < self.sizes[:, None]
        return self.rows[self._starts[:, None] + taken % self.sizes[:, None]], exists


class SupportBank:
    """The latest latent of every training image, n×d, and who of them may stand for each class.

    It is not part of a checkpoint: those are written right after all latents were made anew, and a resumed run makes
    the same ones from the same weights.
    """

    def __init__(self, latents: Tensor, candidates: Candidates, supports_per_class: int, seed: int) -> None:
        self.latents, self.supports_per_class, self.seed = latents, supports_per_class, seed
        self.members = Members(candidates, latents.device)
        sizes = self.members.sizes
        self.labels = torch.full((len(latents),), len(sizes), device=latents.device)
        """The class that an image may stand for, n; C: none."""
        self.labels[self.members.rows] = torch.arange(len(sizes), device=latents.device).repeat_interleave(sizes)

    def remember(self, rows: Tensor, latents: Tensor) -> None:
        """Store the current latents of the images `rows`."""
        self.latents[rows] = latents.detach().to(self.latents)

    def draw(self, rows: Tensor, latents: Tensor, step: int) -> Drawn:
        """Supports for queries that are the images `rows`, with latents N×d.

        A class's supports are its images among the queries themselves, as they are the freshest and gradients reach
        them, then random ones of the bank. There is one more than needed, for the query that is one of them.
        """
        number, classes, width = len(rows), len(self.members.sizes), self.supports_per_class + 1
        labels = self.labels[rows]
        earlier = (labels[:, None] == labels[None]).tril(-1).sum(1)
        in_batch = labels.new_zeros(classes + 1).index_add(0, labels, torch.ones_like(labels))[:classes]
        random, exists = self._random(width, step)
        asked = torch.zeros_like(self.labels, dtype=torch.bool).index_fill(0, rows, True)
        free = exists & ~asked[random]
        place = torch.where(free, in_batch[:, None] + free.cumsum(1) - 1, width)
        # Everything goes to its place in its class's line, and what finds none to a place that is cut off: the
        # numbers of those are known to the device only.
        line = labels.new_full((classes + 1, width + 1), -1)
        line[labels, earlier.clamp_max(width)] = torch.arange(number, device=rows.device)
        everyone = torch.arange(number, number + classes * width, device=rows.device).view(classes, width)
        line[:classes].scatter_(1, place.clamp_max(width), everyone)
        line = line[:classes, :width]
        nobody = latents.new_zeros(1, latents.shape[1])
        vectors = torch.cat([latents, self.latents[random.flatten()].to(latents), nobody])
        who = torch.where(line < 0, len(vectors) - 1, line)
        drawn = torch.cat([rows, random.flatten(), rows.new_full((1,), -1)])[who]
        return Drawn(vectors[who.flatten()], drawn, self._compared(drawn >= 0, labels, earlier))

    def _compared(self, exists: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """N×C×K: the first supports of every class, C×K; for a query that stands in its class's line itself, the others
        of that line. `labels`: the line that it may stand in, N; `places`: where, N."""
        number, width = len(labels), exists.shape[1]
        position = torch.arange(width, device=exists.device)
        first = position < self.supports_per_class
        exists = torch.cat([exists, exists.new_zeros(1, width)])
        result = (exists & first).expand(number, -1, -1).clone()
        stands = (places < width)[:, None]
        own = exists[labels] & (position != places[:, None]) & (first | stands)
        result[torch.arange(number, device=labels.device), labels] = own
        return result[:, :-1]

    def _random(self, number: int, step: int) -> tuple[Tensor, Tensor]:
        """Different random members of every class, C×`number`, and whether the class has so many."""
        state = np.random.SeedSequence((self.seed, step)).generate_state(1, np.uint64)
        sizes = self.members.sizes
        generator = torch.Generator(sizes.device).manual_seed(int(state[0] >> 1))
        return self.members.draw(
            torch.rand(len(sizes), number, generator=generator, device=sizes.device, dtype=torch.float64)
        )


def distinct_positions(sizes: Tensor, chance: Tensor) -> Tensor:
    """Different positions for each of C sets.

    Args:
        sizes: The number of elements of each set, C.
        chance: Random numbers from 0 to 1, C×K: one for every position.

    Returns:
        C×K positions below the size of each set. A set with fewer than K elements has some that are not below it.
    """
    taken = sizes.new_zeros(len(sizes), 0)
    for turn in range(chance.shape[1]):
        left = (sizes - turn).clamp_min(1)
        pick = (chance[:, turn] * left).long()  # counts those that are not taken: step over the others
        for before in taken.sort(dim=1).values.unbind(1):
            pick = pick + (pick >= before)
        taken = torch.cat([taken, pick[:, None]], dim=1)
    return taken


class Guide(nn.Module):
    """Keeps a network with random initial weights from collapsing; it is dropped after training.

    Binary cross-entropy alone is lowest for latents that separate nothing when all of them vanish. Softmax
    cross-entropy does not care for evidence that all classes share, so it asks for differences instead: on the SIC
    logits, and on a B-cos classifier of the pooled features, which learns before there are latents to compare.
    """

    SCALE = 10.0
    """B-cos outputs of fresh features are small: without it the head would wait for the features to grow."""

    def __init__(self, features: int, classes: int, b: float) -> None:
        super().__init__()
        self.head = BcosLinear(features, classes, b)

    def forward(self, pooled: Tensor, logits: Tensor, targets: Tensor, support_targets: Tensor) -> Tensor:
        everyone = torch.cat([targets, support_targets])
        return softmax_loss(logits, targets) + softmax_loss(self.SCALE * self.head(pooled), everyone)


def fading(done: float) -> float:
    """The strength of what helps a fit to begin, after a share `done` of the steps: all of it for the first half, then
    less and less, so that the method's own loss is optimised in the end.

    >>> fading(0), fading(0.5), fading(0.75), fading(1)
    (1.0, 1.0, 0.5, 0)
    """
    return min(1.0, 2 * (1 - done))


class SICTraining(ComparingTraining):
    """Fits a `SIC` classifier, with the guide where there is one."""

    classifier: SIC
    guide: Guide | None
    bank: SupportBank | None
    """The source of supports with `--support-source bank`."""

    def prepare(self) -> None:
        super().prepare()
        classifier, settings = self.classifier, self.settings
        features = classifier.encoder.projection.in_features
        self.guide = Guide(features, classifier.classes, settings.b) if settings.guided else None
        self.bank = None
        self.draws_supports = settings.support_source != "bank"
        self.health = LatentHealth(0.0, 0.0)
        self.competing = 0.0
        """Weight of softmax cross-entropy; see `sic.training.frozen.fit_features`."""
        self.sharpened = False
        """Whether the penalty on misplaced evidence grows until it is in proportion to the competition."""

    def on_train_start(self) -> None:
        settings = self.settings
        if settings.support_source == "bank":
            latents = torch.from_numpy(self.embed()).to(self.device)
            self.classifier.train()
            self.bank = SupportBank(latents, self.candidates, settings.supports_per_class, settings.seed)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier, done = self.classifier, self.global_step / self.total_steps
        self.fade()
        features = classifier.encoder.features(self.prepared(torch.cat([batch.queries, batch.supports])))
        lesson = self.lesson(batch)
        targets = self.wanted(batch.targets, lesson)
        with torch.autocast(self.device.type, enabled=False):
            features = self.whole(features.float(), batch)
            latents = classifier.encoder.project(features)
            logits, supports = self.recalled(latents, batch) if self.bank else self.compared(latents, batch)
            loss = self.loss(logits, targets) + self.competition(logits, targets, done)
            if lesson is not None:
                loss = loss + lesson.unlikeness(features[: len(targets)])
            if self.guide is not None:
                pooled = classifier.encoder.pooled(features)
                loss = loss + fading(done) * self.guide(pooled, logits, batch.targets, batch.support_targets)
            parts = classifier.encoder.additive(features, latents)[: len(batch.targets)]
            loss = loss + self.penalty(parts, batch.targets, batch.grids, *supports, done)
        return self.noted(loss, index)

    def compared(self, latents: Tensor, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits of the queries with the supports of their batch; latents S×d and classes S of these supports."""
        queries, supports = latents.split([len(batch.targets), len(batch.support_targets)])
        logits = self.classifier.logits(self.classifier.evidence(queries, supports), batch.support_classes)
        return logits, (supports, batch.support_classes)

    def recalled(self, latents: Tensor, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same with supports of the bank, which remembers the queries."""
        assert self.bank is not None
        drawn = self.bank.draw(batch.rows, latents, self.global_step)
        evidence = self.classifier.evidence(latents, drawn.vectors).view(drawn.counts.shape)
        self.bank.remember(batch.rows, latents)
        classes = torch.arange(evidence.shape[1], device=latents.device).repeat_interleave(evidence.shape[2])
        return self.classifier.bias + (evidence * drawn.counts).sum(dim=2), (drawn.vectors, classes)

    def competition(self, logits: Tensor, targets: Tensor, done: float) -> Tensor:
        """Softmax cross-entropy of N×C logits with its weight, after a share `done` of the steps."""
        return self.competing * fading(done) * softmax_loss(logits, targets) if self.competing else logits.new_zeros(())

    def penalty(
        self, parts: Tensor, targets: Tensor, grids: Tensor, vectors: Tensor, classes: Tensor, done: float
    ) -> Tensor:
        """The recipe's penalties: on images of a class that are alike, and on evidence on images of other classes.

        Args:
            parts: Pooled features of the queries, N×F, or with local units latents (`Encoder.additive`); grids are made
                of them.
            targets: Their targets, N×C.
            grids: Of queries, G×n (`query_grids`).
            vectors: Latents of the supports, S×d.
            classes: The classes of the supports, S.
            done: The share of the steps that are done.
        """
        recipe, total = RECIPES[self.settings.recipe], parts.new_zeros(())
        scale = penalty_scale(self.classifier.classes)
        if recipe.apart:
            total = total + scale * recipe.apart * sameness(vectors, classes, self.classifier.b)
        if weight := self.settings.misplaced_weight:
            elsewhere = misplaced_evidence(self.classifier, parts[grids], targets[grids], vectors, classes)
            if self.sharpened:
                scale += self.competing * done * competition_scale(self.classifier.classes)
            total = total + scale * weight * elsewhere
        return total

    def look_at(self, latents: NDArray[np.float32]) -> None:
        self.health = latent_health(latents)
        if self.bank is not None:
            self.bank.latents.copy_(torch.from_numpy(latents))

    def health_figures(self, score: float, chance: float) -> dict[str, float]:
        steps, guided = self.global_step, self.settings.guided
        self.collapsed = collapse(self.health, self.settings.temperature, score, chance, steps, guided)
        return {"dead_units": self.health.dead_units, "latent_norm": self.health.norm}


@dataclass(frozen=True)
class LatentHealth:
    """State of the latents of the training set after an epoch."""

    dead_units: float
    """Share of latent units that no training image activates."""
    norm: float
    """Mean latent norm."""


def latent_health(latents: NDArray[np.float32]) -> LatentHealth:
    """Measure n×d latents."""
    dead = float((latents.max(axis=0) <= 0).mean())
    return LatentHealth(dead, float(np.linalg.norm(latents, axis=1).mean()))


FIRST_LOOK = 150
"""Steps before which a fit may look lost without being so."""


def collapse(
    health: LatentHealth, temperature: float, score: float, chance: float, steps: int, guided: bool = False
) -> str | None:
    """A sentence if training has collapsed: at chance level, with dead units or with latents too short to matter.

    `guided`: whether the recipe for training from scratch is in use already.
    """
    if steps < FIRST_LOOK or (not near_chance(score, chance) and np.isfinite(health.norm)):
        return None
    if health.dead_units > 0.5:
        sign = f"{health.dead_units:.0%} of the latent units are dead"
    elif not health.norm >= 0.1 * temperature:  # also where it is not a number
        sign = f"latents have shrunk to a norm of {health.norm:.2g}, too little evidence at T = {temperature:g}"
    else:
        return None
    return (
        f"The fit has collapsed: after {steps} steps the score is {score:.1%} (chance: {chance:.1%}) and {sign}. "
        f"It is unlikely to recover; stop it and use {'' if guided else '--recipe scratch, '}a lower --lr, or "
        "pretrained --weights."
    )
