"""The metrics that `sic` measures: their names, their meaning, and whether higher is better.

To add a metric, add it here and compute it in the protocol that measures it. Tables, comparison, report, model card and
plots take it from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

EVALUATION = "evaluation.json"
"""The file with the results of `sic evaluate`."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        key: Its name in JSON.
        title: Its name for people.
        meaning: One phrase that explains it.
        higher_is_better: None if neither direction is better.
        percent: Whether tables show it in percent.
        short: Its name in tables, if it is not the title.
    """

    key: str
    title: str
    meaning: str
    higher_is_better: bool | None = True
    percent: bool = False
    short: str | None = None

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.short or self.title

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} (%)" if self.percent else self.label

    def number(self, value: float | None, spread: float | None = None, plus_minus: str = " ± ") -> str:
        """A value, with its spread if there is one, in the unit of the heading.

        >>> METRICS["accuracy"].number(0.846, 0.01), METRICS["ece"].number(None)
        ('84.6 ± 1.0', '–')
        """
        if value is None:
            return "–"
        factor, digits = (100, 1) if self.percent else (1, 3)
        end = "" if spread is None else f"{plus_minus}{factor * spread:.{digits}f}"
        return f"{factor * value:.{digits}f}{end}"

    def text(self, value: float | None) -> str:
        """A value with its unit.

        >>> METRICS["accuracy"].text(0.846)
        '84.6 %'
        """
        return f"{self.number(value)} %" if self.percent and value is not None else self.number(value)


ACCURACY = (
    Metric("accuracy", "accuracy", "images whose predicted class is correct", percent=True),
    Metric("balanced_accuracy", "balanced accuracy", "accuracy averaged over the classes", percent=True),
    Metric("map", "mean average precision", "average precision averaged over the classes", percent=True),
    Metric("per_label_accuracy", "per-label accuracy", "correct yes-or-no decisions, over all labels", percent=True),
    Metric("exact_match", "exact match", "images with every label correct", percent=True),
    Metric("auroc", "AUROC", "area under the ROC curve, averaged over the classes", percent=True),
    Metric("similar_case", "similar case found", "images with a class of at least 50 %", None, percent=True),
    Metric("ece", "calibration error", "expected gap between probability and accuracy (ECE)", False),
)
FUNNYBIRDS = (
    Metric("A", "accuracy", "images whose predicted class is correct", short="FunnyBirds A"),
    Metric("BI", "background independence", "background objects that do not affect the score", short="FunnyBirds BI"),
    Metric("CSDC", "controlled synthetic data check", "sufficient parts that the explanation names"),
    Metric("PC", "preservation check", "predictions that stay when the other parts are removed"),
    Metric("DC", "deletion check", "predictions that change when the named parts are removed"),
    Metric("D", "distractibility", "irrelevant parts that the explanation ignores"),
    Metric("SD", "single deletion", "rank correlation of a part's importance with the drop in score without it"),
    Metric("TS", "target sensitivity", "explanations that change correctly with the explained class"),
)
"""The axes of the FunnyBirds radar chart."""
FUNNYBIRDS_SUMMARY = (
    Metric("Com", "completeness", "(mean of CSDC, PC and DC, plus D) / 2"),
    Metric("Com_mean", "completeness, mean of 4", "mean of CSDC, PC, DC and D", short="FunnyBirds Com, mean of 4"),
    Metric("Cor", "correctness", "the same as single deletion"),
    Metric("Con", "contrastivity", "the same as target sensitivity"),
    Metric("TS_relative", "target sensitivity, scale-free", "of maps that are divided by their absolute sum"),
    Metric("threshold", "threshold", "share of the attribution above which a part counts as named", None),
)
BASELINES = ("part mask", "edge filter", "centred blob")
"""Maps that ask no model; FunnyBirds scores them beside the explanations."""
GRIDS = (
    Metric("grid_2x2", "grid pointing 2×2", "contributions in the correct image of a 2×2 grid", percent=True),
    Metric("grid_3x3", "grid pointing 3×3", "contributions in the correct image of a 3×3 grid", percent=True),
    Metric("grid_2x2_specific", "grid pointing 2×2, specific", "maps beyond the average class", percent=True),
    Metric("grid_3x3_specific", "grid pointing 3×3, specific", "maps beyond the average class", percent=True),
)
BOXES = (
    Metric("box_energy", "box pointing: energy", "contributions inside the bounding boxes", percent=True),
    Metric("box_hit", "box pointing: hits", "maps whose maximum is inside a bounding box", percent=True),
    Metric(
        "box_overlap", "box pointing: overlap", "strongest pixels, as many as the boxes have, inside them", percent=True
    ),
)
LOCALISATION = (*GRIDS, *BOXES)
"""For raw maps; `smoothed` gives the metrics of smoothed maps."""
FAITHFULNESS = (
    Metric("deletion", "deletion (area)", "predictions that stay while the strongest pixels are removed first", False),
    Metric("insertion", "insertion (area)", "predictions that stay while the strongest pixels are restored first"),
    Metric("stability", "stability (rank correlation)", "agreement of maps with and without invisible noise"),
    Metric(
        "randomised", "after randomisation (rank correlation)", "agreement of maps of the model and of random weights",
        None,
    ),
)  # fmt: skip

MATCHES = (
    Metric("part_agreement", "matches on the same part", "evidence whose two sides lie on the same part", percent=True),
    Metric("matched_share", "evidence that has a match", "in regions of the image that match the case", percent=True),
    Metric(
        "match_spearman", "matches: claimed and measured (rank correlation)", "agreement of what a region is said to "
        "add and what blanking it costs",
    ),
)  # fmt: skip

FRAME = (
    Metric("frame_mass", "frame: share of the map", "contributions in the outer tenth of the picture", None, True),
    Metric("frame_effect", "frame: share of the effect", "change of the score without this frame", None, True),
    Metric("frame_effect_of_another", "frame: effect, swapped", "the same with another image's frame", None, True),
    Metric("frame_times", "frame: map / effect", "about 1 if the map gives the frame what it is worth", None),
)


def _funnybirds(metric: Metric) -> Metric:
    return metric if metric.short else replace(metric, short=f"FunnyBirds {metric.key}")


def _of_alpha(metric: Metric) -> Metric:
    """The same, measured on the opacity of the colour picture."""
    return replace(metric, key=f"{metric.key}_alpha", short=f"{metric.label} (alpha)")


def _of_baseline(metric: Metric, name: str) -> Metric:
    """The same, measured on one of the `BASELINES`."""
    meaning = f"of maps that ask no model: {name}"
    return Metric(
        f"{metric.key}_{name.replace(' ', '_')}", metric.title, meaning, None, short=f"{metric.label} ({name})"
    )


def smoothed(metric: Metric) -> Metric:
    """The same, measured on maps that are averaged over 15×15 pixels."""
    return replace(metric, key=f"{metric.key}_smoothed", title=f"{metric.title}, smoothed")


_PARTS = tuple(map(_funnybirds, (*FUNNYBIRDS, *FUNNYBIRDS_SUMMARY)))
METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        *ACCURACY,
        *_PARTS,
        *map(_of_alpha, _PARTS[2:]),
        *(_of_baseline(metric, name) for name in BASELINES for metric in _PARTS if metric.key in ("Com", "SD")),
        *LOCALISATION,
        *map(smoothed, LOCALISATION),
        *FAITHFULNESS,
        *MATCHES,
        *FRAME,
    )
}
"""All metrics by key, in the order of the tables. Shares of rejected images follow, as `refused_<kind>`."""
NOT_COMPARED = ("exact_match", "similar_case")
"""Metrics of accuracy that a comparison leaves out."""
KINDS = {"contributions": "contributions", "alpha": "colour pictures (alpha)"}
"""The maps that FunnyBirds scores, with names for people: the signed contributions; or, where they are positive, the
opacity of the colour picture, without smoothing. Opacity is relative to the most opaque pixels of the same picture, so
pictures of two classes have the same scale."""


def metric(key: str) -> Metric:
    """The metric with this key."""
    if key.startswith("refused_"):
        kind = key.removeprefix("refused_").replace("_", " ")
        return Metric(key, f"refused: {kind}", f"{kind} that the model rejects", percent=True)
    return METRICS[key]


def headline(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The metrics in the result of an evaluation (`Suite.run`, `evaluation.json`) by key; None if undefined."""
    found: dict[str, float | None] = {}
    accuracy = result.get("accuracy", {})
    found |= {one.key: accuracy[one.key] for one in ACCURACY if one.key in accuracy and one.key not in NOT_COMPARED}
    birds = result.get("funnybirds", {})
    found |= {key: birds[key] for key in ("A", "BI") if key in birds}
    for kind, suffix in (("contributions", ""), ("alpha", "_alpha")):
        for name, value in birds.get(kind, {}).items():
            if f"{name}{suffix}" in METRICS:
                found[f"{name}{suffix}"] = value
    for name, values in birds.get("baselines", {}).items():
        found |= {f"{key}_{name.replace(' ', '_')}": values[key] for key in ("Com", "SD")}
    places = result.get("localisation", {})
    found |= {share.metric.key: share.value for share in localisation_shares(places) if share.group == "all"}
    if faithful := result.get("faithfulness"):
        found |= {name: faithful[name]["area"] for name in ("deletion", "insertion")}
        found["stability"] = faithful["stability"]["rank_correlation"]
        found["randomised"] = faithful["randomisation"]["stages"][-1]["rank_correlation"]
    if edge := result.get("frame"):
        known = {one.key: one.key.removeprefix("frame_") for one in FRAME}
        found |= {key: edge[own] for key, own in known.items() if own in edge}  # older results have fewer
    matches = result.get("matches", {})
    if agreed := matches.get("part_agreement", {}).get("matches"):
        found["part_agreement"] = agreed["agreement"]
    if "matched_share" in matches:
        found["matched_share"] = matches["matched_share"]
    if "causality" in matches:
        found["match_spearman"] = matches["causality"]["spearman"]
    for kind, figures in result.get("unfamiliar", {}).items():
        if kind != "familiar":
            found[f"refused_{kind.replace(' ', '_')}"] = figures["probability"]["flagged"]
    return found


@dataclass(frozen=True)
class Share:
    """The share of a map in the right place, and the share by chance."""

    metric: Metric
    group: str
    """Which maps: "all", or "found" for those of classes that the model predicts."""
    value: float | None
    chance: float | None
    measured_on: str


def localisation_shares(found: Mapping[str, Any]) -> list[Share]:
    """The rows of a table of localisation, from that part of an evaluation."""
    rows = []
    for one in GRIDS:
        if one.key in found:
            game = found[one.key]
            for each, values in _raw_and_smoothed(one, game):
                rows.append(Share(each, "all", values["share"], game["chance"], f"{game['grids']} grids"))
    for group in ("all", "found"):
        boxes = found.get("boxes", {}).get(group, {})
        if boxes.get("maps"):
            for one in BOXES:
                for each, values in _raw_and_smoothed(one, boxes):
                    value = values[one.key.removeprefix("box_")]
                    rows.append(Share(each, group, value, boxes["area"], f"{boxes['maps']} maps"))
    return rows


def _raw_and_smoothed(metric: Metric, found: Mapping[str, Any]) -> list[tuple[Metric, Mapping[str, Any]]]:
    """A metric with its values; evaluations of earlier versions have none of smoothed maps."""
    both = [(metric, found)]
    return [*both, (smoothed(metric), found["smoothed"])] if "smoothed" in found else both


def funnybirds_maps(found: Mapping[str, Any]) -> dict[str, str]:
    """The maps in the FunnyBirds part of an evaluation, `BASELINES` last, with names for people."""
    kinds = {kind: words for kind, words in KINDS.items() if kind in found}
    return kinds | {name: f"no model: {name}" for name in found.get("baselines", {})}


def funnybirds_values(found: Mapping[str, Any], kind: str) -> dict[str, float | None]:
    """The FunnyBirds metrics of one of the `KINDS` or `BASELINES`, by key, from that part of an evaluation.

    A and BI are metrics of the model: baselines have none.
    """
    values = {**found, **found[kind]} if kind in found else found["baselines"][kind]
    return {one.key: values.get(one.key) for one in (*FUNNYBIRDS, *FUNNYBIRDS_SUMMARY)}
