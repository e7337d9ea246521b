"""The model card, which describes a model directory to people."""

from collections.abc import Mapping
from typing import Any

from sic.backbones.weights import terms
from sic.calibration import Calibration, calibration_from_json
from sic.evaluate.headline import Headline
from sic.evaluate.metrics import ACCURACY
from sic.methods import METHODS

NO_PROMISE = "The model promises nothing about its answers on new images."
USE = """```python
import sic

model = sic.load("this folder")
model.explain("image.jpg").save("why.png")
```"""


def model_card(config: dict[str, Any]) -> str:
    """The model card in Markdown, from the content of `config.json`."""
    classes, training, kind = config["classes"], config["training"], METHODS[config["method"]]
    number = "any number" if config["task"] == "multi" else "one"
    shown = ", ".join(classes[:20]) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
    start = training.get("weights")
    images = config["data"].get("images", {}).get("train", "an unknown number of")
    cut = ", each cropped to its bounding box" if config["data"].get("roi") else ""
    supports = f" with {config['supports_per_class']} {kind.supports_noun} per class" if kind.with_supports else ""
    parts = [
        "# An interpretable image classifier" if kind.by_similarity else "# An image classifier",
        f"{kind.title}{supports} on a {config['form']} {config['backbone']}, "
        f"{config['preprocessing']['size']} px, trained with sic {config['versions']['sic']}.",
        f"**Classes** ({len(classes)}; an image has {number} of them): {shown}.",
        f"**Trained on** {config['data'].get('name', 'unknown data')}, {images} images{cut}. "
        f"**Started from** {start or 'random weights'}.",
    ]
    bound = terms_of(training)
    if bound is not None:
        parts.append(f"**Terms.** {bound}")
    edits = sum(edit["undone"] is None for edit in config["edits"])
    if edits:
        parts.append(f"**Supports** were edited after training ({edits} edits, recorded in `config.json`).")
    if config["figures"]:
        parts.append(
            "\n".join(f"- {images_of(name)}: {_line(name, values)}" for name, values in config["figures"].items())
        )
    calibration = calibration_from_json(config["calibration"])
    if calibration.images:
        parts.append(
            f"**Probabilities** are {calibration.formulas(config['loss'])}, fitted on {calibration.images} held-out "
            "images after training. Scores and explanations are those of the model as trained."
        )
    if (told := promise_words(calibration, config["task"])) is not None:
        usage = " `sic predict --promise` gives only these answers." if calibration.promise is not None else ""
        parts.append(f"**Promise.** {told}{usage}")
    if kind.by_similarity:
        parts.append("If no class reaches a probability of 0.5, there is no similar case: do not use the prediction.")
    if kind.with_supports:
        parts.append(
            "The images in `supports/` are copies of training images: treat them like the data that they come from."
        )
    parts.append(USE)
    return "\n\n".join(parts) + "\n"


def terms_of(training: Mapping[str, Any]) -> str | None:
    """The terms of the weights that a model started from, given its settings; None if it has none."""
    start = training.get("weights")
    if start is None:
        return None
    return training.get("terms") or terms(training.get("origin") or start)


def models_compared(training: Mapping[str, Any]) -> int:
    """How many models were compared on the validation images: epochs, the frozen one of a tuned one, a rival.

    >>> models_compared({"recipe": "frozen", "compared": 50})
    51
    """
    return candidates(training) + int(training.get("compared", 0))


def candidates(training: Mapping[str, Any]) -> int:
    """How many models a fit itself chooses among: one of each validation, and the frozen one of a tuned one.

    >>> candidates({"recipe": "tuned", "epochs": 12, "check_every": 4}), candidates({"recipe": "frozen"})
    (4, 1)
    """
    recipe = training.get("recipe", "frozen")
    return 1 if recipe == "frozen" else int(training["epochs"] // training.get("check_every", 1)) + (recipe == "tuned")


def validation_note(training: Mapping[str, Any], calibrated: int, edited: bool = False) -> str | None:
    """What the validation images decided, so that figures on them look better than on new images; None for nothing.

    Args:
        training: The settings of the training.
        calibrated: The number of images that the probabilities were fitted on.
        edited: Whether supports were edited.

    >>> validation_note({"recipe": "frozen"}, 60)
    'the probabilities were fitted on these images'
    >>> validation_note({"recipe": "paper", "best_epoch": 8, "epochs": 12, "check_every": 4}, 0, edited=True)
    'the best epoch was chosen and the supports were edited on these images'
    """
    decided = []
    if models_compared(training) > 1:
        decided.append(f"the {'best epoch' if 'best_epoch' in training else 'model'} was chosen")
    if calibrated:
        decided.append("the probabilities were fitted")
    if edited:
        decided.append("the supports were edited")
    before = ", ".join(decided[:-1])
    return f"{before and before + ' and '}{decided[-1]} on these images" if decided else None


def caution(note: str | None) -> str | None:
    """A sentence from `validation_note`.

    >>> caution("the probabilities were fitted on these images")
    'The probabilities were fitted on these images: expect less on new ones.'
    """
    return f"{note[0].upper()}{note[1:]}: expect less on new ones." if note else None


def promise_words(calibration: Calibration, task: str) -> str | None:
    """The promise of a model, or that it makes none; None for several labels, where there is none."""
    if calibration.promise is not None:
        return str(calibration.promise)
    return NO_PROMISE if task == "single" else None


def images_of(split: str) -> str:
    """The images of a split of a model's figures, in words.

    >>> images_of("test"), images_of("test_without_copies")
    ('test images', 'test images without copies')
    """
    name, _, without = split.partition("_")
    return f"{name} images {without.replace('_', ' ')}".rstrip()


def _line(split: str, figures: dict[str, Any]) -> str:
    """The headline, then the other metrics."""
    known = [metric for metric in ACCURACY if isinstance(figures.get(metric.key), float)]
    metrics = ", ".join(f"{metric.title} {metric.text(figures[metric.key])}" for metric in known)
    images = f" ({figures['images']} images)" if "images" in figures else ""
    headline, note = Headline.of(figures), figures.get("note")
    start = "" if headline is None else f"{headline.sentence} "
    if note:  # that of images without copies says how many were left out
        start += f"{caution(note) if split == 'validation' else f'{note[0].upper()}{note[1:]}.'} "
    return f"{start}{'If every image had to be answered: ' if headline else ''}{metrics}{images}"
