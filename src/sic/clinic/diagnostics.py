"""What is wrong with a model's supports, in words. This file: what latents alone show.

Where a limit comes from is said beside it. "The demo" is a model of the built-in birds (`sic demo`: 94 % on 180
validation images, 3 supports per class), which is healthy: limits lie well outside of what it shows.
"""

from collections import Counter

import torch
from torch import Tensor

from sic.clinic.examined import Examined
from sic.clinic.findings import Commands, Finding
from sic.clinic.pixels import background, negative_mass
from sic.data.dataset import Progress
from sic.supports import support_key

NEIGHBOURS = 10
"""Training images that a support is compared with; fewer where its class has no more."""
MAJORITY = 0.6
"""Share of a support's nearest training images that belong to one other class. In the demo at most 0.4 (birds that lack
parts); as supports of another class, 98 % of its training images would be found by it."""
SAME = 0.999
"""Share of evidence (cos^B) that two supports of a class have in common. Copies of an image: 1; the demo: to 0.996."""
COINCIDE = 0.9
"""The same for supports of two classes: an image of one then has 90 % of its evidence for the other, too. The demo: to
0.86, for two birds that lack parts."""
EVEN = 0.25
"""A support never matters below this part of its even share of the evidence (1/n of n supports). The demo: 0.69 and
more."""
SATURATED = 9.2
"""Median logit of a class's answers: a probability of 0.9999. In the demo 3 to 6."""
TWICE = 2.0
"""A training image is a label suspect if another class's best support adds that many times what its own class's best
does. In the demo one or no image of 800, while 8 and 15 are merely nearer to another class."""


def diagnose(
    examined: Examined, commands: Commands, pixels: bool = True, progress: Progress | None = None
) -> list[Finding]:
    """All findings, the serious ones first. Without `pixels` only those that latents show, at once."""
    found = strangers(examined, commands)
    known = {index for finding in found for index in finding.supports}
    for look in (coinciding, identical, unbalanced):
        # What else is wrong with a support of the wrong class follows from that.
        found += [finding for finding in look(examined, commands) if known.isdisjoint(finding.supports)]
    found += label_suspects(examined, commands)
    found += saturated(examined, commands)
    if pixels:
        found += negative_mass(examined, commands)
        found += background(examined, commands, progress)
    return sorted(found, key=lambda finding: finding.severity != "serious")


def strangers(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports whose image shows another class, or that lie among the training images of another class."""
    samples = [sample for sample in examined.splits["train"] if len(sample.labels) == 1]
    labels = {sample.id: sample.labels[0] for sample in samples}
    sizes = Counter(labels.values())
    overlap = _overlap(examined, examined.latents.of([sample.id for sample in samples]))
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
            reasons.append(f"of the {len(near)} training images most like it {theirs} are {examined.classes[other]}")
        if not reasons:
            continue
        found.append(
            Finding(
                "A support of the wrong class" if truth != support.label else "A support among another class",
                "serious",
                f"{examined.described(index)} stands for {examined.classes[support.label]}, but "
                f"{' and '.join(reasons)}.",
                _exchange(examined, commands, index),
                [index],
                [support.source, *(sample.id for sample in near if sample.labels[0] == other)],
                {"share_of_other_class": theirs / max(len(near), 1), "limit": MAJORITY},
            )
        )
    return found


def coinciding(examined: Examined, commands: Commands) -> list[Finding]:
    """Pairs of supports of different classes that almost coincide: what speaks for one speaks for the other.

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
                f"{one} and {other} are nearly the same to the model: of the evidence that one gives, the "
                f"other gives {share:.0%} as well.",
                _exchange(examined, commands, min(a, b, key=lambda index: _typicality(examined, index))),
                [a, b],
                [examined.supports[a].source, examined.supports[b].source],
                {"shared_evidence": share, "limit": COINCIDE},
            )
        )
    return found


def identical(examined: Examined, commands: Commands) -> list[Finding]:
    """Classes with supports that are nearly identical: they count one case several times."""
    overlap = _overlap(examined, examined.vectors)
    found = []
    for label, own in _by_class(examined).items():
        pairs = [(a, b) for a in own for b in own if a < b and overlap[a, b] >= SAME]
        if not pairs:
            continue
        members = sorted({index for pair in pairs for index in pair})
        names = " and ".join(examined.described(index) for index in members)
        found.append(
            Finding(
                "Supports that are the same",
                "notice",
                f"{names} are nearly identical to the model: they count one case {len(members)} times.",
                commands.supports("reselect", examined.classes[label]),
                members,
                [examined.supports[index].source for index in members],
                {"shared_evidence": max(overlap[a, b].item() for a, b in pairs), "limit": SAME},
            )
        )
    return found


def unbalanced(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports that dominate the answers of their class on the validation images, and supports that never matter.

    A support dominates if it gives more than half of the way from its even share to all of the evidence.
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
    """Classes whose evidence is so large that probabilities do not tell clear cases from others any more."""
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
            f"Half of the answers {names} have a probability of more than 99.99 %, whatever the image: differences in "
            f"evidence are lost there. A temperature above {temperature:g} keeps them.",
            commands.train(2 * temperature),
            numbers={"median_logit": max(medians[label] for label in over), "limit": SATURATED},
        )
    ]


def label_suspects(examined: Examined, commands: Commands) -> list[Finding]:
    """Training images with far more evidence from another class's supports than from any of their own."""
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
            "Labels to look at",
            "notice",
            f"Training images that look like another class than their label says: {len(suspects)}. The first is "
            f"{first.id}, labelled {examined.names(first)[0]}: a support of {examined.classes[other]} gives it "
            f"{ratio:.1f} times as much evidence as any of its own.",
            commands.explain(first.path),
            images=[sample.id for _, sample, _ in suspects],
            numbers={"times": ratio, "limit": TWICE},
        )
    ]


def _overlap(examined: Examined, latents: Tensor) -> Tensor:
    """S×n, cos^B: the share of a support's full evidence that images with these latents get."""
    units, directions = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (examined.vectors, latents))
    return (units @ directions.T).clamp(0, 1) ** examined.model.config.b


def _typicality(examined: Examined, index: int) -> float:
    """Mean overlap of a support with the training images of its class."""
    own = [sample.id for sample in examined.splits["train"] if sample.labels == (examined.supports[index].label,)]
    return _overlap(examined, examined.latents.of(own))[index].mean().item() if own else 0.0


def _exchange(examined: Examined, commands: Commands, index: int) -> str:
    """The most typical image of the class that is no support yet takes the support's place."""
    free = [one.id for one in examined.candidates(examined.supports[index].label) if not one.support]
    name = support_key(examined.supports, index)
    return commands.supports("replace", name, free[0]) if free else commands.supports("drop", name)


def _by_class(examined: Examined) -> dict[int, list[int]]:
    """The supports of each class."""
    result: dict[int, list[int]] = {}
    for index, support in enumerate(examined.supports):
        result.setdefault(support.label, []).append(index)
    return result
