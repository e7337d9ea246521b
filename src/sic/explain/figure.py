"""The figure of one prediction: image, evidence, contribution; beside them the supports and what they are made of."""

import textwrap
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from torch import Tensor

from sic.explain.explanation import ClassExplanation, Explanation, SupportCase
from sic.explain.picture import over_white, rgba, signed, strength
from sic.explain.prose import answer, percent
from sic.methods import METHODS

BLUE, RED, GREY = "#2c6fbb", "#c23b22", "#6b6b6b"
PANEL, TOP = 2.0, 0.55  # inches
LEGEND = (
    "Red raises the score, blue lowers it. Colour pictures show the colours that the model looks for, "
    "strong where they counted. All pictures are as the model sees them."
)
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def draw(explanation: Explanation, path: Path | BinaryIO) -> None:
    """Write the figure to `path`; its suffix says the format (an open file gets PNG)."""
    columns = 3 + max(len(c.cases) for c in explanation.classes)
    rows = len(explanation.classes)
    width = columns * (PANEL + 0.2) + 0.6
    text = textwrap.fill(explanation.text, int(12.5 * width))
    legend = textwrap.fill(LEGEND, int(15 * width))
    words = 0.19 * (text.count("\n") + 1) + 0.3 + 0.15 * (legend.count("\n") + 1)
    height = rows * 2 * (PANEL + 0.42) + TOP + words
    figure = Figure(figsize=(width, height), dpi=130)
    figure.suptitle(_title(explanation), y=1 - 0.28 / height, fontsize=13, weight="bold", va="center")
    grid = figure.add_gridspec(
        rows * 2,
        columns,
        left=0.02,
        right=0.985,
        top=1 - (TOP + 0.3) / height,
        bottom=words / height,
        hspace=0.34,
        wspace=0.09,
    )
    for number, explained in enumerate(explanation.classes):
        top, bottom = 2 * number, 2 * number + 1
        _class_column(figure, grid, explanation, explained, top)
        for slot, case in enumerate(explained.cases):
            _case(figure.add_subplot(grid[top, 3 + slot]), figure.add_subplot(grid[bottom, 3 + slot]), case, slot)
    figure.text(0.985, 0.05 / height, legend, fontsize=7.5, va="bottom", ha="right", color=GREY)
    figure.text(
        0.02,
        (words - 0.18 - 0.19 * (text.count("\n") + 1)) / height,
        text,
        fontsize=9,
        va="bottom",
        color="#222222",
        linespacing=1.35,
    )
    for text_object in figure.findobj(Text):
        text_object.set_parse_math(False)  # a dollar in a file name is a dollar
    figure.savefig(path)


def _title(explanation: Explanation) -> str:
    truth = explanation.truth
    right = explanation.similar_case and truth in explanation.labels
    told = "" if truth is None else ", which is right" if right else f"; the truth is {truth}"
    names = [explained.name for explained in explanation.classes]
    shown = "" if not explanation.similar_case or names == explanation.labels else f". Shown: {' and '.join(names)}"
    return f"{explanation.title}: {answer(explanation)}{told}{shown}"


def _class_column(figure: Figure, grid: Any, explanation: Explanation, explained: ClassExplanation, top: int) -> None:
    """The image, its two contribution pictures and the evidence bars of one class, over two rows and three columns."""
    image = figure.add_subplot(grid[top, 0])
    _picture(image, explanation.image.permute(1, 2, 0).cpu().numpy(), "The image")
    _signed(
        figure.add_subplot(grid[top, 1]),
        explanation.image,
        explained.contributions.maps,
        f"What speaks for (red)\nand against (blue) {explained.name}",
    )
    if explained.contributions.weights.shape[-3]:
        _weights(
            figure.add_subplot(grid[top, 2]),
            explained.contributions.weights,
            explained.contributions.maps,
            "What the model\nrecognised in it",
        )
    _bars(figure.add_subplot(grid[top + 1, 0:3]), explanation, explained)


def _steps(explanation: Explanation, explained: ClassExplanation) -> tuple[list[str], list[float]]:
    """The parts of a logit and their names."""
    cases = [case.evidence for case in explained.cases]
    names = [f"like case {chr(65 + slot)}" for slot in range(len(cases))]
    if explanation.method == "sic":
        return ["start (bias b)", *names], [explanation.bias, *cases]
    if explanation.method == "protopnet":
        return ["other prototypes", *names], [explained.logit - sum(cases), *cases]
    if METHODS[explanation.method].complete:
        parts = explained.contributions
        return ["without pixels", "pixels"], [parts.constant.item(), parts.maps.sum().item()]
    return [], []


def _bars(axes: Axes, explanation: Explanation, explained: ClassExplanation) -> None:
    """Waterfall to the logit from what it starts with, over what adds to it; the logit alone where nothing does."""
    labels, steps = _steps(explanation, explained)
    labels = [*labels, "score"]
    starts = [sum(steps[:number]) for number in range(len(steps))]
    colours = [GREY, *(RED if step >= 0 else BLUE for step in steps[1:])]  # as in the map
    positions = list(range(len(labels)))
    axes.barh(positions[:-1], steps, left=starts, color=colours, height=0.62)
    axes.barh(positions[-1:], [explained.logit], color="#222222", height=0.62)
    low, high = (
        min(0.0, explained.logit, *(start + min(step, 0.0) for start, step in zip(starts, steps, strict=True))),
        max(0.5, explained.logit, *(start + max(step, 0.0) for start, step in zip(starts, steps, strict=True))),
    )
    room = 0.24 * (high - low)
    for position, (start, step) in enumerate(zip([*starts, 0.0], [*steps, explained.logit], strict=True)):
        axes.text(
            max(start, start + step) + 0.02 * (high - low),
            position,
            f"{step:+.2f}",
            va="center",
            fontsize=9,
            bbox=PAPER,
        )
    axes.axvline(0, color="#222222", linewidth=0.8)
    axes.set_xlim(low - 0.02 * (high - low), high + room)
    axes.set_yticks(positions, labels, fontsize=9)
    axes.invert_yaxis()
    if not steps:
        axes.set_ylim(2.5, -0.5)  # a single bar need not be as thick
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    yes = explained.probability >= 0.5
    limit = "0" if explanation.method == "sic" and yes == (explained.logit >= 0) else "50 %"  # not of a softmax
    verdict = f"above {limit}: yes" if yes else f"below {limit}: no"
    axes.set_title(
        f"{explained.name}: score {explained.logit:+.2f}, probability {percent(explained.probability)} ({verdict})",
        fontsize=10,
        loc="left",
    )
    box = axes.get_position()
    axes.set_position((box.x0 + 0.055, box.y0 + 0.12 * box.height, box.width - 0.075, box.height * 0.8))


def _case(above: Axes, below: Axes, case: SupportCase, slot: int) -> None:
    name = f"Case {chr(65 + slot)}: {_shorten(case.support.source)}\nadds {case.evidence:+.2f}"
    if case.image is not None and case.own is None:  # a method that cannot say what it remembers
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
    _weights(below, case.own.weights, case.own.maps, "What the model\nremembers of it")


def _shorten(name: str, length: int = 22) -> str:
    return name if len(name) <= length else "…" + name[-length + 1 :]


def _picture(axes: Axes, pixels: object, title: str) -> None:
    axes.imshow(pixels, interpolation="nearest")  # type: ignore[arg-type]
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()


def _weights(axes: Axes, weights: Tensor, maps: Tensor, title: str) -> None:
    picture = rgba(weights[None], maps[None])[0]
    picture[3] *= strength(maps)
    _picture(axes, over_white(picture), title)
    axes.set_axis_on()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _signed(axes: Axes, image: Tensor, maps: Tensor, title: str) -> None:
    _picture(axes, signed(maps, image)[0], title)
