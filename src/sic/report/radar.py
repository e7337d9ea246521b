"""A radar chart: several methods, several figures between 0 and 1."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.text import Text

PALETTE = ("#2c6fbb", "#c23b22", "#3a8f4d", "#d08a1d", "#7b52ab", "#4b4b4b", "#1f9ea8", "#b0508f")

FUNNYBIRDS = {
    "A": "Accuracy",
    "BI": "Background\nindependence",
    "CSDC": "Controlled\nsynthetic\ndata check",
    "PC": "Preservation\ncheck",
    "DC": "Deletion check",
    "D": "Distractibility",
    "SD": "Single\ndeletion",
    "TS": "Target\nsensitivity",
}
"""The metrics of the FunnyBirds protocol."""


def funnybirds_radar(rings: Mapping[str, Mapping[str, float | None]], note: str = "") -> Figure:
    """The eight metrics of one or several methods, by name."""
    return radar(rings, FUNNYBIRDS, "FunnyBirds", note)


def radar(
    rings: Mapping[str, Mapping[str, float | None]], axes: Mapping[str, str], title: str, note: str = ""
) -> Figure:
    """One polygon for each name in `rings`; `axes`: key → name, clockwise from the top.

    The centre is 0, the rim 1. What was not measured (None) leaves a gap in its polygon.
    """
    columns = _columns(list(rings))
    rows = -(-len(rings) // columns)
    width, height, legend = 7.0, 6.3 + 0.24 * rows, 0.35 + 0.24 * rows  # inches
    figure = Figure(figsize=(width, height), dpi=130)
    plot = PolarAxes(figure, (1.4 / width, (legend + 0.55) / height, 4.2 / width, 4.2 / height))
    figure.add_axes(plot)
    plot.set_theta_offset(math.pi / 2)
    plot.set_theta_direction(-1)
    angles = [2 * math.pi * number / len(axes) for number in range(len(axes))]
    for number, (name, values) in enumerate(rings.items()):
        colour = PALETTE[number % len(PALETTE)]
        radii = [_radius(values.get(key)) for key in axes]
        dashes = "-" if number < len(PALETTE) else "--"
        plot.plot(
            [*angles, angles[0]], [*radii, radii[0]], dashes, color=colour, lw=1.8, marker="o", ms=3.5, label=name
        )
        if len(rings) <= 3 and not any(map(math.isnan, radii)):
            plot.fill(angles, radii, color=colour, alpha=0.1)
    plot.set_ylim(0, 1)
    plot.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color="#888888", fontsize=8)
    plot.set_rlabel_position(180 / len(axes))
    plot.set_xticks(angles, [""] * len(axes))
    plot.grid(color="#d5d5d5", lw=0.7)
    plot.spines["polar"].set_color("#bbbbbb")
    for angle, label in zip(angles, axes.values(), strict=True):
        plot.text(angle, 1.1, label, ha=_side(angle), va="center", fontsize=9.5)
    figure.suptitle(title, y=1 - 0.3 / height, fontsize=13, weight="bold")
    place = (0.5, 0.25 / height)
    figure.legend(loc="lower center", bbox_to_anchor=place, frameon=False, fontsize=9, ncols=columns)
    figure.text(0.5, 0.1 / height, note, ha="center", fontsize=7.5, color="#6b6b6b")
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar in a name is a dollar
    return figure


def _radius(value: float | None) -> float:
    return math.nan if value is None else min(max(value, 0.0), 1.0)


def _side(angle: float) -> str:
    """How a label outside the rim is aligned."""
    side = math.sin(angle)
    return "center" if abs(side) < 0.2 else "left" if side > 0 else "right"


def _columns(names: Sequence[str]) -> int:
    """As many names side by side as fit."""
    widest = max(map(len, names), default=1)
    return max(1, min(len(names), 64 // (widest + 6)))
