"""Everything the page says, put together before any HTML is written."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sic.clinic.findings import Finding
from sic.directory import CONFIG, read_stored
from sic.explain import Overview
from sic.explain.picture import drawing_uri
from sic.model import Model
from sic.predictions import Predictions
from sic.report.case_views import CaseView, case_view
from sic.report.cases import Confusion, confusions, select
from sic.report.class_views import HeatMap, Plane, heat_map, plane
from sic.report.measurements import Measurements, read_measurements
from sic.report.support_views import SupportCard, support_cards

CONFUSIONS, EXAMPLES = 8, 4
"""Pairs of confused classes that are shown, and images of each."""
Watch = Callable[[str, int, int], None]
"""Told what is being done, how many are done, and of how many."""


@dataclass(frozen=True)
class CaseGroup:
    """Cases of a kind, why these, and of how many."""

    anchor: str
    title: str
    note: str
    cases: list[CaseView]


@dataclass(frozen=True)
class ConfusionView:
    """Two classes that were confused, with some of the images."""

    truth: int
    said: int
    number: int
    of: int
    """Images that show `truth`."""
    examples: list[tuple[str, str]]
    """Id and picture."""


@dataclass(frozen=True)
class ClassRow:
    """How well the model does on one class, and how well its latents stay together."""

    label: int
    name: str
    images: int
    found: int
    """Of the images that show it."""
    average_precision: float | None
    taken_for: tuple[str, int] | None
    silhouette: float | None


@dataclass(frozen=True)
class Page:
    """What the template draws."""

    title: str
    made: datetime
    config: dict[str, Any]
    overview: Overview
    supports: list[SupportCard]
    rows: list[ClassRow]
    predictions: Predictions | None
    groups: list[CaseGroup]
    confusions: list[ConfusionView]
    confused: int
    """Pairs of classes that were confused, shown or not."""
    heat_maps: list[HeatMap]
    plane: Plane
    findings: Sequence[Finding] | None
    """None: nobody looked."""
    measurements: Measurements

    @property
    def multi(self) -> bool:
        return bool(self.config["task"] == "multi")

    @property
    def has_pictures(self) -> bool:
        return any(support.image for support in self.supports)

    def of_class(self, label: int) -> list[SupportCard]:
        return [support for support in self.supports if support.label_index == label]


def gather(
    model: Model,
    folder: Path,
    predictions: Predictions | None,
    *,
    cases: int,
    seed: int = 0,
    findings: Sequence[Finding] | None = None,
    watch: Watch | None = None,
) -> Page:
    """`folder`: the model's directory. `cases`: how many of each kind are explained."""
    # Of the file only what a loaded model forgets: the versions it was made with.
    config = json.loads(read_stored(folder, CONFIG)) | asdict(model.config)
    overview = model.overview(predictions, seed=seed)
    supports = support_cards(overview)
    groups: list[CaseGroup] = []
    confused: list[Confusion] = []
    if predictions is not None:
        groups = _groups(model, predictions, supports, cases, seed, watch)
        confused = confusions(predictions)
    return Page(
        folder.resolve().name,
        datetime.now().astimezone(),
        config,
        overview,
        supports,
        _rows(overview, predictions, confused),
        predictions,
        groups,
        [] if predictions is None else [_confusion(model, predictions, pair) for pair in confused[:CONFUSIONS]],
        len(confused),
        _heat_maps(overview, predictions),
        plane(overview, [] if predictions is None else predictions.samples, model.config.preprocessing),
        findings,
        read_measurements(folder),
    )


def _groups(
    model: Model,
    predictions: Predictions,
    supports: list[SupportCard],
    number: int,
    seed: int,
    watch: Watch | None,
) -> list[CaseGroup]:
    chosen = select(predictions, number, seed)
    what = "answers" if model.config.task == "single" else "labels"
    kinds = [
        ("right", "Right", f"drawn at random from the {chosen.all_right} right {what}", chosen.right),
        ("wrong", "Wrong", f"of the {chosen.all_wrong} wrong {what} the surest ones, class after class", chosen.wrong),
        (
            "unsure",
            "Least certain",
            "the answers nearest to the limit between yes and no, class after class",
            chosen.unsure,
        ),
    ]
    total = sum(len(found) for *_, found in kinds)
    groups, done = [], 0
    for anchor, title, note, found in kinds:
        views = []
        for case in found:
            views.append(case_view(model, case, predictions.samples[case.row], supports))
            done += 1
            if watch is not None:
                watch("explaining", done, total)
        groups.append(CaseGroup(anchor, title, note, views))
    return groups


def _rows(overview: Overview, predictions: Predictions | None, confused: Sequence[Confusion]) -> list[ClassRow]:
    classes = overview.classes
    silhouettes = overview.image_silhouette or overview.support_silhouette
    apart = [None] * len(classes) if silhouettes is None else silhouettes.per_class
    images, found = [0] * len(classes), [0] * len(classes)
    precisions: dict[str, float | None] = {}
    if predictions is not None:
        truth = predictions.targets == 1
        # Where several answers are right, any of them finds the image.
        said = predictions.answers if predictions.task == "multi" else predictions.right[:, None]
        images = truth.sum(dim=0).tolist()
        found = (truth & said).sum(dim=0).tolist()
        precisions = predictions.quality.get("average_precision", {})
    most: dict[int, tuple[str, int]] = {}
    for pair in confused:
        most.setdefault(pair.truth, (classes[pair.said], len(pair.rows)))
    return [
        ClassRow(label, name, images[label], found[label], precisions.get(name), most.get(label), apart[label])
        for label, name in enumerate(classes)
    ]


def _confusion(model: Model, predictions: Predictions, pair: Confusion) -> ConfusionView:
    chosen = [predictions.samples[row] for row in pair.rows[:EXAMPLES]]
    examples = [(one.id, drawing_uri(model.tensor(one.path).permute(1, 2, 0).cpu().numpy())) for one in chosen]
    of = sum(pair.truth in sample.labels for sample in predictions.samples)
    return ConfusionView(pair.truth, pair.said, len(pair.rows), of, examples)


def _heat_maps(overview: Overview, predictions: Predictions | None) -> list[HeatMap]:
    found = []
    if overview.image_similarity is not None and predictions is not None:
        note = f"Row: what the {predictions.name} show. Column: the class whose cases they are compared with."
        found.append(heat_map(overview.image_similarity, overview, "Images against cases", note))
    note = "Row and column: the classes whose cases are compared with each other, no case with itself."
    found.append(heat_map(overview.support_similarity, overview, "Cases against cases", note))
    return found
