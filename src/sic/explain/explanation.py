"""Everything that explains one prediction, in one place: figure and prose are drawn from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sic.explain.contributions import support_contributions
from sic.methods import SIC, Answered, Classifier, Contributions
from sic.supports import Support


@dataclass
class SupportCase:
    """One support of an explained class."""

    index: int
    support: Support
    evidence: float
    """What it adds to the logit, `sim(f⁺, v) / T`; for the NW-Head to the probability."""
    evidence_map: Tensor | None
    """H×W, contributions of the test image's pixels to this evidence; None where nobody asked for it."""
    own: Contributions | None
    """What the support vector is made of, on the support's own image; None where the image is not kept, and where a
    method cannot say."""
    image: Tensor | None
    """3×H×W."""


@dataclass
class ClassExplanation:
    """Why one class has its logit."""

    name: str
    logit: float
    probability: float
    contributions: Contributions
    """Of the logit, without leading dimensions."""
    cases: list[SupportCase]

    @property
    def yes(self) -> bool:
        """Whether the model finds the class in the image."""
        return self.probability >= 0.5


@dataclass
class Explanation:
    """One image and the explained classes, the predicted ones first."""

    image: Tensor
    """3×H×W, as the model sees it."""
    title: str
    bias: float
    similar_case: bool
    classes: list[ClassExplanation]
    labels: list[str]
    """The predicted classes; empty where nothing is similar and several could be."""
    nearest: str
    """The class of the highest probability."""
    probabilities: dict[str, float]
    truth: str | None = None
    method: str = "sic"

    @property
    def residual(self) -> float:
        """Largest gap between a logit and the sum of its parts."""
        return torch.stack([explained.contributions.residual for explained in self.classes]).abs().max().item()

    @property
    def text(self) -> str:
        """A plain-language reading."""
        from sic.explain.prose import read

        return read(self)

    def save(self, path: str | Path) -> None:
        """Draw the figure to a file (PNG, PDF or SVG by its suffix)."""
        from sic.explain.figure import draw

        draw(self, Path(path))


MOST = 10
"""Cases shown of a class where there may be thousands of them."""


def explain_classes(
    classifier: Classifier,
    supports: list[Support],
    names: list[str],
    image: Tensor,
    classes: list[int],
    known: Mapping[int, Contributions] | None = None,
) -> list[ClassExplanation]:
    """Explain the logits of `classes` for one image 3×H×W."""
    answered = classifier.answered(image[None])
    return explain_answers(classifier, supports, names, answered, [classes], known, evidence_maps=True)[0]


def explain_answers(
    classifier: Classifier,
    supports: list[Support],
    names: list[str],
    answered: Answered,
    classes: Sequence[Sequence[int]],
    known: Mapping[int, Contributions] | None = None,
    evidence_maps: bool = False,
) -> list[list[ClassExplanation]]:
    """Explain the logits of some `classes` of each image: one backward pass for the first class of all images, one for
    the second, and so on; with `evidence_maps` also one for each case of an image.

    `known`: support contributions by support, where the caller has them already; the others are computed.
    """
    probabilities = classifier.probabilities(answered.logits)
    evidence = answered.evidence.tolist()
    owners: dict[int, list[int]] = {}
    for index, owner in enumerate(classifier.case_classes):
        owners.setdefault(owner, []).append(index)
    shown = [
        {label: _shown(classifier, values, owners.get(label, [])) for label in labels}
        for values, labels in zip(evidence, classes, strict=True)
    ]
    flat = [[index for cases in each.values() for index in cases] for each in shown]
    images = answered.images
    own = dict(known or {})
    if isinstance(classifier, SIC):
        missing = {index for cases in flat for index in cases if index not in own}
        own |= own_contributions(classifier, supports, sorted(missing))
    speaking = answered.explain_evidence(as_rows(flat, images)).maps if evidence_maps and any(flat) else None
    logits = answered.explain(as_rows(classes, images))
    pictures = {index: _image(supports[index], images) for index in {index for cases in flat for index in cases}}
    result = []
    for n, labels in enumerate(classes):
        slots = {index: slot for slot, index in enumerate(flat[n])}
        of_image = []
        for k, label in enumerate(labels):
            cases = [
                SupportCase(
                    index,
                    supports[index],
                    evidence[n][index],
                    None if speaking is None else speaking[n, slots[index]],
                    own.get(index),
                    pictures[index],
                )
                for index in sorted(shown[n][label], key=lambda index: -evidence[n][index])
            ]
            found = logits.at((n, k))
            of_image.append(
                ClassExplanation(names[label], found.value.item(), probabilities[n, label].item(), found, cases)
            )
        result.append(of_image)
    return result


def as_rows(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Lists of different lengths as N×K; what is missing repeats the first, or is 0 where there is none."""
    longest = max(map(len, rows))
    full = [[*row, *[row[0] if row else 0] * (longest - len(row))] for row in rows]
    return torch.tensor(full, device=like.device)


def _shown(classifier: Classifier, evidence: Sequence[float], cases: list[int]) -> list[int]:
    """Of a class's cases all that add up, else the most influential ones."""
    return cases if classifier.complete else sorted(cases, key=lambda index: -evidence[index])[:MOST]


def _image(support: Support, like: Tensor) -> Tensor | None:
    if support.image is None:
        return None
    return torch.from_numpy(support.image.copy()).permute(2, 0, 1).to(like) / 255


def own_contributions(classifier: SIC, supports: Sequence[Support], indices: Sequence[int]) -> dict[int, Contributions]:
    """Support contributions of those supports (indices) whose image is kept."""
    shown = [index for index in indices if supports[index].image is not None]
    if not shown:
        return {}
    like = classifier.support_vectors
    images = torch.stack([image for index in shown if (image := _image(supports[index], like)) is not None])
    own = support_contributions(classifier, images, shown)
    return {index: own.at(i) for i, index in enumerate(shown)}
