"""Checks of a model's supports that need only latents (`sic.clinic.pixels` has those that explain images).

Each limit has its reason beside it. "The demo" is a healthy model of the built-in birds (`sic demo`: 94 % on 180
validation images, 3 supports per class); the limits are well outside of its values.
"""

import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sic.clinic.examined import Examined
from sic.explain.prose import ONE_CASE
from sic.supports import directions, resembling_others, select_varied, support_key

NEIGHBOURS = 10
"""The number of training images that a support is compared with; fewer if its class has fewer."""
MAJORITY = 0.6
"""Share of a support's nearest training images that belong to one other class. At most 0.4 in the demo (birds that lack
parts). Of its training images, 98 % would be found if they were supports of another class."""
SAME = 0.999
"""Share of evidence (cos^B) that two supports of a class share: 1 for copies of an image, up to 0.996 in the demo."""
COINCIDE = 0.9
"""The same for supports of two classes: 90 % of the evidence for one is also evidence for the other. Up to 0.86 in the
demo, for two birds that lack parts."""
EVEN = 0.25
"""A support with less than this part of its even share of the evidence (1/n of n supports) never matters. At least 0.69
in the demo."""
SATURATED = 9.2
"""Median logit of the answers of a class; a probability of 0.9999. 3 to 6 in the demo."""
TWICE = 2.0
"""The label of a training image is suspect if the best support of another class has this many times the evidence of the
best of its own. In two demos 0 and 1 of 800 images, while 8 and 15 are merely closer to another class."""


@dataclass(frozen=True)
class Finding:
    """A problem of the supports that a person should look at."""

    title: str
    severity: Literal["serious", "notice"]
    sentence: str
    command: str
    """The command that acts on it."""
    supports: list[int] = field(default_factory=list)
    """The indices of the supports concerned."""
    images: list[str] = field(default_factory=list)
    """The ids of the images that show it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The measured values, and the limit."""


@dataclass(frozen=True)
class Commands:
    """Writes commands for the model in `folder`; `data` is where its images are, if they were moved."""

    folder: Path
    data: str | None = None
    trained_on: str = "DATA"
    """The data that `sic train` was given."""

    def supports(self, *words: object) -> str:
        data = [] if self.data is None else ["--data", self.data]
        return shlex.join(["sic", "supports", *map(str, [self.folder, *words, *data])])

    def explain(self, image: Path) -> str:
        return shlex.join(["sic", "explain", str(self.folder), str(image), "--out", f"why-{image.stem}.png"])

    def one_support(self) -> str:
        """Train again with one support per class."""
        out = self.folder.with_name(f"{self.folder.name}-1")
        words = ["sic", "train", self.data or self.trained_on, "--supports-per-class", "1", "--out", out]
        return shlex.join(map(str, words))

    def train(self, temperature: float) -> str:
        out = self.folder.with_name(f"{self.folder.name}-T{temperature:g}")
        where = self.data or self.trained_on
        words = ["sic", "train", where, "--weights", self.folder, "-T", f"{temperature:g}", "--out", out]
        return shlex.join(map(str, words))


def strangers(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports whose image shows another class, that lie among the training images of another class, or that are on
    average more like those than like the images of their own class."""
    samples = [sample for sample in examined.splits["train"] if len(sample.labels) == 1]
    labels = {sample.id: sample.labels[0] for sample in samples}
    sizes = Counter(labels.values())
    overlap = _overlap(examined, examined.latents.of([sample.id for sample in samples]))
    others_only = overlap.clone()
    for index, support in enumerate(examined.supports):
        others_only[index, [sample.id == support.source for sample in samples]] = torch.nan
    resembling = resembling_others(others_only, examined.labels.tolist(), [labels[sample.id] for sample in samples])
    unlike = {each.support: each for each in resembling}
    found = []
    for index, support in enumerate(examined.supports):
        number = min(NEIGHBOURS, max(1, sizes[support.label] - 1))
        nearest = overlap[index].topk(min(number + 1, len(samples))).indices.tolist()
        near = [samples[row] for row in nearest if samples[row].id != support.source][:number]
        others = Counter(sample.labels[0] for sample in near if sample.labels[0] != support.label)
        other, theirs = others.most_common(1)[0] if others else (support.label, 0)
        truth = labels.get(support.source, support.label)
        reasons = [f"the data says {examined.classes[truth]}"] if truth != support.label else []
        if near and theirs >= MAJORITY * len(near):
            reasons.append(f"{theirs} of the {len(near)} most similar training images are {examined.classes[other]}")
        elif index in unlike:
            each = unlike[index]
            reasons.append(
                f"it resembles training images of {examined.classes[each.other]} more than those of its own class "
                f"({each.theirs:.0%} of its evidence on average, {each.own:.0%})"
            )
        if not reasons:
            continue
        found.append(
            Finding(
                "A support of the wrong class" if truth != support.label else "A support among another class",
                "serious",
                f"{examined.described(index)} is a support of {examined.classes[support.label]}, but "
                f"{' and '.join(reasons)}.",
                _exchange(examined, commands, index),
                [index],
                [support.source, *(sample.id for sample in near if sample.labels[0] == other)],
                {"share_of_other_class": theirs / max(len(near), 1), "limit": MAJORITY},
            )
        )
    return found


def coinciding(examined: Examined, commands: Commands) -> list[Finding]:
    """Pairs of supports of different classes that almost coincide: evidence for one is evidence for the other.

    The one that is less like the training images of its class should go.
    """
    overlap = _overlap(examined, examined.vectors)
    foreign = examined.labels[:, None] != examined.labels[None]
    pairs = [(a, b) for a, b in ((overlap >= COINCIDE) & foreign).nonzero().tolist() if a < b]
    found = []
    for a, b in sorted(pairs, key=lambda pair: -overlap[pair[0], pair[1]].item()):
        share = overlap[a, b].item()
        one, other = examined.described(a), examined.described(b)
        found.append(
            Finding(
                "Supports of two classes coincide",
                "serious",
                f"{one} and {other} are nearly the same to the model: they share {share:.0%} of their evidence.",
                _exchange(examined, commands, min(a, b, key=lambda index: _typicality(examined, index))),
                [a, b],
                [examined.supports[a].source, examined.supports[b].source],
                {"shared_evidence": share, "limit": COINCIDE},
            )
        )
    return found


def identical(examined: Examined, commands: Commands) -> list[Finding]:
    """Classes with supports that are nearly identical, so that one image counts several times."""
    overlap = _overlap(examined, examined.vectors)
    found = []
    for label, own in _by_class(examined).items():
        everyone = [(a, b) for a in own for b in own if a < b]
        limit = ONE_CASE if all(overlap[a, b] >= ONE_CASE for a, b in everyone) else SAME
        pairs = [(a, b) for a, b in everyone if overlap[a, b] >= limit]
        if not pairs:
            continue
        members = sorted({index for pair in pairs for index in pair})
        names = " and ".join(examined.described(index) for index in members)
        found.append(
            Finding(
                "Supports that are the same",
                "notice",
                f"{names} are nearly identical to the model: one image counts {len(members)} times.",
                commands.supports("reselect", examined.classes[label], "--varied")
                if _can_vary(examined, label, len(own))
                else commands.one_support(),
                members,
                [examined.supports[index].source for index in members],
                {"shared_evidence": max(overlap[a, b].item() for a, b in pairs), "limit": limit},
            )
        )
    return found


def unbalanced(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports that dominate the answers of their class in the validation images, and supports that never matter.

    A support dominates if its share of the evidence is closer to 1 than to its even share.
    """
    predictions = examined.predictions("validation")
    evidence, answered = predictions.evidence, predictions.answers
    found = []
    for label, own in _by_class(examined).items():
        rows = answered[:, label]
        if len(own) < 2 or not rows.any():
            continue
        mine = evidence[rows][:, own]
        shares = (mine / mine.sum(dim=1, keepdim=True).clamp_min(1e-12)).mean(dim=0).tolist()
        name, even, images = examined.classes[label], 1 / len(own), int(rows.sum())
        for index, share in zip(own, shares, strict=True):
            who = examined.described(index)
            numbers = {"mean_share": share, "even_share": even, "images": float(images)}
            if share > (1 + even) / 2:
                sentence = (
                    f"{who} gives {share:.0%} of the evidence in {images} answers {name}: the others hardly count."
                )
                command = commands.supports("reselect", name)
                found.append(Finding("A support that dominates", "notice", sentence, command, [index], numbers=numbers))
            elif share < EVEN * even:
                sentence = f"{who} gives only {share:.1%} of the evidence in {images} answers {name}: it never matters."
                command = commands.supports("drop", support_key(examined.supports, index))
                found.append(
                    Finding("A support that never matters", "notice", sentence, command, [index], numbers=numbers)
                )
    return found


def saturated(examined: Examined, commands: Commands) -> list[Finding]:
    """Classes whose evidence is so large that probabilities no longer separate clear images from others."""
    predictions = examined.predictions("validation")
    answered = predictions.answers
    medians = {
        label: predictions.scores[answered[:, label], label].median().item()
        for label in _by_class(examined)
        if answered[:, label].any()
    }
    over = [label for label, median in medians.items() if median > SATURATED]
    if not over:
        return []
    names = ", ".join(examined.classes[label] for label in over)
    temperature = examined.model.config.temperature
    return [
        Finding(
            "Evidence that saturates",
            "notice",
            f"Half of the answers {names} have a probability above 99.99 %, so differences in evidence no longer show. "
            f"A temperature above {temperature:g} would keep them.",
            commands.train(2 * temperature),
            numbers={"median_logit": max(medians[label] for label in over), "limit": SATURATED},
        )
    ]


def label_suspects(examined: Examined, commands: Commands) -> list[Finding]:
    """Training images with far more evidence from a support of another class than from any of their own."""
    predictions = examined.predictions("train")
    evidence, found = predictions.evidence, predictions.found
    best = torch.zeros_like(predictions.logits)
    for label, own in _by_class(examined).items():
        best[:, label] = evidence[:, own].amax(dim=1)
    suspects = []
    for row, (strongest, other) in enumerate(zip(*(values.tolist() for values in best.max(dim=1)), strict=True)):
        sample = examined.splits["train"][row]
        if len(sample.labels) == 1 and found[row, other]:
            ratio = strongest / max(best[row, sample.labels[0]].item(), 1e-6)
            if ratio >= TWICE:
                suspects.append((ratio, sample, other))
    if not suspects:
        return []
    suspects.sort(key=lambda suspect: -suspect[0])
    ratio, first, other = suspects[0]
    return [
        Finding(
            "Labels to check",
            "notice",
            f"{len(suspects)} training images look like another class than their label. The first is "
            f"{first.id}, labelled {examined.names(first)[0]}: a support of {examined.classes[other]} gives it "
            f"{ratio:.1f} times as much evidence as any support of its own class.",
            commands.explain(first.path),
            images=[sample.id for _, sample, _ in suspects],
            numbers={"times": ratio, "limit": TWICE},
        )
    ]


def _overlap(examined: Examined, latents: Tensor) -> Tensor:
    """S×n, cos^B: the share of a support's largest evidence that images with these latents get."""
    units, directions = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (examined.vectors, latents))
    return (units @ directions.T).clamp(0, 1) ** examined.model.config.b


def _can_vary(examined: Examined, label: int, number: int) -> bool:
    """Whether a class has training images that differ; otherwise training has collapsed it to a point."""
    ids = [sample.id for sample in examined.splits["train"] if sample.labels == (label,)]
    if len(ids) < 2:
        return False
    latents = np.asarray(examined.latents.of(ids), dtype=np.float32)
    chosen = directions(latents)[select_varied(latents, number, 0)]
    return bool(((chosen @ chosen.T).clip(0, 1) ** examined.model.config.b).min() < ONE_CASE)


def _typicality(examined: Examined, index: int) -> float:
    """Mean overlap of a support with the training images of its class."""
    own = [sample.id for sample in examined.splits["train"] if sample.labels == (examined.supports[index].label,)]
    return _overlap(examined, examined.latents.of(own))[index].mean().item() if own else 0.0


def _exchange(examined: Examined, commands: Commands, index: int) -> str:
    """The command that replaces a support with the most typical image of its class, or drops it if there is none."""
    free = [one.id for one in examined.candidates(examined.supports[index].label) if not one.support]
    name = support_key(examined.supports, index)
    return commands.supports("replace", name, free[0]) if free else commands.supports("drop", name)


def _by_class(examined: Examined) -> dict[int, list[int]]:
    """The supports of each class."""
    result: dict[int, list[int]] = {}
    for index, support in enumerate(examined.supports):
        result.setdefault(support.label, []).append(index)
    return result
