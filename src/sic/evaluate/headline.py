"""The headline about a model: how often it answers, how often that is right, and how sure these figures are.

A model *answers* an image where a class reaches the threshold (see `sic.predictions`). The headline is part of the
figures in `config.json` and of every `--json` output; terminal, model card, report and viewer show its sentence.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Self

Z = 1.959963984540054
"""Standard deviations on either side that hold 95 % of a normal distribution."""


def wilson(successes: int, number: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson's score interval), which is sensible for few images and for 0 and 100 %.

    >>> [round(end, 2) for end in wilson(39, 54)]
    [0.59, 0.82]
    """
    if number == 0:
        return 0.0, 1.0
    share = successes / number
    centre = share + Z**2 / (2 * number)
    reach = Z * sqrt(share * (1 - share) / number + Z**2 / (4 * number**2))
    low, high = ((centre + sign * reach) / (1 + Z**2 / number) for sign in (-1, 1))
    return max(low, 0.0) if successes else 0.0, min(high, 1.0) if successes < number else 1.0


@dataclass(frozen=True)
class Part:
    """A share of images with its 95 % interval."""

    count: int
    images: int
    """The images that it is a share of."""

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.images:
            raise ValueError(f"{self.count} cannot be a part of {self.images} images")

    @property
    def share(self) -> float | None:
        """None without images."""
        return self.count / self.images if self.images else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.count, self.images)

    @property
    def percent(self) -> str:
        """The share for people; 100 % only for all images, and 0 % for none.

        >>> Part(237, 238).percent, Part(238, 238).percent
        ('over 99 %', '100 %')
        """
        if self.share is None:
            return "–"
        rounded = _percent(self.share, self.images)
        if 0 < self.count < self.images and rounded in (_percent(0, self.images), _percent(1, self.images)):
            return "over 99 %" if self.share > 0.5 else "under 1 %"
        return rounded

    @property
    def range(self) -> str:
        """The interval for people.

        >>> Part(39, 54).range
        '59–82 %'
        """
        low, high = (_percent(end, self.images).removesuffix(" %") for end in self.interval)
        return f"{low}–{high} %"

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "images": self.images, "share": self.share, "interval": list(self.interval)}


@dataclass(frozen=True)
class Headline:
    """How often a model answers, and how often it is right."""

    answered: Part
    """Of all images."""
    right: Part
    """Of the images answered."""
    right_of_all: Part
    """Of all images; declining counts as right only where an image shows none of the classes."""
    chance: float | None
    """The share of right answers that random guessing gives; None where images have several labels."""
    commonest: str
    """The label (or labels) that most of the images have."""
    commonest_share: float
    """The share of right answers of a model that always gives it."""

    @property
    def lines(self) -> list[str]:
        """The figures in words, one by one."""
        count = self.answered.images
        parts = [f"Answers {self.answered.percent} of {count} images (95 % interval {self.answered.range})"]
        if self.answered.count:
            parts.append(
                f"{self.right.percent} of these answers are right ({self.right.range}, {self.right.images} images)"
            )
        return [*parts, f"{self.right_of_all.percent} of all images are answered correctly ({self.right_of_all.range})"]

    @property
    def sentence(self) -> str:
        """All figures in words."""
        return f"{'; '.join(self.lines)}. {self.compare}"

    @property
    def compare(self) -> str:
        """The accuracy without a model: by chance, and by always giving the same answer."""
        constant = f"always answering {self.commonest}: {_percent(self.commonest_share, self.answered.images)}"
        if self.chance is None:
            return f"For comparison: {constant}."
        return f"For comparison: chance {_percent(self.chance, self.answered.images)}; {constant}."

    def as_json(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).as_json() for name in ("answered", "right", "right_of_all")}
        return {**asdict(self), **parts, "sentence": self.sentence}

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Self | None:
        """The headline in some figures; None for models of earlier versions, which lack it."""
        if "headline" not in figures:
            return None
        found = figures["headline"]
        answered, right, of_all = (
            Part(found[name]["count"], found[name]["images"]) for name in ("answered", "right", "right_of_all")
        )
        return cls(answered, right, of_all, found["chance"], found["commonest"], found["commonest_share"])


def without_copies(figures: Mapping[str, Any] | None) -> list[str]:
    """The sentence about figures of images that are no copies of training images; none if there are no such figures."""
    found = Headline.of(figures or {})
    return [] if found is None else [f"Without copies of training images: {found.sentence}"]


def quality_lines(figures: Mapping[str, Any], clean: Mapping[str, Any] | None = None) -> list[str]:
    """How good a model is on some images, in words; only its main metric for models that lack a headline: those of
    earlier versions, and those of `sic distill`. `clean`: the figures without copies of training images, if there are
    copies.

    >>> quality_lines({"accuracy": 0.75, "images": 40, "similar_case": 0.5})
    ['Its first choice is right for 75 % of 40 images (95 % interval 60–86 %).', 'It answers 50 % of them.']
    >>> quality_lines({"accuracy": 0.6, "teacher_accuracy": 0.7})
    ['Its first choice is right for 60 % of the images.', "Its teacher's first choice is right for 70 % of them."]
    """
    found, images = Headline.of(figures), figures.get("images", 0)
    if found is not None:
        lines = [f"{line[0].upper()}{line[1:]}." for line in found.lines]
        return [*lines, found.compare, *without_copies(clean)]
    if "accuracy" in figures:
        right = Part(round(figures["accuracy"] * images), images)
        if images:
            lines = [f"Its first choice is right for {right.percent} of {images} images (95 % interval {right.range})."]
        else:  # their number is not known
            lines = [f"Its first choice is right for {_percent(figures['accuracy'], images)} of the images."]
        if "similar_case" in figures:
            lines.append(f"It answers {_percent(figures['similar_case'], images)} of them.")
        if "teacher_accuracy" in figures:
            teacher = _percent(figures["teacher_accuracy"], images)
            lines.append(f"Its teacher's first choice is right for {teacher} of them.")
        return lines
    return [f"The mean average precision is {figures['map']:.2f} on {images} images."]


def _percent(share: float, images: int) -> str:
    """In percent; with a decimal only if there are enough images."""
    return f"{100 * share:.{1 if images >= 1000 else 0}f} %"
