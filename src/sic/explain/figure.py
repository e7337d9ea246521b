"""The figure of one explanation: the image, the sum behind its score, and the cases that it is compared with."""

import textwrap
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from sic.explain.explanation import ClassExplanation, Explanation, SupportEvidence
from sic.explain.matches import Match, Region
from sic.explain.picture import colour_picture, over_white, signed
from sic.explain.prose import answer, percent
from sic.explain.regions import REGION_COLOURS
from sic.explain.render import Step, points, span, steps, verdict
from sic.methods import Contributions

BLUE, RED, GREY, INK = "#2c6fbb", "#c23b22", "#6b6b6b", "#222222"
COLOURS = {"start": GREY, "for": RED, "against": BLUE, "score": INK}
"""Colours of the bars; red and blue as in the maps."""
PANEL, TOP, LABELS = 2.0, 0.55, 1.25  # inches
NAME, TITLE = 17, 27
"""Characters of a case's name, and of its name and file together, that have room beside a bar and above a panel."""
FILE = 8
"""Fewest characters of a file that are worth showing."""
SCORE = "Red raises the score, blue lowers it."
SPECIFIC = "Red raises the score more than the mean score of all classes, blue less."
LEGEND = (
    "Colour pictures show the colours that the model responds to, opaque where they count most. All pictures are at "
    "the model's input resolution."
)
MATCHES = (
    "Outlines with the same number mark regions that match. Bars and amounts show what each region of the image adds "
    "by the similarity to a case, grey what has no match."
)
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def draw(explanation: Explanation, path: Path | BinaryIO) -> None:
    """Write the figure to `path`, in the format of its suffix; to an open file as PNG."""
    columns = 3 + max(len(c.cases) for c in explanation.classes)
    rows = len(explanation.classes)
    width = columns * (PANEL + 0.2) + 0.6
    text = textwrap.fill(explanation.text.replace(" %", "\u00a0%"), int(12.5 * width))
    red_and_blue = SCORE if explanation.classes[0].specific is None else SPECIFIC
    legend = textwrap.fill(f"{MATCHES if explanation.matches else ''} {red_and_blue} {LEGEND}".strip(), int(15 * width))
    words = 0.19 * (text.count("\n") + 1) + 0.3 + 0.15 * (legend.count("\n") + 1)
    title = textwrap.fill(_title(explanation), int(9 * width))
    top = TOP + 0.24 * title.count("\n")
    height = rows * 2 * (PANEL + 0.42) + top + words
    figure = Figure(figsize=(width, height), dpi=130)
    figure.suptitle(title, y=1 - 0.16 / height, fontsize=13, weight="bold", va="top")
    grid = figure.add_gridspec(
        rows * 2,
        columns,
        left=0.02,
        right=0.985,
        top=1 - (top + 0.3) / height,
        bottom=words / height,
        hspace=0.34,
        wspace=0.09,
    )
    for number, explained in enumerate(explanation.classes):
        top, bottom = 2 * number, 2 * number + 1
        _class_column(figure, grid, explanation, explained, top)
        for slot, case in enumerate(explained.cases):
            _case(figure.add_subplot(grid[top, 3 + slot]), figure.add_subplot(grid[bottom, 3 + slot]), case)
    figure.text(0.985, 0.05 / height, legend, fontsize=7.5, va="bottom", ha="right", color=GREY)
    figure.text(
        0.02,
        (words - 0.18 - 0.19 * (text.count("\n") + 1)) / height,
        text,
        fontsize=9,
        va="bottom",
        color=INK,
        linespacing=1.35,
    )
    for text_object in figure.findobj(Text):
        text_object.set_parse_math(False)  # show dollar signs in file names as they are
    figure.savefig(path)


def _title(explanation: Explanation) -> str:
    truth = explanation.truth
    right = explanation.similar_case and truth in explanation.labels
    correctness = "" if truth is None else ", which is correct" if right else f"; true class: {truth}"
    names = [explained.name for explained in explanation.classes]
    shown = "" if not explanation.similar_case or names == explanation.labels else f". Shown: {' and '.join(names)}"
    return f"{explanation.title}: {answer(explanation)}{correctness}{shown}"


def _class_column(figure: Figure, grid: Any, explanation: Explanation, explained: ClassExplanation, top: int) -> None:
    """The image, its two contribution pictures and the bars of one class, in two rows and three columns."""
    contributions, red_and_blue = explained.contributions, f"Evidence for (red) and\nagainst (blue) {explained.name}"
    colours = "What the model\nrecognised in it"
    if explained.specific is not None:
        contributions, colours = explained.specific, f"What is specific\nto {explained.name}"
        red_and_blue = f"More (red) or less (blue) for {explained.name}\nthan for the average class"
    photo = figure.add_subplot(grid[top, 0])
    _picture(photo, explanation.image.permute(1, 2, 0).cpu().numpy(), "The image")
    if explained.matches is not None:
        _outlines(photo, [(match.number, match.image, str(match.number)) for match in explained.matches.groups])
    _picture(
        figure.add_subplot(grid[top, 1]),
        signed(contributions.maps, explanation.image)[0],
        red_and_blue,
    )
    if contributions.weights.shape[-3]:
        _colours(figure.add_subplot(grid[top, 2]), contributions, colours)
    _bars(figure.add_subplot(grid[top + 1, 0:3]), explanation, explained)


def _bars(axes: Axes, explanation: Explanation, explained: ClassExplanation) -> None:
    """The sum behind the score as a waterfall."""
    bars = steps(explanation, explained)
    limit = explanation.limit(explained)
    apart = abs(limit) >= 0.005  # from 0, where there is a line
    low, high = span(bars)
    low, high = min(low, limit), max(high, limit)
    length = high - low
    for position, bar in enumerate(bars):
        if bar.case is not None and bar.case.matches is not None:
            _divided_bar(axes, position, bar.start, bar.case.matches.parts, 0.03 * length)
        else:
            axes.barh(position, bar.value, left=bar.start, color=COLOURS[bar.kind], height=0.62)
        place = bar.high + 0.02 * length
        axes.text(place, position, points(bar.value), va="center", fontsize=9, bbox=PAPER)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=0.5)
    if apart:
        axes.axvline(limit, color=INK, linewidth=0.8, linestyle=":", zorder=0.5)
        axes.text(limit, -0.5, "50 %", ha="center", va="bottom", fontsize=8, color=GREY)
    axes.set_xlim(low - 0.02 * length, high + 0.24 * length)
    axes.set_yticks(range(len(bars)), [_label(bar) for bar in bars], fontsize=9)
    axes.invert_yaxis()
    if len(bars) == 1:
        axes.set_ylim(2.5, -0.5)  # a single bar need not be as thick
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    words, probability = verdict(explanation, explained), f"probability {percent(explained.probability)}"
    by_score = not words.startswith("probability ")
    told = f" ({words}), {probability}" if by_score else f", {probability} ({words.removeprefix('probability ')})"
    axes.set_title(
        f"{explained.name}: score {points(explained.logit)}{told}", fontsize=10, loc="left", pad=12 if apart else None
    )
    box, indent = axes.get_position(), LABELS / axes.figure.get_figwidth()  # type: ignore[union-attr]
    axes.set_position((box.x0 + indent, box.y0 + 0.12 * box.height, box.width - indent - 0.02, box.height * 0.8))


def _label(bar: Step) -> str:
    """The name of a bar; of a case with a long name, that name alone, in two lines if need be."""
    if bar.case is None or len(bar.label) <= NAME:
        return bar.label
    return textwrap.fill(_shorten(bar.case.name, 2 * NAME), NAME)


def _divided_bar(axes: Axes, position: int, start: float, parts: list[Match], legible: float) -> None:
    """The bar of a case, match by match, with their numbers if there is room."""
    for part in parts:
        axes.barh(
            position, part.evidence, left=start, color=REGION_COLOURS[part.number], height=0.62, edgecolor="white"
        )
        if part.number and part.evidence > legible:
            axes.text(start + part.evidence / 2, position, str(part.number), ha="center", va="center", fontsize=8)
        start += part.evidence


def _outlines(axes: Axes, regions: list[tuple[int, Region, str]]) -> None:
    """Draw regions on a photograph, with their numbers' colours and with labels that do not cover each other."""
    taken: list[tuple[float, float]] = []
    for number, region, label in regions:
        around = [withStroke(linewidth=2.6, foreground=INK)]
        for polygon in region.outline:
            columns, rows = zip(*((x - 0.5, y - 0.5) for x, y in polygon), strict=True)
            axes.plot(columns, rows, color=REGION_COLOURS[number], linewidth=1.3, path_effects=around)
        if region.centre is not None:
            badge = {
                "boxstyle": "circle,pad=0.2" if len(label) == 1 else "round,pad=0.2",
                "facecolor": REGION_COLOURS[number],
                "edgecolor": INK,
                "linewidth": 0.6,
            }
            x, y = region.centre
            height, width = region.map.shape
            edge = (0.02 + 0.014 * len(label)) * width  # half of the label, which stays inside of the photograph
            x = min(max(x, edge), width - edge)
            while any(abs(x - other) < 2 * edge and abs(y - line) < 0.09 * height for other, line in taken):
                y += 0.03 * height
            taken.append((x, y))
            axes.text(x - 0.5, y - 0.5, label, ha="center", va="center", fontsize=7, weight="bold", bbox=badge)


def _case(above: Axes, below: Axes, case: SupportEvidence) -> None:
    name = _shorten(case.name, TITLE)
    if (room := TITLE - len(name) - 2) >= FILE:
        name += f": {_shorten(case.support.source, room)}"
    name += f"\nadds {points(case.evidence)}"
    if case.likeness is not None:
        name += f" ({percent(case.likeness)} alike)"
    if case.image is not None and case.own is None:  # a method without support contributions
        _picture(above, case.image.permute(1, 2, 0).cpu().numpy(), name)
        if case.support.box is not None:
            left, top, right, bottom = case.support.box
            above.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, edgecolor=RED))
        below.set_axis_off()
        return
    if case.image is None or case.own is None:
        for axes in (above, below):
            axes.set_axis_off()
        above.set_title(name, fontsize=9)
        above.text(0.5, 0.5, "image not kept\nwith this model", ha="center", va="center", fontsize=9, color=GREY)
        return
    _picture(above, case.image.permute(1, 2, 0).cpu().numpy(), name)
    if case.matches is not None:
        shown = [(m.number, m.support, f"{m.number}  {points(m.evidence)}") for m in case.matches.groups if m.support]
        _outlines(above, shown)
        if not shown:
            above.text(0.5, 0.03, "no region matches", transform=above.transAxes, ha="center", fontsize=8, bbox=PAPER)
    _colours(below, case.own, "What the model\nremembers of it")


def _shorten(name: str, length: int) -> str:
    return name if len(name) <= length else "…" + name[-length + 1 :]


def _picture(axes: Axes, pixels: object, title: str) -> None:
    axes.imshow(pixels, interpolation="nearest")  # type: ignore[arg-type]
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()


def _colours(axes: Axes, contributions: Contributions, title: str) -> None:
    _picture(axes, over_white(colour_picture(contributions)), title)
    axes.set_axis_on()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")
