"""The report as one self-contained HTML file."""

import re
from base64 import b64encode
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sic.card import images_of, model_card
from sic.evaluate.headline import quality_lines
from sic.evaluate.metrics import ACCURACY
from sic.explain.html import environment
from sic.explain.prose import TOO_MUCH_NEGATIVE
from sic.explain.render import decimals, points
from sic.predictions import Predictions
from sic.report.classes import PALETTE
from sic.report.page import Page

if TYPE_CHECKING:
    from markupsafe import Markup

FITS = {
    "squash": "the whole image is resized to a square",
    "crop": "the central square is cropped; the model does not see the rest",
}


def render(page: Page) -> str:
    """The HTML file as text. Its policy lets a browser run the one script that it comes with, and load nothing."""
    from markupsafe import Markup

    made = environment("sic.report", "sic.explain")
    made.filters |= {
        "capital": lambda text: text[:1].upper() + text[1:],
        "day": _day,
        "percent1": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "plain": lambda value: f"{value:.3g}" if isinstance(value, float) else str(value),
        "precision": lambda value: "–" if value is None else f"{value:.3f}",
        "round2": lambda value: "–" if value is None else decimals(value),
        "signed2": lambda value: "–" if value is None else points(value),
    }
    made.globals |= {"palette": PALETTE, "too_negative": TOO_MUCH_NEGATIVE}
    script = made.get_template("script.js").render()
    return made.get_template("page.html").render(
        page=page,
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        lead=_lead(page),
        contents=_contents(page),
        headline=[] if page.predictions is None else _headline(page.predictions),
        figures=[] if page.predictions is None else _figures(page.predictions.quality),
        recorded=_recorded(page.config["figures"]),
        card=_card(page.config),
        preprocessing=_preprocessing(page.config["preprocessing"]),
    )


def _day(moment: datetime) -> str:
    return f"{moment.day} {moment:%B %Y}"


def _named(figures: dict[str, Any]) -> dict[str, float]:
    """The metrics among recorded figures, by title."""
    return {metric.title: figures[metric.key] for metric in ACCURACY if metric.key in figures}


def _headline(predictions: Predictions) -> list[str]:
    clean = predictions.without_copies
    return quality_lines(predictions.quality, None if clean is None else clean.quality)


def _figures(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, value and meaning of each metric."""
    known = [metric for metric in ACCURACY if metric.key in figures]
    return [(metric.title, metric.text(figures[metric.key]), metric.meaning) for metric in known]


def _recorded(figures: dict[str, Any]) -> list[tuple[str, str | None, dict[str, float]]]:
    """For each split: the number of images, if it is known, a note and the metrics."""
    return [
        (f"{values.get('images', '')} {images_of(split)}".lstrip(), values.get("note"), _named(values))
        for split, values in figures.items()
    ]


def _lead(page: Page) -> str:
    """The model in a sentence or two."""
    classes, supports = len(page.overview.classes), len(page.supports)
    what = "finds the classes" if page.multi else "predicts the class"
    sentence = f"The model {what} of an image ({classes} classes) by comparing it with {supports} training images."
    if page.predictions is None:
        return sentence
    return f"{sentence} How good it is on {page.predictions.name}:"


def _card(config: dict[str, Any]) -> "list[Markup]":
    """The paragraphs of the model card, without its title, its metrics (shown above) and its code."""
    from markupsafe import Markup, escape

    words = re.sub(r"```.*?```", "", model_card(config), flags=re.DOTALL).strip()
    paragraphs = [str(escape(text)) for text in words.split("\n\n") if not text.startswith(("#", "- "))]
    strong = [re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text) for text in paragraphs]
    return [Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", text)) for text in strong]


def _preprocessing(values: dict[str, Any]) -> str:
    fit = FITS.get(values["fit"], values["fit"])
    return f"{values['size']} × {values['size']} pixels, RGB; {fit}. All pictures on this page have this resolution."


def _contents(page: Page) -> list[tuple[str, str]]:
    found = [("read", "How to read this page"), ("quality", "Performance")]
    if page.findings is not None:
        found.append(("findings", "Findings"))
    for group in page.groups:
        found.append((group.anchor, f"{group.title} ({len(group.examples)})"))
    if page.groups:
        found.append(("confusions", "Confusions"))
    found += [
        ("supports", "Cases"),
        ("similarity", "Similarity of classes"),
        ("silhouette", "Separation"),
        ("projection", "Map of all images"),
    ]
    if page.measurements.radar or page.measurements.shares:
        found.append(("measurements", "Are the explanations faithful?"))
    return [*found, ("card", "Model card")]
