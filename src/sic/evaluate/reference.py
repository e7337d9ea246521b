"""What contributions are compared with: the linearised network in double precision, and the effect of rounding."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sic.evaluate.checks import NOTHING, Check, amount, largest, uniform
from sic.evaluate.linearised import Linearised, encoded_colours
from sic.methods import Classifier, Contributions

ROUNDING = 1e-4
"""Largest relative error of contributions in single precision (L2). Backbones without gates have 1e-6 to 5e-5."""
SHAKE, SHAKES = 1e-5, 8
"""Relative noise on the encoded pixels, and how often it is drawn. It moves features some ten times as much as rounding
does, so a gate that rounding switches, such as the ReLU of a local unit at one place, is switched by some draw, too."""
SLACK = 4.0
"""An error up to this many times the largest effect of the noise is due to rounding …"""
SWITCHED = 0.5
"""… unless it is as large as this."""

Quantity = Callable[[Linearised], Callable[[Tensor], Tensor]]
"""Of a linearised network: its features N×d → N×1."""


def score(label: int) -> Quantity:
    return lambda linear: lambda features: linear.scores(features)[:, label, None]


def score_above_average(label: int) -> Quantity:
    """A score minus the mean score of all classes."""

    def quantity(linear: Linearised) -> Callable[[Tensor], Tensor]:
        def value(features: Tensor) -> Tensor:
            scores = linear.scores(features)
            return scores[:, label, None] - scores.mean(dim=1, keepdim=True)

        return value

    return quantity


def evidence(case: int) -> Quantity:
    return lambda linear: lambda features: linear.evidence(features)[:, case, None]


def similarity(case: int) -> Quantity:
    """Evidence without the temperature."""
    return lambda linear: lambda features: linear.evidence(features)[:, case, None] * linear.temperature


def by_units(split: Tensor) -> Quantity:
    """Evidence that is known for each latent unit, d, by where in a picture these units are."""

    def quantity(linear: Linearised) -> Callable[[Tensor], Tensor]:
        own = linear.own[0]
        weights = torch.where(own == 0, 0, split / own)
        lacking = torch.where(own == 0, split, 0).sum()  # belongs to no pixel
        return lambda features: (features @ weights + lacking)[:, None]

    return quantity


def part(found: Contributions, place: int | tuple[int, ...]) -> Contributions:
    """The contributions at one index; `Contributions.at` is checked, too."""
    return Contributions(found.maps[place], found.weights[place], found.value[place], found.constant[place])


def distance(found: Contributions, right: Contributions) -> float:
    """How far contributions to one value are from the right ones: relative, the largest of maps (L2), weights (L2, if
    there are any), value and constant."""
    scale = float(amount(right.maps) + right.constant.abs())
    if float(amount(right.maps)) < NOTHING:
        return 0.0 if float(amount(found.maps)) < NOTHING else float("inf")
    pairs = [(found.maps, right.maps)] + [(found.weights, right.weights)] * (found.weights.shape[0] > 0)
    errors = [(one.double() - other).norm() / other.norm() for one, other in pairs]
    errors += [(found.value.double() - right.value).abs() / scale, (found.constant - right.constant).abs() / scale]
    return max(largest(error) for error in errors)


class Reference:
    """What an image, 3×H×W, contributes to quantities of a classifier in double precision.

    One linearised network answers all questions; results are kept. The network holds the activations of all layers
    (a ResNet50 at 224 pixels: 0.6 GB), so `release` it when an image is done.
    """

    def __init__(self, classifier: Classifier, image: Tensor) -> None:
        self.classifier, self.image = classifier, image.double()
        self._known: dict[tuple[Callable[[int], Quantity], int], tuple[Quantity, Contributions]] = {}
        self._moved: dict[Quantity, float] = {}
        self._seen: dict[bytes, Tensor] = {}

    @cached_property
    def linear(self) -> Linearised:
        return Linearised(self.classifier, encoded_colours(self.image[None]))

    @property
    def features(self) -> Tensor:
        """1×d, as `Linearised.features`."""
        return self.linear.own

    def release(self) -> None:
        """Drop the linearised network; it is built again if something else is asked."""
        self.__dict__.pop("linear", None)

    @torch.no_grad()
    def seen(self, mask: Tensor) -> Tensor:
        """The features, d, that the pixels of a mask, H×W, add; an image has few masks, which many cases share."""
        key = mask.cpu().numpy().tobytes()
        if key not in self._seen:
            linear = self.linear
            self._seen[key] = (linear.features(linear.encoded * mask.to(linear.encoded)) - linear.empty)[0]
        return self._seen[key]

    def of(self, quantity: Quantity) -> Contributions:
        return part(self.linear.traced(quantity(self.linear)), 0)

    def known(self, kind: Callable[[int], Quantity], index: int) -> tuple[Quantity, Contributions]:
        """The `score` of a class, the `evidence` or the `similarity` of a case, and its right contributions."""
        if (kind, index) not in self._known:
            quantity = kind(index)
            self._known[kind, index] = quantity, self.of(quantity)
        return self._known[kind, index]

    def flat(self, kind: Callable[[int], Quantity]) -> float:
        """The largest error that uniform maps of all that is known of this kind would have."""
        known = [right for (one, _), (_, right) in self._known.items() if one is kind]
        return max([flat(right) for right in known if shows(right)], default=0.0)

    def compared(
        self, way: str, found: Contributions, quantity: Quantity, right: Contributions, share: float = 1.0
    ) -> "Compared":
        """`right`: what `of` gave for the quantity; errors are multiplied by `share`, of a whole that is larger."""
        error = share * distance(found, right)
        return Compared(way, error, lambda: share * self.moved(quantity, right), evident=shows(right))

    def value(self, way: str, value: float, quantity: Quantity, right: Contributions) -> "Compared":
        """As `compared`, for a value alone."""
        return Compared(way, apart(value, right), lambda: self.moved(quantity, right), evident=shows(right))

    def moved(self, quantity: Quantity, right: Contributions) -> float:
        """How far contributions are from the right ones if encoded pixels, of which even those of black ones are not
        all zero, change by `SHAKE`."""
        if quantity not in self._moved:
            encoded = encoded_colours(self.image[None])
            generator = torch.Generator().manual_seed(0)
            found = []
            for _ in range(SHAKES):
                noise = torch.randn(encoded.shape, generator=generator, dtype=torch.float64).to(encoded)
                other = Linearised(self.classifier, encoded * (1 + SHAKE * noise))
                found.append(distance(part(other.traced(quantity(other)), 0), right))
            self._moved[quantity] = max(found)
        return self._moved[quantity]


def flat(right: Contributions) -> float:
    """The error of a uniform map."""
    return distance(Contributions(uniform(right.maps), right.weights, right.value, right.constant), right)


def shows(right: Contributions) -> bool:
    """Whether there is evidence."""
    return float(amount(right.maps)) >= NOTHING


def apart(value: float, right: Contributions) -> float:
    """The error of a value, as in `distance`."""
    scale = float(amount(right.maps) + right.constant.abs())
    return abs(value - float(right.value)) / scale if shows(right) else 0.0


@dataclass
class Compared:
    """A returned value and the right one."""

    way: str
    """How it was returned."""
    error: float
    moved: Callable[[], float] = lambda: 0.0
    """How far the right value moves by rounding; networks with gates switch now and then."""
    evident: bool = True
    """Whether there is anything to compare."""

    def __post_init__(self) -> None:
        self.error = math.inf if math.isnan(self.error) else self.error

    @property
    def excused(self) -> bool:
        return ROUNDING < self.error < SWITCHED and self.error <= SLACK * self.moved()


def worst_by_way(found: Iterable[Compared]) -> dict[str, float]:
    """The largest error of each way that rounding does not explain; ways that decide nothing are missing."""
    ways: dict[str, list[Compared]] = {}
    for each in found:
        if each.evident or each.error > 0:
            ways.setdefault(each.way, []).append(each)
    result: dict[str, float] = {}
    for way, some in ways.items():
        ranked = sorted(some, key=lambda each: -each.error)
        worst = next((each.error for each in ranked if not each.excused), None)
        if worst is not None:
            result[way] = worst
    return result


def as_check(name: str, statement: str, items: Sequence[Compared], wrong: tuple[str, float]) -> Check:
    """What was compared of one image as a check."""
    worst = worst_by_way(items)
    return Check(
        name, statement, max(worst.values(), default=0.0), ROUNDING, len(items), wrong, worst, decided=bool(worst)
    )
