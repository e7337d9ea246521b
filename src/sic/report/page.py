"""The content of the report, before any HTML is written."""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sic.calibration import calibration_from_json
from sic.clinic import Finding
from sic.data.dataset import Watch
from sic.directory import CONFIG, read_stored
from sic.errors import SicError
from sic.evaluate.metrics import (
    EVALUATION,
    FUNNYBIRDS,
    FUNNYBIRDS_SUMMARY,
    Metric,
    Share,
    funnybirds_maps,
    funnybirds_values,
    localisation_shares,
)
from sic.explain import Overview
from sic.files import inside
from sic.model import Model
from sic.predictions import Predictions
from sic.report.classes import HeatMap, Plane, SupportCard, heat_map, plane, support_cards
from sic.report.examples import Confusion, ConfusionView, ExampleView, confusion_view, confusions, example_views, select
from sic.run import kind_of_images

CONFUSIONS = 8
"""The most pairs of confused classes that are shown."""


@dataclass(frozen=True)
class ExampleGroup:
    """Examples of one kind, and how they were chosen."""

    anchor: str
    title: str
    note: str
    examples: list[ExampleView]


@dataclass(frozen=True)
class ClassRow:
    """The performance on one class, and how well its latents are separated."""

    label: int
    name: str
    images: int
    found: int
    """Images of the class that are predicted as such."""
    average_precision: float | None
    taken_for: tuple[str, int] | None
    silhouette: float | None


@dataclass(frozen=True)
class Measurements:
    """FunnyBirds as a radar chart and a table; localisation as shares. Empty if not measured."""

    radar: str | None = None
    """Data URI."""
    kinds: tuple[str, ...] = ()
    """Which maps were scored: the columns of the table."""
    rows: tuple[tuple[Metric, list[float | None]], ...] = ()
    shares: tuple[Share, ...] = ()
    source: str = ""
    """The images, and when they were evaluated."""


@dataclass(frozen=True)
class Page:
    """The content of the report."""

    title: str
    made: datetime
    config: dict[str, Any]
    overview: Overview
    supports: list[SupportCard]
    rows: list[ClassRow]
    predictions: Predictions | None
    groups: list[ExampleGroup]
    confusions: list[ConfusionView]
    confused: int
    """Number of confused pairs of classes, including those not shown."""
    heat_maps: list[HeatMap]
    plane: Plane
    findings: Sequence[Finding] | None
    """None if the clinic did not run."""
    measurements: Measurements

    @property
    def kind(self) -> str:
        """The kind of images that the predictions are for: test images, or validation images."""
        return "images" if self.predictions is None else kind_of_images(self.predictions.name)

    @property
    def multi(self) -> bool:
        return bool(self.config["task"] == "multi")

    @property
    def formula(self) -> str:
        """How probabilities follow from scores."""
        return calibration_from_json(self.config["calibration"]).formulas(self.config["loss"])

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
    examples: int,
    seed: int = 0,
    findings: Sequence[Finding] | None = None,
    watch: Watch | None = None,
) -> Page:
    """Collect what the report shows.

    Args:
        model: The loaded model.
        folder: Its directory.
        predictions: The predictions for held-out images; None for a report without images.
        examples: How many images of each kind to explain.
        seed: For the random selection of correct predictions and for the projection.
        findings: The findings of the clinic; None if it did not run.
        watch: Is told about progress.
    """
    # The file also holds the library versions, which a loaded model does not keep.
    config = json.loads(read_stored(folder, CONFIG)) | asdict(model.config)
    overview = model.overview(predictions, seed=seed)
    supports = support_cards(overview)
    groups: list[ExampleGroup] = []
    confused: list[Confusion] = []
    if predictions is not None:
        groups = _groups(model, predictions, supports, examples, seed, watch)
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
        [] if predictions is None else [confusion_view(model, predictions, pair) for pair in confused[:CONFUSIONS]],
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
) -> list[ExampleGroup]:
    chosen = select(predictions, number, seed)
    what = "answers" if model.config.task == "single" else "labels"
    spread = "from as many classes as possible"
    kinds = [
        ("right", "Correct", f"a random sample of the {chosen.all_right} correct {what}", chosen.right),
        ("wrong", "Wrong", f"the most confident of the {chosen.all_wrong} wrong {what}, {spread}", chosen.wrong),
        ("unsure", "Least certain", f"the {what} closest to 50 %, {spread}", chosen.unsure),
    ]
    total = sum(len(found) for *_, found in kinds)
    views = []
    for view in example_views(model, [example for *_, found in kinds for example in found], predictions, supports):
        views.append(view)
        if watch is not None:
            watch("explaining", len(views), total)
    rest = iter(views)
    return [ExampleGroup(anchor, title, note, list(islice(rest, len(found)))) for anchor, title, note, found in kinds]


def _rows(overview: Overview, predictions: Predictions | None, confused: Sequence[Confusion]) -> list[ClassRow]:
    classes = overview.classes
    silhouettes = overview.image_silhouette or overview.support_silhouette
    apart = [None] * len(classes) if silhouettes is None else silhouettes.per_class
    images, found = [0] * len(classes), [0] * len(classes)
    precisions: dict[str, float | None] = {}
    if predictions is not None:
        truth = predictions.targets == 1
        # If several answers are correct, any of them counts; without a similar case there is no answer.
        answered = predictions.similar_case[:, None]
        said = predictions.answers if predictions.task == "multi" else predictions.right[:, None] & answered
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


def _heat_maps(overview: Overview, predictions: Predictions | None) -> list[HeatMap]:
    found = []
    if overview.image_similarity is not None and predictions is not None:
        note = f"Row: true class of the {predictions.name}. Column: class of the cases they are compared with."
        found.append(heat_map(overview.image_similarity, overview, "Images and cases", note))
    note = "Row and column: classes of the cases that are compared with each other; no case with itself."
    found.append(heat_map(overview.support_similarity, overview, "Cases and cases", note))
    return found


def read_measurements(folder: Path) -> Measurements:
    """The evaluation in a model directory."""
    file = inside(folder / EVALUATION, folder)
    if not file.is_file():
        return Measurements()
    try:
        return _measurements(json.loads(file.read_text(encoding="utf-8")), file)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SicError(f"{file} is damaged ({error!r}); run sic evaluate again, or remove it.") from None


def _measurements(content: dict[str, Any], file: Path) -> Measurements:
    written = datetime.fromtimestamp(file.stat().st_mtime)
    source = f"{content['images']} {content['data']} on {written.day} {written:%B %Y}"
    shares = [share for share in localisation_shares(content.get("localisation") or {}) if share.group == "all"]
    birds = content.get("funnybirds") or {}
    scored = {words: funnybirds_values(birds, kind) for kind, words in funnybirds_maps(birds).items()}
    rows = []
    for metric in (*FUNNYBIRDS, *FUNNYBIRDS_SUMMARY):
        values = [known[metric.key] for known in scored.values()]
        if any(value is not None for value in values):
            rows.append((metric, values))
    return Measurements(_radar(birds) if scored else None, tuple(scored), tuple(rows), tuple(shares), source)


def _radar(birds: dict[str, Any]) -> str:
    from sic.evaluate.plots import funnybirds_radar

    buffer = io.BytesIO()
    funnybirds_radar(birds).savefig(buffer, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
