"""The results of `sic evaluate` on the page, if `evaluation.json` is in the model directory."""

import base64
import io
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sic.errors import SicError
from sic.evaluate.metrics import (
    EVALUATION,
    FUNNYBIRDS,
    FUNNYBIRDS_SUMMARY,
    KINDS,
    Metric,
    Share,
    funnybirds_values,
    localisation_shares,
)


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


def read_measurements(folder: Path) -> Measurements:
    """The evaluation in a model directory."""
    file = folder / EVALUATION
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
    scored = {words: funnybirds_values(birds, kind) for kind, words in KINDS.items() if kind in birds}
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
