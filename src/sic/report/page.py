"""The page: one HTML file that holds everything it shows."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sic.card import model_card
from sic.evaluate.metrics import ACCURACY
from sic.explain.html import environment, points
from sic.explain.prose import TOO_MUCH_NEGATIVE
from sic.report.class_views import PALETTE
from sic.report.content import Page

if TYPE_CHECKING:
    from markupsafe import Markup

FITS = {
    "squash": "the whole image is pressed into a square, so that nothing is cut off",
    "crop": "its central square is taken, so that what lies outside is never seen",
}


def render(page: Page) -> str:
    """The whole file."""
    made = environment("sic.report", "sic.explain")
    made.filters |= {
        "capital": lambda text: text[:1].upper() + text[1:],
        "day": _day,
        "percent1": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "plain": lambda value: f"{value:.3g}" if isinstance(value, float) else str(value),
        "precision": lambda value: "–" if value is None else f"{value:.3f}",
        "round2": lambda value: "–" if value is None else f"{value:.2f}".replace("-", "−"),
        "signed2": lambda value: "–" if value is None else points(value),
    }
    made.globals |= {"palette": PALETTE, "too_negative": TOO_MUCH_NEGATIVE}
    return made.get_template("page.html").render(
        page=page,
        lead=_lead(page),
        contents=_contents(page),
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


def _figures(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, value and meaning of each metric."""
    known = [metric for metric in ACCURACY if metric.key in figures]
    return [(metric.title, metric.text(figures[metric.key]), metric.meaning) for metric in known]


def _recorded(figures: dict[str, Any]) -> list[tuple[str, str | None, dict[str, float]]]:
    """Of each split: how many images, a note, the figures."""
    return [(f"{values['images']} {split}", values.get("note"), _named(values)) for split, values in figures.items()]


def _lead(page: Page) -> str:
    """The model in two sentences."""
    classes, supports = len(page.overview.classes), len(page.supports)
    which = "which" if page.multi else "which one"
    sentence = f"Says {which} of {classes} classes an image shows, by comparing it with {supports} training images."
    if page.predictions is None:
        return sentence
    figures, images = page.predictions.quality, len(page.predictions.samples)
    if page.multi:
        done = f"{100 * figures['per_label_accuracy']:.1f} % of its yes-or-no decisions were right"
    else:
        done = f"{100 * figures['accuracy']:.1f} % of its answers were right"
    return f"{sentence} On {images} {page.predictions.name}, {done}."


def _card(config: dict[str, Any]) -> "list[Markup]":
    """The model card's paragraphs; its title, its figures (shown above) and its code are left out."""
    from markupsafe import Markup, escape

    words = re.sub(r"```.*?```", "", model_card(config), flags=re.DOTALL).strip()
    paragraphs = [str(escape(text)) for text in words.split("\n\n") if not text.startswith(("#", "- "))]
    strong = [re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text) for text in paragraphs]
    return [Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", text)) for text in strong]


def _preprocessing(values: dict[str, Any]) -> str:
    fit = FITS.get(values["fit"], values["fit"])
    return (
        f"{values['size']} × {values['size']} pixels, RGB; {fit}. All pictures on this page are as the model sees them."
    )


def _contents(page: Page) -> list[tuple[str, str]]:
    found = [("read", "How to read this page"), ("quality", "How well it does")]
    if page.findings is not None:
        found.append(("findings", "What to look into"))
    for group in page.groups:
        found.append((group.anchor, f"{group.title} ({len(group.cases)})"))
    if page.groups:
        found.append(("confusions", "Confusions"))
    found += [
        ("supports", "The cases it compares with"),
        ("similarity", "Likeness of classes"),
        ("silhouette", "Separation"),
        ("projection", "All images at a glance"),
    ]
    if page.measurements.radar or page.measurements.shares:
        found.append(("measurements", "Are the explanations faithful?"))
    return [*found, ("card", "Model card")]
