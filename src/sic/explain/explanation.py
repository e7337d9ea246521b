"""The explanation of one prediction; every rendering is made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.calibration import Calibration
from sic.explain.contributions import support_contributions, support_image
from sic.explain.matches import Matches, combined, find_matches
from sic.methods import SIC, Answered, Classifier, Contributions
from sic.methods.sic import AnsweredSIC
from sic.predictions import THRESHOLD
from sic.supports import Support, support_names


@dataclass
class SupportEvidence:
    """One support of an explained class, with its evidence."""

    index: int
    support: Support
    name: str
    """Its name for people, such as "Beagle #2" (`support_names`)."""
    evidence: float
    """What it adds to the logit, `sim(f⁺, v) / T`; for the NW-Head, to the probability."""
    evidence_map: Tensor | None
    """H×W, contributions of the pixels to this evidence; None if not requested."""
    own: Contributions | None
    """Support contributions on the support's own image; None if the image is not kept, or if the method has none."""
    image: Tensor | None
    """3×H×W."""
    matches: Matches | None = None
    """The evidence, region by region; None if not requested."""
    strength: float | None = None
    """`‖f⁺‖ / T`, the same for all cases of an image; None if the evidence is no similarity."""

    @property
    def likeness(self) -> float | None:
        """`|cos|^B`, the evidence as a share of the strength: 1 for an image that differs in strength alone."""
        return None if self.strength is None else self.evidence / max(self.strength, 1e-12)

    def __repr__(self) -> str:
        """One line: what it adds, and its name."""
        return f"<{self.evidence:+.2f} {self.name}>"


@dataclass
class ClassExplanation:
    """The explanation of the logit of one class."""

    name: str
    logit: float
    probability: float
    contributions: Contributions
    """Contributions to the logit, without leading dimensions."""
    cases: list[SupportEvidence]
    alike: float | None = None
    """The lowest likeness between two of the cases; None with fewer than two, or if there is no likeness."""
    specific: Contributions | None = None
    """Contributions to how much the logit exceeds the mean logit of all classes; None if not requested."""

    def __repr__(self) -> str:
        """One line: the class, its score and its cases."""
        return f"<{self.name}: score {self.logit:.2f}, probability {self.probability:.2f}, cases {self.cases}>"

    @property
    def matches(self) -> Matches | None:
        """The matches of all cases added up: with the bias, they add up to the logit. None if not requested."""
        found = [case.matches for case in self.cases if case.matches is not None]
        return combined(found) if found else None

    @property
    def yes(self) -> bool:
        """Whether the model finds the class in the image."""
        return self.probability >= THRESHOLD


@dataclass(frozen=True)
class Difference:
    """A region of the image and its evidence for two classes."""

    number: int
    """As in `Match.number`."""
    evidence: float
    """For the class."""
    other: float
    """For the class that it is compared with."""

    @property
    def value(self) -> float:
        """What the region adds to the difference of the scores."""
        return self.evidence - self.other


def contrast(explained: ClassExplanation, other: ClassExplanation) -> list[Difference]:
    """The difference of two scores, region by region, largest first, and the rest; the differences add up to it.

    A region counts with all its pixels for both classes, whether a case of them matches it or not. Matches are needed.
    """
    both = [each.matches for each in (explained, other) if each.matches is not None]
    maps, areas = [each.evidence_map for each in both], both[0].areas
    numbers = sorted({*areas.unique().tolist()} - {0})
    regions = [Difference(n, *(each[areas == n].sum().item() for each in maps)) for n in numbers]
    constants = [sum(part.image.constant for part in each.parts) for each in both]
    rest = [each[areas == 0].sum().item() + apart for each, apart in zip(maps, constants, strict=True)]
    return [*sorted(regions, key=lambda difference: -difference.value), Difference(0, *rest)]


@dataclass(repr=False)
class Explanation:
    """The explanation of the prediction for one image; a notebook shows its figure."""

    image: Tensor
    """3×H×W, the input of the model."""
    title: str
    bias: float
    similar_case: bool
    classes: list[ClassExplanation]
    labels: list[str]
    """The predicted classes; in multi-label data, empty without a similar case."""
    nearest: str
    """The class with the highest probability."""
    probabilities: dict[str, float]
    truth: str | None = None
    method: str = "sic"
    versus: str | None = None
    """The class that the first one is compared with."""
    next_best: bool = False
    """Whether `versus` is the next best class because the best one itself was asked for."""
    calibration: Calibration = Calibration()
    """How scores become probabilities."""
    promised: bool = False
    """Whether the promise of the model covers the answer (see `Model.promise`)."""
    exclusive: bool = False
    """Whether classes compete: probabilities are then a softmax of all scores and add up to 1."""

    def limit(self, explained: ClassExplanation) -> float:
        """The score with which the class of `explained` has a probability of 50 %, where classes do not compete."""
        return self.calibration.limit(explained.name == self.nearest)

    @property
    def contrast(self) -> list[Difference]:
        """Why the first class scores more than `versus`, region by region; empty if that was not asked for."""
        return contrast(*self.classes[:2]) if self.versus is not None else []

    @property
    def found(self) -> list[str]:
        """All classes that the model finds in the image, also those that are not the answer."""
        return [name for name, probability in self.probabilities.items() if probability >= THRESHOLD]

    @property
    def residual(self) -> float:
        """The largest gap between a logit (or, if it is explained, how much it exceeds the mean logit) and the sum of
        its contributions."""
        sums = [each for one in self.classes for each in (one.contributions, one.specific) if each is not None]
        return torch.stack([each.residual for each in sums]).abs().max().item()

    @property
    def matches(self) -> dict[int, Matches]:
        """The matches of every case shown, by the index of the case; empty if they were not requested."""
        return {
            case.index: case.matches
            for explained in self.classes
            for case in explained.cases
            if case.matches is not None
        }

    def __repr__(self) -> str:
        """One line: the answer and the classes explained."""
        answer = ", ".join(self.labels) if self.similar_case else f"no similar case (nearest: {self.nearest})"
        return f"<Explanation of {self.title!r}: {answer}; explains {', '.join(one.name for one in self.classes)}>"

    def _repr_png_(self) -> bytes:
        """The figure, for notebooks."""
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "figure.png")
            return (Path(folder) / "figure.png").read_bytes()

    @property
    def text(self) -> str:
        """The explanation in words."""
        from sic.explain.prose import read

        return read(self)

    def save(self, path: str | Path) -> None:
        """Draw the explanation.

        Args:
            path: The file to write; its suffix gives the format (.png, .pdf or .svg).
        """
        from sic.explain.figure import draw

        draw(self, Path(path))


MOST = 10
"""The most cases shown per class, for methods with thousands of them."""


def explain_answers(
    classifier: Classifier,
    supports: list[Support],
    names: list[str],
    answered: Answered,
    classes: Sequence[Sequence[int]],
    known: Mapping[int, Contributions] | None = None,
    evidence_maps: bool = False,
    matches: bool = False,
    specific: bool = False,
) -> list[list[ClassExplanation]]:
    """Explain the logits of some classes of each image.

    This takes one backward pass for the first class of all images, one for the second, and so on.

    Args:
        classifier: The model.
        supports: Its supports.
        names: The names of its classes.
        answered: The images and the model's answers.
        classes: For each image, the indices of the classes to explain.
        known: Support contributions that are known already, by support; the others are computed.
        evidence_maps: Also compute the map of every case, with one more backward pass for each case of an image.
        matches: Also split the evidence of every case into regions, where the method can (see `sic.explain.matches`).
        specific: Also explain how much the logits exceed the mean logit, with as many backward passes again.
    """
    probabilities = classifier.probabilities(answered.logits.double()).tolist()
    evidence = answered.evidence.tolist()
    owners: dict[int, list[int]] = {}
    for index, owner in enumerate(classifier.support_labels):
        owners.setdefault(owner, []).append(index)
    shown = [
        {label: _shown(classifier, values, owners.get(label, [])) for label in labels}
        for values, labels in zip(evidence, classes, strict=True)
    ]
    flat = [[index for cases in each.values() for index in cases] for each in shown]
    images = answered.images
    called = support_names(supports, names)
    own = dict(known or {})
    if isinstance(classifier, SIC):
        missing = {index for cases in flat for index in cases if index not in own}
        own |= own_contributions(classifier, supports, sorted(missing))
    found_matches = find_matches(answered, supports, flat) if matches and isinstance(answered, AnsweredSIC) else None
    speaking: list[dict[int, Tensor]] = [{} for _ in flat]
    if evidence_maps and found_matches is not None:
        speaking = [{index: found.evidence_map for index, found in each.items()} for each in found_matches]
    elif evidence_maps and any(flat):
        maps = answered.explain_evidence(as_rows(flat, images)).maps
        speaking = [dict(zip(cases, rows, strict=False)) for cases, rows in zip(flat, maps, strict=True)]
    strengths = answered.strengths.tolist() if isinstance(answered, AnsweredSIC) else None
    asked = as_rows(classes, images)
    logits = answered.explain(asked)
    above = answered.explain_specific(asked) if specific else None
    values = logits.value.tolist()
    every = {label: cases for each in shown for label, cases in each.items()}
    alike = {label: _alike(classifier, cases) for label, cases in every.items()}
    pictures = {index: support_image(supports[index], images) for index in {index for cases in flat for index in cases}}
    result = []
    for n, labels in enumerate(classes):
        of_image = []
        for k, label in enumerate(labels):
            cases = [
                SupportEvidence(
                    index,
                    supports[index],
                    called[index],
                    evidence[n][index],
                    speaking[n].get(index),
                    own.get(index),
                    pictures[index],
                    None if found_matches is None else found_matches[n][index],
                    None if strengths is None else strengths[n],
                )
                for index in sorted(shown[n][label], key=lambda index: -evidence[n][index])
            ]
            probability, found = probabilities[n][label], logits.at((n, k))
            beyond = None if above is None else above.at((n, k))
            name, logit = names[label], values[n][k]
            of_image.append(ClassExplanation(name, logit, probability, found, cases, alike[label], beyond))
        result.append(of_image)
    return result


def _alike(classifier: Classifier, cases: Sequence[int]) -> float | None:
    """The lowest likeness between two of these cases, `|cos|^B`."""
    if not isinstance(classifier, SIC) or len(cases) < 2:
        return None
    directions = F.normalize(classifier.support_vectors[list(cases)], dim=1)
    return float((directions @ directions.T).abs().min() ** classifier.b)


def as_rows(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Lists of different lengths as a tensor N×K, padded with their first element, or with 0 if they are empty."""
    longest = max(map(len, rows))
    full = [[*row, *[row[0] if row else 0] * (longest - len(row))] for row in rows]
    return torch.tensor(full, device=like.device)


def _shown(classifier: Classifier, evidence: Sequence[float], cases: list[int]) -> list[int]:
    """All cases of a class if they add up to the logit, else the most influential ones."""
    return cases if classifier.complete else sorted(cases, key=lambda index: -evidence[index])[:MOST]


def own_contributions(classifier: SIC, supports: Sequence[Support], indices: Sequence[int]) -> dict[int, Contributions]:
    """Support contributions by index, for the given supports whose image is kept."""
    shown = [index for index in indices if supports[index].image is not None]
    if not shown:
        return {}
    like = classifier.support_vectors
    images = torch.stack([image for index in shown if (image := support_image(supports[index], like)) is not None])
    own = support_contributions(classifier, images, shown)
    return {index: own.at(i) for i, index in enumerate(shown)}
