"""Comparison of methods: one value per seed, their mean and standard deviation, and the best method."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sic.evaluate.metrics import METRICS, Metric, headline, metric

Values = dict[str, list[float | None]]
"""By metric: one value per seed, None if it was not measured."""


def collect(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Values]:
    """Values by method and metric, from the evaluations of each method (one per seed). All methods get the same
    metrics."""
    figures = {method: [headline(result) for result in rows] for method, rows in results.items()}
    known = [name for rows in figures.values() for row in rows for name in row]
    names = [name for name in METRICS if name in known]
    names += sorted({name for name in known if name.startswith("refused_")})
    return {method: {name: [row.get(name) for row in rows] for name in names} for method, rows in figures.items()}


@dataclass(frozen=True)
class Cell:
    """The value of one method: mean and standard deviation over the seeds that have one."""

    mean: float | None
    spread: float | None
    seeds: int

    def text(self, metric: Metric, plus_minus: str = " ± ") -> str:
        """Mean and spread in the unit of the metric."""
        return metric.number(self.mean, self.spread, plus_minus)


def cell(values: Sequence[float | None]) -> Cell:
    """Mean and standard deviation of the values of several seeds.

    >>> cell([0.5, 1.5, None, 1.0])
    Cell(mean=1.0, spread=0.5, seeds=3)
    """
    known = [value for value in values if value is not None]
    spread = statistics.stdev(known) if len(known) > 1 else None
    return Cell(statistics.fmean(known) if known else None, spread, len(known))


@dataclass(frozen=True)
class Row:
    """One metric for all methods."""

    metric: Metric
    cells: dict[str, Cell]
    best: frozenset[str]
    """The methods with the best mean, after rounding; empty if all are equal."""


SAME = ("Cor", "Con", "Cor_alpha", "Con_alpha")
"""The framework's names for SD and TS: they are in the JSON but have no rows of their own."""


def table(methods: Mapping[str, Values]) -> list[Row]:
    """One row for each metric that at least one method has."""
    rows = []
    for name in next(iter(methods.values()), {}):
        if name in SAME or all(value is None for values in methods.values() for value in values[name]):
            continue
        found = metric(name)
        cells = {method: cell(values[name]) for method, values in methods.items()}
        rows.append(Row(found, cells, _best(cells, found)))
    return rows


def _best(cells: Mapping[str, Cell], metric: Metric) -> frozenset[str]:
    known = {method: round(c.mean, 3) for method, c in cells.items() if c.mean is not None}
    if metric.higher_is_better is None or len(known) < 2:
        return frozenset()
    top = (max if metric.higher_is_better else min)(known.values())
    best = frozenset(method for method, mean in known.items() if mean == top)
    return best if len(best) < len(known) else frozenset()


def summary(methods: Mapping[str, Values]) -> dict[str, dict[str, dict[str, Any]]]:
    """The `mean`, `spread` and number of `seeds` by method and metric, for JSON."""
    return {
        method: {name: asdict(cell(values)) for name, values in metrics.items()} for method, metrics in methods.items()
    }


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown, with the best means in bold."""
    methods = list(rows[0].cells) if rows else []
    lines = [
        "| | " + " | ".join(name.replace("|", "\\|") for name in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for row in rows:
        texts = [f"**{c.text(row.metric)}**" if m in row.best else c.text(row.metric) for m, c in row.cells.items()]
        lines.append(f"| {row.metric.heading} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[Row]) -> str:
    """The table as a LaTeX `tabular` for `booktabs`, with the best means in bold."""
    methods = list(rows[0].cells) if rows else []
    lines = [f"\\begin{{tabular}}{{l{'r' * len(methods)}}}", "\\toprule"]
    lines += [" & ".join(["", *map(_escaped, methods)]) + " \\\\", "\\midrule"]
    for row in rows:
        texts = []
        for method, c in row.cells.items():
            text = c.text(row.metric, " \\pm ")
            bold = f"\\mathbf{{{text}}}" if method in row.best else text
            texts.append("--" if c.mean is None else f"${bold}$")
        lines.append(" & ".join([_escaped(row.metric.heading), *texts]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


SPECIAL = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "×": "$\\times$",
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
}


def _escaped(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def tidy_csv(methods: Mapping[str, Values], seeds: Mapping[str, Sequence[int]]) -> str:
    """One line for each value: method, metric, seed, value."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["method", "metric", "seed", "value"])
    for method, metrics in methods.items():
        for name, values in metrics.items():
            for seed, value in zip(seeds[method], values, strict=True):
                writer.writerow([method, name, seed, "" if value is None else repr(value)])
    return lines.getvalue()
