"""The model card: what a person should know who is handed a model directory."""

from typing import Any

from sic.backbones.weights import terms

USE = """```python
import sic

model = sic.load("this folder")
model.explain("image.jpg").save("why.png")
```"""


def model_card(config: dict[str, Any]) -> str:
    """Markdown for what `config.json` holds."""
    classes, training = config["classes"], config["training"]
    number = "any number" if config["task"] == "multi" else "one"
    shown = ", ".join(classes[:20]) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
    start = training.get("weights")
    images = config["data"].get("images", {}).get("train", "an unknown number of")
    parts = [
        "# An image classifier that can be checked",
        f"SIC with {config['supports_per_class']} supports per class on a {config['form']} {config['backbone']}, "
        f"{config['preprocessing']['size']} px, trained with sic {config['versions']['sic']}.",
        f"**Classes** ({len(classes)}; an image has {number} of them): {shown}.",
        f"**Trained on** {config['data'].get('name', 'unknown data')}, {images} images. "
        f"**Started from** {start or 'random weights'}.",
    ]
    if start is not None:
        parts.append(f"**Terms.** {terms(training.get('origin') or start)}")
    edits = sum(edit["undone"] is None for edit in config["edits"])
    if edits:
        parts.append(f"**Supports** were edited after training ({edits} edits, recorded in `config.json`).")
    if config["figures"]:
        parts.append("\n".join(f"- {name}: {_line(values)}" for name, values in config["figures"].items()))
    parts += [
        "An answer without a similar case (no probability reaches 0.5) is no answer. The pictures in `supports/` are "
        "copies of training images: treat them like the data that they are from.",
        USE,
    ]
    return "\n\n".join(parts) + "\n"


def _line(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
        if not isinstance(value, dict)
    )
