"""Probabilities that can be taken at their word, and a promise about answers: both fitted on held-out images.

`probability = sigmoid((logit - threshold) / temperature)`. Both numbers are fitted after training, one pair for the
whole model; they change no logit, no evidence and no explanation. With single labels, all classes but the nearest one
have a higher threshold: with the same score they are true less often. Where classes compete (`--loss ce`) the softmax
takes the temperature alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sic.settings import Loss

FEWEST = 20
"""Held-out images below which nothing is fitted."""
HOTTEST = 20.0
"""Temperatures are between the inverse of this and this."""
OTHERS = 0.1
"""For single labels: how much all classes but the answer count in the fit, relative to the answer. Most of them are
easy: if they counted as much, the probabilities of answers would become too extreme (benchmarks/calibration.py)."""
WRONG, CONFIDENCE = 0.05, 0.95
"""The promise: with this confidence, at most this share of the answers is wrong."""
SHARES = 10
"""How many thresholds a promise is sought at: those that answer 10 %, 20 %, … 100 % of the held-out images."""


@dataclass(frozen=True)
class Promise:
    """A score above which at most `wrong` of all answers are wrong, with a `confidence` over the choice of the images
    that it was found with. It holds for new images that come from where these came from, and for nothing else."""

    score: float | None
    """Answers whose score is higher are covered (see `Answers.confidence`); None: all with a similar case."""
    wrong: float
    confidence: float
    images: int
    """Held-out images that it was found with."""
    answered: int
    """How many of them it covers."""
    mistakes: int
    """How many of these answers are wrong."""

    def __str__(self) -> str:
        above = "" if self.score is None else f" with a score above {self.score:.2f}"
        return (
            f"On new images of the same kind at most {self.wrong:.0%} of the answers{above} are wrong, with "
            f"{self.confidence:.0%} confidence ({self.answered} of {self.images} held-out images are answered so, "
            f"{self.mistakes} of them wrongly)."
        )

    def covers(self, scores: Tensor) -> Tensor:
        """Whether it covers answers with these scores, n."""
        return scores > (-math.inf if self.score is None else self.score)


@dataclass(frozen=True)
class Calibration:
    """How logits become probabilities. The default is the method's own: sigmoids or a softmax of the logits."""

    temperature: float = 1.0
    threshold: float = 0.0
    """The logit with a probability of 50 %."""
    images: int = 0
    """Held-out images that it was fitted on."""
    promise: Promise | None = None
    others: float | None = None
    """The threshold of the classes that are not the nearest one, at least `threshold`; None: the same."""

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"the temperature of probabilities must be above 0, not {self.temperature}")
        if self.others is not None and not self.threshold <= self.others < math.inf:
            raise ValueError(f"other classes need a threshold of at least {self.threshold}, not {self.others}")

    def limit(self, nearest: bool = True) -> float:
        """The logit with a probability of 50 %, for the class with the highest logit or for another one."""
        return self.threshold if nearest or self.others is None else self.others

    def formula(self, loss: Loss, digits: int | None = None, nearest: bool = True) -> str:
        """How probabilities follow from the logits.

        Args:
            loss: Decides whether classes compete.
            digits: After the point; by default all of them.
            nearest: Whether it is about the class with the highest logit.

        >>> Calibration().formula("bce"), Calibration(2.0, -0.5).formula("bce", 2), Calibration(2.0).formula("ce")
        ('sigmoid(logit)', 'sigmoid((logit + 0.50) / 2.00)', 'softmax(logits / 2.0)')
        """
        limit = self.limit(nearest)
        numbers = (self.temperature, abs(limit))
        temperature, shift = (repr(number) if digits is None else f"{number:.{digits}f}" for number in numbers)
        if loss == "ce":
            return "softmax(logits)" if self.temperature == 1 else f"softmax(logits / {temperature})"
        if (self.temperature, limit) == (1, 0):
            return "sigmoid(logit)"
        return f"sigmoid((logit {'+' if limit < 0 else '-'} {shift}) / {temperature})"

    def formulas(self, loss: Loss) -> str:
        """The rounded formula of all classes in words.

        >>> Calibration(2.0, -0.5, others=1.5).formulas("bce")
        'sigmoid((logit + 0.50) / 2.00) for the nearest class and sigmoid((logit - 1.50) / 2.00) for the others'
        """
        near, other = (self.formula(loss, 2, nearest) for nearest in (True, False))
        return near if near == other else f"{near} for the nearest class and {other} for the others"

    def scores(self, logits: Tensor, loss: Loss) -> Tensor:
        """Of N×C logits: the log odds of the probabilities, 0 at 50 %; of every class as if it were the nearest one."""
        if loss == "bce":
            return (logits - self.threshold) / self.temperature
        return torch.logit(self.probabilities(logits.double(), loss), eps=1e-12).float()

    def probabilities(self, logits: Tensor, loss: Loss) -> Tensor:
        """Of N×C logits: sigmoids, or a softmax where the classes compete."""
        if loss == "bce":
            scores = self.scores(logits, loss)
            if self.others is not None:
                scores = scores - _further(logits) * ((self.others - self.threshold) / self.temperature)
            return scores.sigmoid()
        return (logits / self.temperature).softmax(dim=1)


def _further(logits: Tensor) -> Tensor:
    """Which of N×C classes are not the nearest one of their image. Where several have the highest score, as without any
    evidence, none is."""
    nearest = logits == logits.amax(dim=1, keepdim=True)
    return ~nearest | (nearest.sum(dim=1, keepdim=True) > 1)


def calibration_from_json(content: Mapping[str, Any]) -> Calibration:
    """As `config.json` has it; the default where a model from before has none."""
    return Calibration(**{**content, "promise": promise_from_json(content.get("promise"))})


def promise_from_json(content: Mapping[str, Any] | None) -> Promise | None:
    """As JSON has it; None for none."""
    return None if content is None else Promise(**content)


def calibrated(
    logits: Tensor, targets: Tensor, loss: Loss, *, single: bool = False, lowest: float | None = None
) -> Calibration:
    """Fit temperature and threshold to held-out images.

    Args:
        logits: N×C.
        targets: N×C, 0 or 1; NaN where an image is unsure about a class.
        loss: Decides whether classes compete.
        single: Whether an image has one label. Then the nearest class of an image, its answer, counts most (`OTHERS`),
            and the other classes have a threshold of their own.
        lowest: The logit of a class without evidence. The threshold stays above the middle between it and 0: no
            evidence must never be a yes.

    Returns:
        The calibration with the highest likelihood; the default one for fewer than `FEWEST` images.
    """
    known = ~targets.isnan().any(dim=1) if loss == "ce" else torch.ones(len(targets), dtype=torch.bool)
    logits, targets = logits[known].double().cpu(), targets[known].double().cpu()
    if len(logits) < FEWEST:
        return Calibration()
    if loss == "ce":
        return Calibration(_softmax_temperature(logits, targets), 0.0, len(logits))
    counts = ~targets.isnan()
    weights = torch.ones_like(logits)
    if single and logits.shape[1] > 1:
        weights = weights.mul(OTHERS / (logits.shape[1] - 1)).scatter(1, logits.argmax(dim=1, keepdim=True), 1.0)
    temperature, threshold = _platt(*(part[counts].numpy() for part in (logits, targets, weights)))
    if lowest is not None:
        threshold = max(threshold, lowest / 2)
    others = None
    if single and logits.shape[1] > 1:
        counts &= _further(logits)
        others = _shifted(logits[counts].numpy(), targets[counts].numpy(), temperature, threshold)
    return Calibration(temperature, threshold, len(logits), others=others)


def _platt(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Temperature and threshold by logistic regression on weighted yes-or-no questions (Platt 1999).

    Its targets, (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), keep the temperature finite where every answer is right.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    wanted = _smoothed(truth, weights)
    scale = max(float(np.abs(scores).mean()), 1e-6)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        slope = math.exp(x[0])
        z = slope * scores / scale + x[1]
        residual = weights * (expit(z) - wanted)
        value = float(np.mean(weights * (np.logaddexp(0, z) - wanted * z)))
        return value, np.array([np.mean(residual * slope * scores / scale), np.mean(residual)])

    limits = [(math.log(scale / HOTTEST), math.log(scale * HOTTEST)), (None, None)]
    slope, shift = minimize(loss, np.array([math.log(scale), 0.0]), jac=True, method="L-BFGS-B", bounds=limits).x
    return scale / math.exp(slope), -shift * scale / math.exp(slope)


def _shifted(scores: np.ndarray, truth: np.ndarray, temperature: float, lowest: float) -> float:
    """The threshold of yes-or-no questions with the highest likelihood, at least `lowest`; the temperature is given."""
    from scipy.optimize import brentq
    from scipy.special import expit

    wanted = _smoothed(truth, np.ones_like(truth))

    def excess(threshold: float) -> float:
        return float((expit((scores - threshold) / temperature) - wanted).sum())

    highest = float(scores.max(initial=lowest)) + temperature * math.log(2 * (len(scores) + 2) ** 2)
    return brentq(excess, lowest, highest) if excess(lowest) > 0 else lowest


def _smoothed(truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The targets of Platt (1999) for yes-or-no questions with weights."""
    positive = truth > 0.5
    number = float(weights[positive].sum()), float(weights[~positive].sum())
    return np.where(positive, (number[0] + 1) / (number[0] + 2), 1 / (number[1] + 2))


def _softmax_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature of a softmax with the highest likelihood (Guo et al. 2017)."""
    from scipy.optimize import minimize_scalar

    shares = targets / targets.sum(dim=1, keepdim=True).clamp_min(1)

    def loss(x: float) -> float:
        return float(-(shares * (logits / math.exp(x)).log_softmax(dim=1)).sum(dim=1).mean())

    limit = math.log(HOTTEST)
    return math.exp(minimize_scalar(loss, bounds=(-limit, limit), method="bounded").x)


def promised(scores: Tensor, right: Tensor, models: int = 1) -> Promise | None:
    """The promise that covers the most answers, None where no promise can be made.

    A threshold is the score of a held-out image: its k-th highest. Given this score, the images above it are a random
    sample of all images above it, so the number of their mistakes is binomial, and an exact test tells whether more
    than `WRONG` of such answers would be wrong. The thresholds to test are fixed before anything is seen (shares of the
    images), and each test is as much stricter as there are tests (Bonferroni; "learn then test", Angelopoulos et al.
    2021). Nothing is assumed about the scores.

    Args:
        scores: Of the held-out images' answers, n (see `Answers.confidence`); minus infinity for images that are not
            answered.
        right: Whether they are right, n.
        models: How many models were compared on these images, one of which was chosen: a checkpoint for each epoch, in
            each trial of a search. The promise holds whichever was chosen.
    """
    from scipy.stats import binom

    order = scores.double().argsort(descending=True)
    ordered, mistakes = scores.double()[order], (~right.bool())[order].cumsum(0)
    sizes = _sizes(len(scores), models)
    for size in sorted(sizes, reverse=True):
        score = float(ordered[size]) if size < len(ordered) else -math.inf
        answered = int((ordered > score).sum())  # fewer than `size`, where scores are equal
        wrong = int(mistakes[answered - 1]) if answered else 0
        if answered and binom.cdf(wrong, answered, WRONG) <= (1 - CONFIDENCE) / (len(sizes) * models):
            return Promise(score if math.isfinite(score) else None, WRONG, CONFIDENCE, len(scores), answered, wrong)
    return None


def one_of_each(groups: Sequence[str | None]) -> list[int]:
    """Positions of one random image of each group (a patient, a specimen), and of all images without a group.

    Images of one group are alike, so they count as one: a promise is about images of new groups.

    >>> one_of_each([None, None, "a", "b", "b"])[:3]
    [0, 1, 2]
    """
    members: dict[str | int, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(position if group is None else group, []).append(position)
    rng = np.random.default_rng(0)
    return sorted(int(rng.choice(positions)) for positions in members.values())


def _sizes(images: int, models: int) -> list[int]:
    """How many answers each threshold covers; without those that are too few to pass even without a mistake."""
    sizes = [images * (share + 1) // SHARES for share in range(SHARES)]
    while sizes and sizes[0] < needed_images(models * len(sizes)):
        sizes = sizes[1:]
    return sizes


def needed_images(tests: int = 1) -> int:
    """The fewest held-out images that can carry a promise, if no answer is wrong.

    >>> needed_images()
    59
    """
    return math.ceil(math.log((1 - CONFIDENCE) / tests) / math.log(1 - WRONG))
