"""A file of `sic distill` as a model: the B-cos network with the classes of its teacher."""

from pathlib import Path
from typing import Any

import torch
from torchvision.models import ResNet50_Weights

from sic.backbones.distilled import Distilled, read_distilled
from sic.backbones.weights import Weights
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.errors import SicError
from sic.machines import exact_arithmetic
from sic.methods import Bcos
from sic.supports import Support

PREPROCESSING = Preprocessing(224, 256, "crop")
"""As ImageNet's classifiers are usually tested."""


def load_distilled(file: Path, device: torch.device | str = "cpu") -> tuple[Bcos, Config, list[Support]]:
    """The classifier in `file`, its configuration, and no supports: it answers as its teacher would."""
    content = read_distilled(file)
    if content.head is None:
        raise SicError(f"{file} holds a network without a classifier; use it as --weights of sic train.")
    config = Config(
        content.backbone,
        class_names(len(content.head)),
        "single",
        PREPROCESSING,
        1,  # as in every configuration; this method has no supports
        content.temperature,
        form="bcosified",
        method=Bcos.name,
        loss="ce",
        training=_training(content),
        figures=_figures(content, file),
    )
    exact_arithmetic()
    with torch.inference_mode(False):
        classifier = build(config, 0, load=Weights(content.network, str(file), converted=True))
        assert isinstance(classifier, Bcos)
        if classifier.head.weight.shape != content.head.shape:
            raise SicError(f"The classifier in {file} does not fit its {content.backbone}; distil it again.")
        with torch.no_grad():
            classifier.head.weight.copy_(content.head)
    return classifier.to(device).eval(), config, []


def _training(content: Distilled) -> dict[str, Any]:
    """Teacher and terms of the weights, as far as the file states them."""
    teacher, terms = content.origin.get("teacher"), content.origin.get("terms")
    return {"weights": teacher, "origin": teacher} | ({} if terms is None else {"terms": terms})


def _figures(content: Distilled, file: Path) -> dict[str, Any]:
    """The share of right answers of student and teacher, if it was measured after the distillation, and on what."""
    top1, tested = content.origin.get("top1"), content.origin.get("tested_on")
    if top1 is None:
        return {}
    try:
        about: dict[str, Any] = {} if tested is None else {"name": str(tested["name"]), "images": int(tested["images"])}
        shares = {"accuracy": float(top1["student"]), "teacher_accuracy": float(top1["teacher"])}
        if not all(0 <= share <= 1 for share in shares.values()) or about.get("images", 0) < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise SicError(f"What {file} says about its test is damaged; distil it again.") from None
    return {"test": shares | about}


def class_names(number: int) -> list[str]:
    """ImageNet's names for 1,000 classes, numbers otherwise."""
    names: list[str] = ResNet50_Weights.IMAGENET1K_V1.meta["categories"]
    # Two pairs of classes share a name (crane, maillot): a number tells them apart.
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    if number != len(names):
        return [f"class {index + 1}" for index in range(number)]
    return [f"{name} ({index})" if seen[name] > 1 else name for index, name in enumerate(names)]
