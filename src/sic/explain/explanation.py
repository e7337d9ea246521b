"""Everything that explains one prediction, in one place: figure and prose are drawn from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sic.explain.contributions import support_contributions
from sic.methods import SIC, Classifier, Contributions
from sic.supports import Support


@dataclass
class SupportCase:
    """One support of an explained class."""

    index: int
    support: Support
    evidence: float
    """What it adds to the logit, `sim(f⁺, v) / T`; for the NW-Head to the probability."""
    evidence_map: Tensor
    """H×W, contributions of the test image's pixels to this evidence."""
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
    """Explain the logits of `classes` for one image 3×H×W: one backward pass per class and per case.

    `known`: support contributions by support, where the caller has them already.
    """
    with torch.no_grad():
        outputs, evidence = classifier.answer(image[None])
    probabilities = classifier.probabilities(outputs)[0]
    indices = _shown(classifier, evidence[0], classes)
    own = dict(known or {})
    if isinstance(classifier, SIC):
        own |= own_contributions(classifier, supports, [index for index in indices if index not in own])
    speaking = (
        classifier.explain_evidence(image[None], torch.tensor([indices], device=image.device)) if indices else None
    )
    logits = classifier.explain(image[None], torch.tensor([classes], device=image.device))
    result = []
    for position, label in enumerate(classes):
        cases = []
        for slot, index in enumerate(indices):
            if supports[index].label != label:
                continue
            assert speaking is not None
            picture = _image(supports[index], image)
            cases.append(
                SupportCase(
                    index,
                    supports[index],
                    speaking.value[0, slot].item(),
                    speaking.maps[0, slot],
                    own.get(index),
                    picture,
                )
            )
        cases.sort(key=lambda case: -case.evidence)
        value = logits.value[0, position]
        contributions = Contributions(
            logits.maps[0, position], logits.weights[0, position], value, logits.constant[0, position]
        )
        result.append(ClassExplanation(names[label], value.item(), probabilities[label].item(), contributions, cases))
    return result


def _shown(classifier: Classifier, evidence: Tensor, classes: list[int]) -> list[int]:
    """The cases of these classes, in order: all that add up, else the most influential ones of each."""
    owners = classifier.case_classes
    result: list[int] = []
    for label in classes:
        own = [index for index, owner in enumerate(owners) if owner == label]
        result += own if classifier.complete else sorted(own, key=lambda index: -evidence[index].item())[:MOST]
    return sorted(result)


def _image(support: Support, like: Tensor) -> Tensor | None:
    if support.image is None:
        return None
    return torch.from_numpy(support.image.copy()).permute(2, 0, 1).to(like) / 255


def own_contributions(classifier: SIC, supports: list[Support], indices: Sequence[int]) -> dict[int, Contributions]:
    """Support contributions of those supports (indices) whose image is kept."""
    shown = [index for index in indices if supports[index].image is not None]
    if not shown:
        return {}
    like = classifier.support_vectors
    images = torch.stack([image for index in shown if (image := _image(supports[index], like)) is not None])
    own = support_contributions(classifier, images, shown)
    return {
        index: Contributions(own.maps[i], own.weights[i], own.value[i], own.constant[i])
        for i, index in enumerate(shown)
    }
