"""An explanation as HTML: the parts that the report and the shared page draw alike, and the shared page itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sic.explain.explanation import ClassExplanation, Explanation, SupportEvidence
from sic.explain.matches import Matches
from sic.explain.picture import colour_picture, drawing_uri, over_white, signed
from sic.explain.prose import answer, match_sentence, percent, within
from sic.explain.regions import REGION_COLOURS, Polygon
from sic.explain.render import outside_pixels, points, span, steps, verdict
from sic.methods import METHODS
from sic.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True)
class SupportPictures:
    """One support with its pictures as data URIs; None if the model does not keep its image."""

    index: int
    name: str
    """Its name for people, such as "Beagle #2"."""
    label: str
    """The name of its class."""
    source: str
    image: str | None
    colours: str | None
    """The colours that the model remembers of it."""


@dataclass(frozen=True)
class RegionView:
    """A numbered region of a picture and what it adds; the rest has the number 0 and no place."""

    number: int
    colour: str
    evidence: float
    share: float
    path: str
    """Its outline as an SVG path, in pixels of the picture."""
    x: float
    y: float


@dataclass(frozen=True)
class Bar:
    """One step of the sum; `left` and `width` in percent of the axis."""

    label: str
    value: float
    kind: str
    left: float
    width: float
    support: SupportPictures | None
    regions: list[RegionView]
    """The regions of the support's image that match the image; none if they were not looked for."""


@dataclass(frozen=True)
class ClassView:
    """Why a class has its score."""

    name: str
    true: bool
    yes: bool
    verdict: str
    logit: float
    probability: float
    bias: float
    pixels: float
    """Sum of the map."""
    elsewhere: float
    """The part of the evidence that belongs to no pixel."""
    residual: float
    image: str
    map: str
    limit: float
    """Contribution per pixel at which the colour scale of the map ends."""
    colours: str
    bars: list[Bar]
    zero: float
    """The position of 0, in percent of the axis."""
    size: tuple[int, int]
    """Height and width of the pictures in pixels."""
    regions: list[RegionView]
    """The regions of the image that match the supports; none if they were not looked for, or if no image of a support
    is kept."""
    words: str | None
    """The matches in one sentence."""


def class_view(
    explanation: Explanation,
    explained: ClassExplanation,
    true: bool = False,
    drawn: Mapping[int, SupportPictures] | None = None,
) -> ClassView:
    """What the template shows of one class; `drawn` has supports that are drawn already, by index."""
    contributions = explained.contributions
    map_, limit = signed(contributions.maps, explanation.image)
    waterfall = steps(explanation, explained)
    low, high = span(waterfall)
    length = high - low
    shown = any(case.image is not None for case in explained.cases)
    supports = drawn or {one.index: support_pictures(one, explained.name) for one in explained.cases}
    return ClassView(
        explained.name,
        true,
        explained.yes,
        verdict(explanation, explained),
        explained.logit,
        explained.probability,
        explanation.bias,
        contributions.maps.sum().item(),
        outside_pixels(explanation, explained),
        contributions.residual.item(),
        drawing_uri(explanation.image.permute(1, 2, 0).float().cpu().numpy()),
        drawing_uri(map_),
        limit,
        drawing_uri(over_white(colour_picture(contributions))),
        [
            Bar(
                step.label,
                step.value,
                step.kind,
                100 * (step.low - low) / length,
                100 * abs(step.value) / length,
                None if step.case is None else supports[step.case.index],
                [] if step.case is None or step.case.matches is None else _regions(step.case.matches, "support"),
            )
            for step in waterfall
        ],
        -100 * low / length,
        (explanation.image.shape[-2], explanation.image.shape[-1]),
        [] if explained.matches is None or not shown else _regions(explained.matches, "image"),
        match_sentence(explained),
    )


def _regions(matches: Matches, side: Literal["image", "support"]) -> list[RegionView]:
    result = []
    for part in matches.parts:
        region = part.image if side == "image" else part.support
        shown = region is not None and part.number > 0
        outline = region.outline if shown and region is not None else []
        path = "".join(map(_path, outline))
        x, y = (region.centre if shown and region is not None else None) or (0.0, 0.0)
        result.append(RegionView(part.number, REGION_COLOURS[part.number], part.evidence, part.share, path, x, y))
    return result


def _path(polygon: Polygon) -> str:
    """A closed polygon as an SVG path, in relative coordinates, which are shorter."""
    steps = [
        f"{x - before_x:g} {y - before_y:g}"
        for (before_x, before_y), (x, y) in zip(polygon[:-2], polygon[1:-1], strict=True)
    ]
    return f"M{polygon[0][0]:g} {polygon[0][1]:g}l{' '.join(steps)}Z"


def support_pictures(evidence: SupportEvidence, label: str) -> SupportPictures:
    """The pictures of one support of an explanation."""
    image = colours = None
    if evidence.image is not None and evidence.own is not None:
        image = drawing_uri(evidence.image.permute(1, 2, 0).float().cpu().numpy())
        colours = drawing_uri(over_white(colour_picture(evidence.own)))
    return SupportPictures(evidence.index, evidence.name, label, evidence.support.source, image, colours)


def shared_page(explanation: Explanation, model: str) -> str:
    """One explanation as a web page in a single file, without scripts and without references to other files."""
    views = [class_view(explanation, found, found.name == explanation.truth) for found in explanation.classes]
    template = environment("sic.explain").get_template("shared.html")
    similar = METHODS[explanation.method].by_similarity
    return template.render(
        explanation=explanation, answer=answer(explanation), classes=views, model=model, by_similarity=similar
    )


def environment(*packages: str) -> "Environment":
    """Jinja with this module's filters; templates come from the `packages`."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in packages]),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "breaks": _breaks,
        "percent": percent,
        "points": points,
        "small": lambda value: f"{value:.2g}",
        "within": lambda residual: within(abs(residual)),
    }
    made.globals |= {"version": __version__}
    return made


def _breaks(name: str) -> "Markup":
    """A path that may be broken into lines after each folder."""
    from markupsafe import Markup, escape

    return Markup("/<wbr>").join(escape(part) for part in name.split("/"))
