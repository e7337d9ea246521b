"""Checks of a model's supports that need only latents (`sic.clinic.pixels` has those that explain images).

Each limit has its reason beside it. "The demo" is a healthy model of the built-in birds (`sic demo`: 94 % on 180
validation images, 3 supports per class); the limits are well outside of its values.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from sic.clinic.advice import Advice, Commands, exchanges, first_that_helps, selections
from sic.clinic.examined import Examined
from sic.explain.prose import ONE_CASE
from sic.settings import RECIPES
from sic.supports import Edit, resembling_others

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
UNSATURATED = 7.0
"""The median logit that a higher temperature should lead to; a probability of 0.999."""
DOMINATES, IDLE = "A support that dominates", "A support that never matters"
TWICE = 2.0
"""The label of a training image is suspect if the best support of another class has this many times the evidence of the
best of its own. In two demos 0 and 1 of 800 images, while 8 and 15 are merely closer to another class."""


@dataclass(frozen=True)
class Finding:
    """A problem of the supports that a person should look at."""

    title: str
    severity: Literal["serious", "notice"]
    sentence: str
    command: str | None
    """The command that solves it, or shows it; None where nothing is advised."""
    supports: list[int] = field(default_factory=list)
    """The indices of the supports concerned."""
    images: list[str] = field(default_factory=list)
    """The ids of the images that show it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The measured values, and the limit."""
    tried: bool = False
    """Whether edits were tried against it; if so, and there is no command, none of them solves it."""


def strangers(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports whose image shows another class, that lie among the training images of another class, or that are on
    average more like those than like the images of their own class."""
    found = []
    for one in _strangers(examined, range(len(examined.supports))):
        support = examined.supports[one.index]
        advice = _advice(examined, commands, exchanges(examined, one.index))
        found.append(
            Finding(
                "A support of the wrong class" if one.wrong else "A support among another class",
                "serious",
                f"{examined.described(one.index)} is a support of {examined.classes[support.label]}, "
                f"but {' and '.join(one.reasons)}.",
                advice.command,
                [one.index],
                [support.source, *one.near],
                {"share_of_other_class": one.share, "limit": MAJORITY},
                advice.tried,
            )
        )
    return found


@dataclass(frozen=True)
class _Stranger:
    """A support that `strangers` names."""

    index: int
    wrong: bool
    """Whether the data says so."""
    reasons: list[str]
    near: list[str]
    """The most similar training images, as far as they show the other class."""
    share: float
    """The share of that class among them."""


def _strangers(examined: Examined, which: Sequence[int]) -> list[_Stranger]:
    """Those among some of the supports."""
    samples = [sample for sample in examined.splits["train"] if len(sample.labels) == 1]
    labels = {sample.id: sample.labels[0] for sample in samples}
    sizes = Counter(labels.values())
    chosen = [examined.supports[index] for index in which]
    overlap = _overlap(examined, examined.latents.of([sample.id for sample in samples]), examined.vectors[[*which]])
    others_only = overlap.clone()
    for row, support in enumerate(chosen):
        others_only[row, [sample.id == support.source for sample in samples]] = torch.nan
    owners = [support.label for support in chosen]
    resembling = resembling_others(others_only, owners, [labels[sample.id] for sample in samples])
    unlike = {each.support: each for each in resembling}
    found = []
    for row, support in enumerate(chosen):
        number = min(NEIGHBOURS, max(1, sizes[support.label] - 1))
        nearest = overlap[row].topk(min(number + 1, len(samples))).indices.tolist()
        near = [samples[place] for place in nearest if samples[place].id != support.source][:number]
        others = Counter(sample.labels[0] for sample in near if sample.labels[0] != support.label)
        other, theirs = others.most_common(1)[0] if others else (support.label, 0)
        truth = labels.get(support.source, support.label)
        reasons = [f"the data says {examined.classes[truth]}"] if truth != support.label else []
        if near and theirs >= MAJORITY * len(near):
            reasons.append(f"{theirs} of the {len(near)} most similar training images are {examined.classes[other]}")
        elif row in unlike:
            each = unlike[row]
            reasons.append(
                f"it resembles training images of {examined.classes[each.other]} more than those of its own class "
                f"({each.theirs:.0%} of its evidence on average, {each.own:.0%})"
            )
        if reasons:
            like = [sample.id for sample in near if sample.labels[0] == other]
            share = theirs / max(len(near), 1)
            found.append(_Stranger(which[row], truth != support.label, reasons, like, share))
    return found


def _sound(before: Examined, after: Examined) -> bool:
    """Whether the supports that an edit adds are no serious problem themselves."""
    known = set(before.supports)
    added = [index for index, support in enumerate(after.supports) if support not in known]
    pairs = _coinciding(after) if added else []
    return not any(a in added or b in added for a, b in pairs) and not (added and _strangers(after, added))


def coinciding(examined: Examined, commands: Commands) -> list[Finding]:
    """Pairs of supports of different classes that almost coincide: evidence for one is evidence for the other.

    The one that is less like the training images of its class should go.
    """
    found = []
    pairs = _coinciding(examined)
    for a, b in sorted(pairs, key=lambda pair: -pairs[pair]):
        share = pairs[a, b]
        less, more = sorted((a, b), key=lambda index: _typicality(examined, index))
        one, other = examined.described(a), examined.described(b)
        advice = _advice(examined, commands, [*exchanges(examined, less), *exchanges(examined, more)])
        found.append(
            Finding(
                "Supports of two classes coincide",
                "serious",
                f"{one} and {other} are nearly the same to the model: they share {share:.0%} of their evidence.",
                advice.command,
                [a, b],
                [examined.supports[a].source, examined.supports[b].source],
                {"shared_evidence": share, "limit": COINCIDE},
                advice.tried,
            )
        )
    return found


def _coinciding(examined: Examined) -> dict[tuple[int, int], float]:
    """The share of evidence that pairs of supports of different classes have in common, if it is `COINCIDE` or more."""
    overlap = _overlap(examined, examined.vectors)
    foreign = examined.labels[:, None] != examined.labels[None]
    return {(a, b): overlap[a, b].item() for a, b in ((overlap >= COINCIDE) & foreign).nonzero().tolist() if a < b}


def identical(examined: Examined, commands: Commands) -> list[Finding]:
    """Classes with supports that are nearly identical, so that one image counts several times."""
    found = []
    for label, own in _by_class(examined).items():
        pairs, limit = _same(examined, own)
        if not pairs:
            continue
        members = sorted({index for pair in pairs for index in pair})
        names = " and ".join(examined.described(index) for index in members)
        edits = [*selections(examined, label), *_fewer(examined, label)]
        advice = _advice(examined, commands, edits, partial(_has_same, label=label))
        found.append(
            Finding(
                "Supports that are the same",
                "notice",
                f"{names} are nearly identical to the model: one image counts {len(members)} times.",
                advice.command,
                members,
                [examined.supports[index].source for index in members],
                {"shared_evidence": max(pairs.values()), "limit": limit},
                advice.tried,
            )
        )
    return found


def _same(examined: Examined, own: Sequence[int]) -> tuple[dict[tuple[int, int], float], float]:
    """The share of evidence that nearly identical supports of a class have in common, and the limit for that."""
    overlap = _overlap(examined, examined.vectors[[*own]], examined.vectors[[*own]])
    shares = {(a, b): overlap[i, j].item() for i, a in enumerate(own) for j, b in enumerate(own) if i < j}
    limit = ONE_CASE if all(share >= ONE_CASE for share in shares.values()) else SAME
    return {pair: share for pair, share in shares.items() if share >= limit}, limit


def _has_same(examined: Examined, label: int) -> bool:
    return bool(_same(examined, _by_class(examined)[label])[0])


def _fewer(examined: Examined, label: int) -> list[Edit]:
    """Edits that leave a class fewer supports, as few as one."""
    number = len(_by_class(examined)[label])
    return [Edit.reselect(examined.classes[label], fewer) for fewer in range(number - 1, 0, -1)]


def unbalanced(examined: Examined, commands: Commands) -> list[Finding]:
    """Supports that dominate the answers of their class in the validation images, and supports that never matter.

    A support dominates if its share of the evidence is closer to 1 than to its even share.
    """
    found = []
    for label, own in _by_class(examined).items():
        shares, images = _shares(examined, own)
        name, dominant, idle = examined.classes[label], _dominant(shares), _idle(shares)
        for place, (index, share) in enumerate(zip(own, shares, strict=True)):
            who = examined.described(index)
            if place in dominant:
                title = DOMINATES
                sentence = (
                    f"{who} gives {share:.0%} of the evidence in {images} answers {name}: the others hardly count."
                )
                weakest = shares.index(min(shares))
                *images_instead, without = exchanges(examined, own[weakest])
                edits = [*selections(examined, label), *images_instead, *([without] if weakest in idle else [])]
            elif place in idle:
                title = IDLE
                sentence = f"{who} gives only {share:.1%} of the evidence in {images} answers {name}: it never matters."
                edits = exchanges(examined, index)[::-1]
            else:
                continue
            count = partial(_count, title=title, label=label)
            numbers = {"mean_share": share, "even_share": 1 / len(own), "images": float(images)}
            advice = _advice(examined, commands, edits, partial(_not_fewer, count=count, than=count(examined)))
            found.append(
                Finding(title, "notice", sentence, advice.command, [index], numbers=numbers, tried=advice.tried)
            )
    return found


def _shares(examined: Examined, own: Sequence[int]) -> tuple[list[float], int]:
    """The mean shares of the supports of a class in the evidence of its answers, and the number of these answers."""
    predictions = examined.predictions("validation")
    rows = predictions.answers[:, examined.supports[own[0]].label]
    if len(own) < 2 or not rows.any():
        return [1 / len(own)] * len(own), int(rows.sum())
    mine = predictions.evidence[rows][:, [*own]]
    return (mine / mine.sum(dim=1, keepdim=True).clamp_min(1e-12)).mean(dim=0).tolist(), int(rows.sum())


def _dominant(shares: Sequence[float]) -> list[int]:
    return [place for place, share in enumerate(shares) if len(shares) > 1 and share > (1 + 1 / len(shares)) / 2]


def _idle(shares: Sequence[float]) -> list[int]:
    return [place for place, share in enumerate(shares) if share < EVEN / len(shares)]


def _count(examined: Examined, title: str, label: int) -> int:
    """The number of supports of a class that dominate, or that never matter."""
    shares, _ = _shares(examined, _by_class(examined)[label])
    return len(_dominant(shares) if title == DOMINATES else _idle(shares))


def _not_fewer(examined: Examined, count: Callable[[Examined], int], than: int) -> bool:
    return count(examined) >= than


def saturated(examined: Examined, commands: Commands) -> list[Finding]:
    """Classes whose evidence is so large that probabilities no longer separate clear images from others.

    With a higher temperature, evidence is smaller in proportion; training further hardly changes it. Nothing is advised
    where T is chosen by the recipe, or where probabilities were calibrated after training, which undoes T.
    """
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
    config, largest = examined.model.config, max(medians[label] for label in over)
    sentence = (
        f"Half of the answers {names} have a probability above 99.99 %, so differences in evidence no longer show."
    )
    command = None
    recipe = RECIPES.get(config.training.get("recipe", "scratch"))
    if not config.calibration.images and recipe is not None and not recipe.projection_first:
        bias = examined.classifier.bias
        needed = examined.classifier.temperature * (largest - bias) / (UNSATURATED - bias)
        digits = 10.0 ** (math.floor(math.log10(needed)) - 1)
        temperature = float(f"{math.ceil(needed / digits) * digits:.2g}")
        selection = config.training.get("inference_supports", "nearest")
        command = commands.train(temperature, config.supports_per_class, selection)
        sentence += f" A temperature of {temperature:g} instead of {examined.classifier.temperature:g} would keep them."
    return [
        Finding(
            "Evidence that saturates",
            "notice",
            sentence,
            command,
            numbers={"median_logit": largest, "limit": SATURATED},
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


def _advice(
    examined: Examined,
    commands: Commands,
    edits: Iterable[Edit],
    remains: Callable[[Examined], bool] = lambda after: False,
) -> Advice:
    """As `first_that_helps`, without edits that add another serious problem."""
    return first_that_helps(examined, commands, edits, lambda after: remains(after) or not _sound(examined, after))


def _overlap(examined: Examined, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
    """S×n, cos^B: the share of a support's largest evidence that images with these latents get; `vectors`: those of S
    supports, by default of all."""
    vectors = examined.vectors if vectors is None else vectors
    units, directions = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (vectors, latents))
    return (units @ directions.T).clamp(0, 1) ** examined.model.config.b


def _typicality(examined: Examined, index: int) -> float:
    """Mean overlap of a support with the training images of its class."""
    own = [sample.id for sample in examined.splits["train"] if sample.labels == (examined.supports[index].label,)]
    return _overlap(examined, examined.latents.of(own))[index].mean().item() if own else 0.0


def _by_class(examined: Examined) -> dict[int, list[int]]:
    """The supports of each class."""
    result: dict[int, list[int]] = {}
    for index, support in enumerate(examined.supports):
        result.setdefault(support.label, []).append(index)
    return result
