"""Which test images a person should see: right ones, wrong ones, those where the model is least certain; confusions."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from sic.data.labels import split_targets
from sic.predictions import Predictions


@dataclass(frozen=True)
class Case:
    """An image and the classes whose logits are to be explained for it, the answer first."""

    row: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """Cases to look at, and of how many they were picked."""

    right: list[Case]
    wrong: list[Case]
    unsure: list[Case]
    all_right: int
    all_wrong: int


@dataclass(frozen=True)
class Confusion:
    """Images that show `truth`, not `said`, and were taken for `said`."""

    truth: int
    said: int
    rows: list[int]


def select(predictions: Predictions, number: int, seed: int = 0) -> Selection:
    """Up to `number` of each kind, of as many classes as possible, no image twice.

    An answer is an image's best class (single) or each class of an image that is found or missed (multi). Right ones
    are drawn at random, for the best would flatter; of the wrong ones those that the model was surest of; then the
    answers nearest to the limit of 50 %.
    """
    samples, scores = predictions.samples, predictions.scores
    if predictions.task == "single":
        answers = [(row, label) for row, label in enumerate(predictions.nearest.tolist())]
        right = {answer for answer, good in zip(answers, predictions.right.tolist(), strict=True) if good}
        strength = scores.max(dim=1).values
        surest = [answers[row] for row in strength.argsort(descending=True).tolist()]
        limit = [answers[row] for row in strength.abs().argsort().tolist()]
    else:
        truth, counts = split_targets(predictions.targets)
        found = predictions.answers & counts
        right = set(map(tuple, (found & truth.bool()).nonzero().tolist()))
        wrong = (found != truth.bool()) & counts
        answers = [*right, *map(tuple, wrong.nonzero().tolist())]
        surest = sorted(answers, key=lambda answer: -abs(scores[answer].item()))
        near = scores.abs().masked_fill(~counts, torch.inf).flatten().argsort()[: 50 * number].tolist()
        limit = [divmod(position, scores.shape[1]) for position in near]
    mistakes = [answer for answer in surest if answer not in right]
    shuffled = np.random.default_rng(seed).permutation(np.asarray(sorted(right)).reshape(-1, 2)).tolist()
    taken: set[int] = set()
    shown = [_varied(order, number, taken) for order in (mistakes, limit, map(tuple, shuffled))]

    def explained(row: int, label: int) -> Case:
        """Beside a wrong answer, the right one."""
        missed = samples[row].labels[:1] if predictions.task == "single" and label not in samples[row].labels else ()
        return Case(row, (label, *missed))

    wrong_cases, unsure, right_cases = ([explained(*answer) for answer in answers] for answers in shown)
    return Selection(right_cases, wrong_cases, unsure, len(right), len(mistakes))


def _varied(ordered: Iterable[tuple[int, int]], number: int, taken: set[int]) -> list[tuple[int, int]]:
    """The first `number` of images that are not `taken` yet; a class comes again only after all others."""
    by_class: dict[int, list[tuple[int, int]]] = defaultdict(list)
    seen = set(taken)
    for row, label in ordered:
        if row not in seen:
            seen.add(row)
            by_class[label].append((row, label))
    rounds = [(turn, position) for position, group in enumerate(by_class.values()) for turn in range(len(group))]
    groups = list(by_class.values())
    chosen = [groups[position][turn] for turn, position in sorted(rounds)][:number]
    taken |= {row for row, _ in chosen}
    return chosen


def confusions(predictions: Predictions) -> list[Confusion]:
    """Most frequent first; of equals those that the model was surer of. Single: answers below the limit count too."""
    _, counts = split_targets(predictions.targets)
    scores = predictions.scores
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (sample, labels) in enumerate(zip(predictions.samples, predictions.labels, strict=True)):
        for label in labels:
            if label not in sample.labels and counts[row, label]:
                for true in sample.labels:
                    pairs[true, label].append(row)
    return [
        Confusion(true, label, sorted(rows, key=lambda row: -scores[row, label].item()))
        for (true, label), rows in sorted(
            pairs.items(), key=lambda item: (-len(item[1]), -max(scores[row, item[0][1]].item() for row in item[1]))
        )
    ]
