"""Several methods side by side: one value per seed, their mean and spread, and who is best."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Values = dict[str, list[float | None]]
"""By metric: one value per seed, None where it was not measured."""


@dataclass(frozen=True)
class Metric:
    """What a row of the table shows."""

    label: str
    higher: bool | None = True
    """Is higher better? None: neither."""
    percent: bool = False

    @property
    def title(self) -> str:
        """The label, with the unit."""
        return f"{self.label}{' (%)' if self.percent else ''}"


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", percent=True),
    "balanced_accuracy": Metric("balanced accuracy", percent=True),
    "map": Metric("mean average precision", percent=True),
    "per_label_accuracy": Metric("accuracy of all labels", percent=True),
    "auroc": Metric("AUROC", percent=True),
    "ece": Metric("calibration error", higher=False),
    "A": Metric("FunnyBirds A"),
    "BI": Metric("FunnyBirds BI"),
} | {
    f"{name}{suffix}": Metric(
        f"FunnyBirds {name.replace('_mean', ', mean of 4')}{words}", higher=None if name == "threshold" else True
    )
    for suffix, words in (("", ""), ("_alpha", " (alpha)"))
    for name in ("CSDC", "PC", "DC", "D", "SD", "TS", "Com", "Com_mean", "Cor", "Con", "threshold")
} | {
    "grid_2x2": Metric("grid pointing 2×2", percent=True),
    "grid_3x3": Metric("grid pointing 3×3", percent=True),
    "box_energy": Metric("box pointing: energy", percent=True),
    "box_hit": Metric("box pointing: hits", percent=True),
    "box_overlap": Metric("box pointing: overlap", percent=True),
    "deletion": Metric("deletion (area)", higher=False),
    "insertion": Metric("insertion (area)"),
    "stability": Metric("stability (rank correlation)"),
    "randomised": Metric("after randomisation (rank correlation)", higher=None),
}  # fmt: skip
"""In the order of the table; shares of refused strangers come last, as `refused_<kind>`."""


def metric(name: str) -> Metric:
    if name.startswith("refused_"):
        return Metric(f"refused: {name.removeprefix('refused_').replace('_', ' ')}", percent=True)
    return METRICS[name]


def headline(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of one evaluation that are compared, by the names of `METRICS`."""
    found: dict[str, float | None] = {}
    accuracy = result.get("accuracy", {})
    for name in ("accuracy", "balanced_accuracy", "map", "per_label_accuracy", "auroc", "ece"):
        if name in accuracy:
            found[name] = accuracy[name]
    birds = result.get("funnybirds", {})
    found |= {name: birds[name] for name in ("A", "BI") if name in birds}
    for kind, suffix in (("contributions", ""), ("alpha", "_alpha")):
        for name, value in birds.get(kind, {}).items():
            if f"{name}{suffix}" in METRICS:
                found[f"{name}{suffix}"] = value
    places = result.get("localisation", {})
    found |= {name: places[name]["share"] for name in ("grid_2x2", "grid_3x3") if name in places}
    if "boxes" in places:
        found |= {f"box_{name}": places["boxes"]["all"][name] for name in ("energy", "hit", "overlap")}
    if faithful := result.get("faithfulness"):
        found |= {name: faithful[name]["area"] for name in ("deletion", "insertion")}
        found["stability"] = faithful["stability"]["rank_correlation"]
        found["randomised"] = faithful["randomisation"]["stages"][-1]["rank_correlation"]
    for kind, figures in result.get("unfamiliar", {}).items():
        if kind != "familiar":
            found[f"refused_{kind.replace(' ', '_')}"] = figures["probability"]["flagged"]
    return found


def collect(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Values]:
    """Evaluations by method, one per seed → values by method and metric; all methods have the same metrics."""
    figures = {method: [headline(result) for result in rows] for method, rows in results.items()}
    known = [name for rows in figures.values() for row in rows for name in row]
    names = [name for name in METRICS if name in known]
    names += sorted({name for name in known if name.startswith("refused_")})
    return {method: {name: [row.get(name) for row in rows] for name in names} for method, rows in figures.items()}


@dataclass(frozen=True)
class Cell:
    """One method's value in one row: mean and spread (standard deviation) over the seeds that have one."""

    mean: float | None
    spread: float | None
    seeds: int

    def text(self, kind: Metric, plus_minus: str = " ± ") -> str:
        """For people; shares in percent."""
        if self.mean is None:
            return "–"
        factor, digits = (100, 1) if kind.percent else (1, 3)
        spread = "" if self.spread is None else f"{plus_minus}{factor * self.spread:.{digits}f}"
        return f"{factor * self.mean:.{digits}f}{spread}"


def cell(values: Sequence[float | None]) -> Cell:
    """
    >>> cell([0.5, 1.5, None, 1.0])
    Cell(mean=1.0, spread=0.5, seeds=3)
    """
    known = [value for value in values if value is not None]
    spread = statistics.stdev(known) if len(known) > 1 else None
    return Cell(statistics.fmean(known) if known else None, spread, len(known))


@dataclass(frozen=True)
class Row:
    """One metric of all methods."""

    name: str
    kind: Metric
    cells: dict[str, Cell]
    best: frozenset[str]
    """The methods with the best mean, at the digits that are shown; none where all are equal."""


SAME = ("Cor", "Con", "Cor_alpha", "Con_alpha")
"""Names that the framework gives to SD and TS: in the JSON, but no rows of their own."""


def table(methods: Mapping[str, Values]) -> list[Row]:
    """A row for each metric that at least one method has."""
    rows = []
    for name in next(iter(methods.values()), {}):
        if name in SAME or all(value is None for values in methods.values() for value in values[name]):
            continue
        kind = metric(name)
        cells = {method: cell(values[name]) for method, values in methods.items()}
        rows.append(Row(name, kind, cells, _best(cells, kind)))
    return rows


def _best(cells: Mapping[str, Cell], kind: Metric) -> frozenset[str]:
    known = {method: round(c.mean, 3) for method, c in cells.items() if c.mean is not None}
    if kind.higher is None or len(known) < 2:
        return frozenset()
    top = (max if kind.higher else min)(known.values())
    best = frozenset(method for method, mean in known.items() if mean == top)
    return best if len(best) < len(known) else frozenset()


def summary(methods: Mapping[str, Values]) -> dict[str, dict[str, dict[str, Any]]]:
    """`mean`, `spread` and number of `seeds`, by method and metric."""
    return {
        method: {name: asdict(cell(values)) for name, values in metrics.items()} for method, metrics in methods.items()
    }


def markdown(rows: Sequence[Row]) -> str:
    """Best means in bold; percentages say so in the first column."""
    methods = list(rows[0].cells) if rows else []
    lines = [
        "| | " + " | ".join(name.replace("|", "\\|") for name in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for row in rows:
        texts = [f"**{c.text(row.kind)}**" if m in row.best else c.text(row.kind) for m, c in row.cells.items()]
        lines.append(f"| {row.kind.title} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[Row]) -> str:
    """A `tabular` for `booktabs`; best means in bold."""
    methods = list(rows[0].cells) if rows else []
    lines = [f"\\begin{{tabular}}{{l{'r' * len(methods)}}}", "\\toprule"]
    lines += [" & ".join(["", *map(_escaped, methods)]) + " \\\\", "\\midrule"]
    for row in rows:
        texts = []
        for method, c in row.cells.items():
            text = c.text(row.kind, " \\pm ")
            bold = f"\\mathbf{{{text}}}" if method in row.best else text
            texts.append("--" if c.mean is None else f"${bold}$")
        lines.append(" & ".join([_escaped(row.kind.title), *texts]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


SPECIAL = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "×": "$\\times$",
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
}


def _escaped(text: str) -> str:
    """Names may hold what LaTeX reads as commands."""
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
