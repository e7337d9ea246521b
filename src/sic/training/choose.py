"""Choosing the settings of a fit: what the user gives, what the method and the weights decide, what suits the data."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sic import backbones
from sic.backbones.distilled import PHOTOS
from sic.data.dataset import ImageData, Sample, Task
from sic.data.images import UnreadableImage, image_size, read_image
from sic.errors import SicError
from sic.methods import SIC, Classifier, method
from sic.settings import RECIPES, Fit, RecipeName, Settings, check, flag, table
from sic.training.presets import preset
from sic.training.start import default_recipe, inherited, with_start
from sic.training.teacher import check_teacher

WORTH_COMPILING = 250_000
"""Images of 224 px that a GPU must have before it. A ResNet50 was compiled in 137 s beside an H200, and an image then
took 0.16 ms instead of 1.3 (results/speed.json, results/loader.json): this is twice what makes up for that."""
MOST_MAPS = 4 * 2**30
"""Bytes of feature maps that a fit may keep unasked; beyond that, units are not local."""
RENDERED = "FunnyBirds"
"""The layout of rendered images."""
NOT_FROZEN = (
    *("epochs", "check_every", "augmentation", "support_source", "ways", "compiled", "padding", "antialiased"),
    *("teacher", "head_lr"),
)
"""Settings that a fit on a frozen network has no use for, because it sees every image once, or that change the network
without letting it adapt (with `--padding replicate`, balanced accuracy on RSNA fell from 68 to 51 %)."""
WITHOUT_PHOTOS = {"weights", "preset", "backbone", "form", "recipe", "temperature", *NOT_FROZEN} - {
    "teacher",
    "head_lr",
}
"""Settings that say how to train: whoever gives one of them does not get the weights for photographs unasked."""
SMALLEST_PHOTOGRAPH = 96
"""Short side in pixels."""
GREY = 4.0
"""Mean difference of red and green plus that of green and blue (of 255) up to which an image is grey."""
PAPER_ON_BIRDS = {"lr": 1e-3, "augmentation": "none"}
"""The settings of the paper that differ on FunnyBirds."""


def _some(data: ImageData, number: int) -> Sequence[Sample]:
    """About so many of the training images, spread evenly."""
    samples = data.splits["train"]
    return samples[:: max(1, len(samples) // number)]


def typical_size(data: ImageData, number: int = 64) -> int:
    """Median short side of some of the training images, from their headers."""
    sides, faults = [], []
    for sample in _some(data, number):
        try:
            sides.append(min(image_size(sample.path)))
        except UnreadableImage as error:  # the check of every file that follows says so of each
            faults.append(f"{sample.id}: {error}")
    if not sides:
        raise SicError(f"None of the images in {data.root} can be read ({faults[0]}).")
    return sorted(sides)[len(sides) // 2]


def _detailed(data: ImageData) -> bool:
    """Whether the training images are neither rendered nor small."""
    return data.layout != RENDERED and typical_size(data) >= SMALLEST_PHOTOGRAPH


def _coloured(data: ImageData, number: int = 16) -> bool:
    """Whether most of the training images have colours; some of them are read."""
    coloured = []
    for sample in _some(data, number):
        try:
            red, green, blue = np.asarray(read_image(sample.path).resize((32, 32)), np.float32).transpose(2, 0, 1)
        except UnreadableImage:
            continue
        coloured.append(np.abs(red - green).mean() + np.abs(green - blue).mean() > GREY)
    return bool(np.mean(coloured) > 0.5) if coloured else False


def photographs(data: ImageData) -> bool:
    """Whether the training images look like photographs: in colour, and not small."""
    return _detailed(data) and _coloured(data)


def _check_method(said: dict[str, Any], kind: type[Classifier]) -> None:
    """Refuse what the method cannot do or has no use for; a wrong choice is named with the right ones."""
    for name in table():
        if name in said and not kind.uses(name):
            raise SicError(f"{flag(name)} does not apply to --method {kind.name}; leave it out.")
    if "ways" in said and said.get("support_source") != "n-way":
        raise SicError("--ways goes with --support-source n-way only; add that, or leave it out.")
    allowed: dict[str, tuple[str, ...]] = {
        "form": kind.forms,
        "loss": kind.losses,
        "attribution": kind.attributions,
        "inference_supports": kind.selections,
        "backbone": kind.backbones,
    }
    for name, choices in allowed.items():
        if choices and said.get(name, choices[0]) not in choices:
            raise SicError(
                f"--method {kind.name} works with {flag(name)} {' or '.join(choices)} only, not {said[name]}."
            )


def _method_defaults(said: dict[str, Any], kind: type[Classifier], task: Task) -> dict[str, Any]:
    """The defaults of the method."""
    if task == "multi" and kind.losses == ("ce",):
        raise SicError(
            f"--method {kind.name} is for one label per image: its probabilities add up to 1, so it cannot find "
            "two classes in one image; choose another method for this data."
        )
    loss = said.get("loss", "bce" if task == "multi" else kind.losses[0])
    if task == "multi" and loss == "ce":
        raise SicError("--loss ce is for one label per image: its classes exclude each other; use --loss bce here.")
    if loss == "ce" and said.get("balance"):
        raise SicError(
            "--balance weights positives against negatives, which --loss ce does not have; leave one of them out."
        )
    defaults: dict[str, Any] = {"loss": loss, "form": kind.forms[0], **kind.defaults}
    if kind.attributions:
        defaults["attribution"] = kind.attributions[0]
    if said.get("inference_supports") == "full":
        defaults["keep_support_images"] = False  # it would be a copy of the data
    return defaults


def choose(data: ImageData, said: dict[str, Any], *, gpu: bool | None = None) -> tuple[Settings, list[str]]:
    """Choose the settings of a fit.

    Args:
        data: The images to train on.
        said: Settings that the user gives; they win. None counts as not given.
        gpu: Whether there is a GPU; by default, look.

    Returns:
        The settings, and the choices in words.
    """
    gpu = torch.cuda.is_available() if gpu is None else gpu
    said = {name: value for name, value in said.items() if value is not None}
    check(said)
    if "backbone" in said:
        backbones.require(said["backbone"])
    notes: list[str] = []
    said = _with_preset(said, notes)
    kind = method(said.get("method", "sic"))
    _check_method(said, kind)
    given = set(said)
    if kind is SIC and _wants_photos(said, data):
        said["weights"] = PHOTOS
    if "weights" in said:
        said = with_start(said, kind, gpu, notes)
    said = {**_method_defaults(said, kind, data.task), **said}
    recipe: RecipeName = said.get("recipe") or default_recipe(said)
    if RECIPES[recipe].projection_first:
        _check_projection_first(recipe, said, given, kind)
    if data.layout == RENDERED and recipe == "paper":
        said = {**PAPER_ON_BIRDS, **said}
    view = _view(data, said, recipe, gpu, notes)
    settings = Settings(**{**_defaults(data, said, kind, recipe, view["size"], notes), **said, **view})
    if settings.teacher is not None:
        check_teacher(Path(settings.teacher), data, settings.size)
        notes.append(f"imitates {settings.teacher}, beside the labels")
    return _completed(settings, said, data, kind, gpu, notes), notes


def _with_preset(said: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The user's settings on top of those of the preset that they name."""
    if "preset" not in said:
        return said
    start = preset(said["preset"])
    notes.append(f"preset {said['preset']} ({start.data}; the paper reports {start.reported}; from {start.source})")
    if said.setdefault("method", start.method) != start.method:
        raise SicError(f"--preset {said['preset']} is for --method {start.method}, not {said['method']}.")
    return {**start.settings(), **inherited(said, method(said["method"])), **said}


def _defaults(
    data: ImageData, said: dict[str, Any], kind: type[Classifier], name: RecipeName, size: int, notes: list[str]
) -> dict[str, Any]:
    """The settings that suit the number and the size of the images, where the user says nothing."""
    recipe, number, backbone = RECIPES[name], len(data.splits["train"]), said.get("backbone")
    if backbone is None:
        backbone = kind.backbones[0] if kind.backbones else "resnet_small" if size <= 128 else "resnet18"
        notes.append(f"backbone {backbone} (suits {size} px)")
    batch = said.get("batch_size") or min(recipe.batch_size, max(8, number if name == "frozen" else number // 8))
    epochs = said.get("epochs") or (1 if name == "frozen" else None)
    if epochs is None:
        # About 1,500 steps teach a small network; more data needs fewer passes.
        epochs = min(100, max(20, round(1500 * batch / number)))
        notes.append(f"{epochs} epochs of {number} training images")
    local = recipe.local_units and _maps(number, size) <= MOST_MAPS
    if recipe.local_units and not local and "local_units" not in said:
        notes.append("features are pooled first: those of every place would need much memory (override: --local-units)")
    return {
        "backbone": backbone,
        "epochs": epochs,
        "lr": recipe.lr,
        "temperature": kind.temperatures.get(name, 1.0),
        "batch_size": batch,
        "recipe": name,
        "augmentation": recipe.augmentation,
        "inference_supports": recipe.inference_supports if recipe.inference_supports in kind.selections else "nearest",
        "local_units": local,
    }


def _maps(number: int, size: int) -> int:
    """Bytes of the last feature maps of so many images, as a fit on a frozen network keeps them (ResNets)."""
    return number * round(size / 32) ** 2 * 2048 * 2


def _completed(
    settings: Settings, said: dict[str, Any], data: ImageData, kind: type[Classifier], gpu: bool, notes: list[str]
) -> Settings:
    """The settings with what follows from several of them; refuses those that contradict each other."""
    if settings.fading:
        notes.append(
            f"biases fade over the first {settings.fading:.0%} of the steps; `sic distill` converts a conventional "
            "network better, with unlabelled images"
        )
    if settings.epochs % settings.check_every:
        raise SicError(
            f"--check-every {settings.check_every} must divide --epochs {settings.epochs}: the last epoch must be "
            "validated."
        )
    classes, number = len(data.classes), len(data.splits["train"])
    if settings.support_source == "n-way" and settings.ways is None:
        settings = replace(settings, ways=min(classes, 2 * settings.batch_size))
        notes.append(f"{settings.ways} of {classes} classes a step")
    if _suits_bank(settings, said, kind, classes, gpu):
        settings = replace(settings, support_source="bank")
        notes.append("supports are remembered latents, which spares most work (override: --support-source exact)")
    if gpu and "compiled" not in said and _work(settings, kind, number, classes) >= WORTH_COMPILING:
        settings = replace(settings, compiled=True)
        notes.append("the network is compiled first, which takes a minute or two (override with --no-compile)")
    several = sum(len(sample.labels) > 1 for sample in data.splits["train"])
    if several and data.task == "single" and settings.loss == "bce" and "ambiguous" not in said:
        notes.append(f"{several} images fit several classes, each with the full target (override: --ambiguous share)")
    with_t = "temperature" in kind.options and not settings.projection_first  # which chooses T itself
    how = f"T = {settings.temperature:g}, " if with_t else ""
    how += f"learning rate {settings.lr:g}, batches of {settings.batch_size}"
    notes.append(f"recipe {settings.recipe}: {how}")
    if kind.collapses and settings.recipe == "paper" and settings.weights is None:
        notes.append(
            "the paper's recipe without pretrained weights usually collapses; --recipe scratch is made for that"
        )
    return settings


def _wants_photos(said: dict[str, Any], data: ImageData) -> bool:
    """Whether a fit starts from the weights for photographs although the user names none."""
    if "recipe" in said and RECIPES[said["recipe"]].projection_first:
        return not {"weights", "preset", "backbone", "form"} & said.keys()
    return not said.keys() & WITHOUT_PHOTOS and photographs(data)


def rival(data: ImageData, said: dict[str, Any]) -> dict[str, Any] | None:
    """The user's settings with the weights for photographs, for images that may or may not gain from them.

    These are images that are large enough but no photographs in colour, such as X-rays. Nobody can tell beforehand
    whether a network for photographs or one that is trained from scratch suits them. None: there is nothing to decide.
    """
    given = {name: value for name, value in said.items() if value is not None}
    decided = method(given.get("method", "sic")) is not SIC or given.keys() & WITHOUT_PHOTOS
    if decided or not _detailed(data) or _coloured(data):
        return None
    return {**said, "weights": PHOTOS}


def _check_projection_first(recipe: RecipeName, said: dict[str, Any], given: set[str], kind: type[Classifier]) -> None:
    """Refuse what a fit that begins with a frozen network cannot do or has no use for; `given`: what the user said."""
    if kind is not SIC or "weights" not in said:
        raise SicError(f"--recipe {recipe} needs --method sic and --weights: an untrained network cannot stay frozen.")
    for name in given:
        if name == "temperature":
            raise SicError(f"--temperature does not apply to --recipe {recipe}, which chooses T; leave it out.")
        if name in NOT_FROZEN and recipe == "frozen":
            raise SicError(f"{flag(name)} does not apply to --recipe frozen; leave it out, or add --fine-tune.")


def _view(data: ImageData, said: dict[str, Any], recipe: RecipeName, gpu: bool, notes: list[str]) -> dict[str, Any]:
    """How images become the model's input: `size`, `fit` and `resize`."""
    side, rendered = typical_size(data), data.layout == RENDERED
    size = said.get("size")
    if size is None:
        largest = 224 if gpu else 160 if RECIPES[recipe].projection_first else 96
        size = max([s for s in (32, 64, 96, 128, 160, 224) if s <= min(side, largest)], default=32)
        slow = f", {largest} px suit a CPU" if side > largest and not gpu else ""
        notes.append(f"image size {size} px (images are about {side} px{slow})")
    fit: Fit | None = said.get("fit")
    if fit is None:
        # Nothing may be cut off that matters to a user; the paper crops photographs.
        fit = "crop" if recipe == "paper" and not rendered else "squash"
        whole = "whole images, resized to a square (--fit crop: larger, but cuts off what is not in the middle)"
        notes.append("their central square (override with --fit squash)" if fit == "crop" else whole)
    # The paper looks at the central 224 of 256 px of a photograph, and at whole rendered birds.
    resize = round(size * 256 / 224) if recipe != "scratch" and fit == "crop" else size
    return {"size": size, "fit": fit, "resize": resize}


def _suits_bank(settings: Settings, said: dict[str, Any], kind: type[Classifier], classes: int, gpu: bool) -> bool:
    """Whether remembered latents can stand for supports: a pretrained network changes little from epoch to epoch, so
    they are hardly out of date. Presets keep to the paper, and few supports are embedded anyway; a GPU has time for
    several times as many as queries."""
    chosen = {"support_source", "ways", "preset"} & said.keys()
    many = settings.supports_per_class * classes > settings.batch_size * (4 if gpu else 1)
    pretrained = settings.recipe in ("paper", "tuned") and bool(settings.weights)
    return kind.uses("support_source") and not chosen and pretrained and many


def _work(settings: Settings, kind: type[Classifier], number: int, classes: int) -> float:
    """The work of a fit in embedded images of 224 px: queries and supports."""
    supports = settings.supports_per_class * (settings.ways or classes)
    with_supports = kind.selections and settings.support_source != "bank"
    per_query = 1 + (supports / settings.batch_size if with_supports else 0)
    return settings.epochs * number * per_query * (settings.size / 224) ** 2


def loader_workers(fits: int = 1) -> int:
    """Half of the cores decode and augment, at most eight; where several fits run at a time, for each of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(8, max(1, cores // 2)) // fits)
