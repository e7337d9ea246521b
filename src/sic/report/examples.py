"""The images that the report shows: correct, wrong and uncertain ones, and confused classes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sic.data.labels import split_targets
from sic.explain import Explanation
from sic.explain.html import ClassView, class_view
from sic.explain.picture import drawing_uri
from sic.explain.prose import answer, percent
from sic.model import Model
from sic.predictions import Predictions
from sic.report.classes import SupportCard

EXAMPLES = 4
"""Images shown of each confused pair of classes."""


@dataclass(frozen=True)
class Example:
    """An image and the classes to explain for it, the predicted one first."""

    row: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """The examples of each kind, and how many there are in all."""

    right: list[Example]
    wrong: list[Example]
    unsure: list[Example]
    all_right: int
    all_wrong: int


@dataclass(frozen=True)
class Confusion:
    """Images of class `truth` for which the model predicts `said`."""

    truth: int
    said: int
    rows: list[int]


def select(predictions: Predictions, number: int, seed: int = 0) -> Selection:
    """Up to `number` examples of each kind, from as many classes as possible, and no image twice.

    An answer is the predicted class of an image that has a similar case (single), or each class of an image that is
    found or missed (multi). Correct answers are drawn at random, because the best ones would flatter the model; wrong
    answers are the most confident ones; uncertain answers are those closest to 50 %, on either side.
    """
    samples, scores = predictions.samples, predictions.scores
    if predictions.task == "single":
        nearest = [(row, label) for row, label in enumerate(predictions.nearest.tolist())]
        strength, answered = scores.max(dim=1).values, predictions.similar_case
        right = {nearest[row] for row in (predictions.right & answered).nonzero()[:, 0].tolist()}
        surest = [nearest[row] for row in strength.argsort(descending=True).tolist() if answered[row]]
        limit = [nearest[row] for row in strength.abs().argsort().tolist()]
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

    def explained(row: int, label: int) -> Example:
        """A wrong answer is explained beside the true class."""
        missed = samples[row].labels[:1] if predictions.task == "single" and label not in samples[row].labels else ()
        return Example(row, (label, *missed))

    wrong_examples, unsure, right_examples = ([explained(*answer) for answer in answers] for answers in shown)
    return Selection(right_examples, wrong_examples, unsure, len(right), len(mistakes))


def _varied(ordered: Iterable[tuple[int, int]], number: int, taken: set[int]) -> list[tuple[int, int]]:
    """The first `number` answers of images that are not `taken` yet; every class once before any class twice."""
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
    """Confused pairs of classes, the most frequent first and, among equals, the most confident; with single labels also
    answers below 50 %."""
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


@dataclass(frozen=True)
class ExampleView:
    """One image."""

    id: str
    answer: str
    """The prediction with its probability."""
    also: list[str]
    """Other classes above 50 %, with their probabilities."""
    right: bool
    similar_case: bool
    truth: list[str]
    text: str
    classes: list[ClassView]
    explanation: Explanation


def example_views(
    model: Model, examples: Sequence[Example], predictions: Predictions, supports: Sequence[SupportCard]
) -> Iterator[ExampleView]:
    """Explain the classes of examples, with matches if their images are kept; `supports`: all of the model's."""
    paths = [predictions.samples[example.row].path for example in examples]
    wanted = [[model.classes[label] for label in example.classes] for example in examples]
    kept = any(support.image is not None for support in supports)
    explanations = model.explain_many(paths, wanted, matches=kept)
    for example, explanation in zip(examples, explanations, strict=True):
        yield _example_view(example, explanation, predictions, supports)


def _example_view(
    example: Example, explanation: Explanation, predictions: Predictions, supports: Sequence[SupportCard]
) -> ExampleView:
    sample, truth = predictions.samples[example.row], predictions.truth(example.row)
    if predictions.task == "single":
        right = any(name in truth for name in explanation.labels)
    else:
        asked = explanation.classes[0].name
        right = (asked in explanation.labels) == (asked in truth)
    said = explanation.labels
    drawn = {support.index: support for support in supports}
    return ExampleView(
        sample.id,
        answer(explanation),
        [f"{name} ({percent(explanation.probabilities[name])})" for name in explanation.found if name not in said],
        right,
        explanation.similar_case,
        truth,
        explanation.text,
        [class_view(explanation, part, part.name in truth, drawn) for part in explanation.classes],
        explanation,
    )


@dataclass(frozen=True)
class ConfusionView:
    """Two confused classes, with some of the images."""

    truth: int
    said: int
    number: int
    of: int
    """Number of images of class `truth`."""
    examples: list[tuple[str, str]]
    """Id and picture."""


def confusion_view(model: Model, predictions: Predictions, pair: Confusion) -> ConfusionView:
    chosen = [predictions.samples[row] for row in pair.rows[:EXAMPLES]]
    examples = [(one.id, drawing_uri(model.tensor(one.path).permute(1, 2, 0).cpu().numpy())) for one in chosen]
    of = sum(pair.truth in sample.labels for sample in predictions.samples)
    return ConfusionView(pair.truth, pair.said, len(pair.rows), of, examples)
