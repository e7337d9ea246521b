"""Choosing the settings of a fit: what the user gives, what the method and the weights decide, what suits the data."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sic import backbones
from sic.backbones.distilled import is_distilled, read_distilled
from sic.backbones.weights import PUBLISHED, published
from sic.backbones.weights import check as check_weights
from sic.data.dataset import ImageData, Task
from sic.data.images import UnreadableImage, image_size
from sic.directory import read_config
from sic.errors import SicError
from sic.methods import SIC, Classifier, method
from sic.settings import RECIPES, Fit, Form, RecipeName, Settings, check, flag, table
from sic.training.presets import preset

WORTH_COMPILING = 250_000
"""Images of 224 px that a GPU must have before it. A ResNet50 was compiled in 137 s beside an H200, and an image then
took 0.16 ms instead of 1.3 (results/speed.json, results/loader.json): this is twice what makes up for that."""
RENDERED = "FunnyBirds"
"""The layout of rendered images."""
NOT_FROZEN = ("epochs", "check_every", "temperature", "augmentation", "support_source", "ways", "compiled")
"""Settings that a fit on a frozen network has no use for: it sees every image once, and chooses T itself."""
PAPER_ON_BIRDS = {"lr": 1e-3, "augmentation": "none"}
"""What the paper does differently on FunnyBirds."""


def typical_size(data: ImageData, number: int = 64) -> int:
    """Median short side of some of the training images, from their headers."""
    samples = data.splits["train"]
    sides = []
    for sample in samples[:: max(1, len(samples) // number)]:
        try:
            sides.append(min(image_size(sample.path)))
        except UnreadableImage:
            continue  # the check of every file that follows says what is wrong with it
    if not sides:
        raise SicError(f"None of the images in {data.root} can be read.")
    return sorted(sides)[len(sides) // 2]


def meaningful(kind: type[Classifier], name: str) -> bool:
    """Whether a setting means something to a method."""
    return not table()[name].special or name in (*kind.options, *kind.fit_options)


def _check_method(said: dict[str, Any], kind: type[Classifier]) -> None:
    """Refuse what the method cannot do or has no use for; a wrong choice is named with the right ones."""
    for name in table():
        if name in said and not meaningful(kind, name):
            raise SicError(f"{flag(name)} means nothing to --method {kind.name}; leave it out.")
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
    """What the method chooses where nothing is said."""
    if task == "multi" and kind.losses == ("ce",):
        raise SicError(
            f"--method {kind.name} is for one label per image: its probabilities add up to 1, so that two classes "
            "cannot both be a yes; choose another method for this data."
        )
    loss = said.get("loss", "bce" if task == "multi" else kind.losses[0])
    if task == "multi" and loss == "ce":
        raise SicError("--loss ce is for one label per image: its classes exclude each other; use --loss bce here.")
    if loss == "ce" and said.get("balance"):
        raise SicError("--balance weighs yes against no, and --loss ce asks for neither; leave one of them out.")
    defaults: dict[str, Any] = {"loss": loss, "form": kind.forms[0], **kind.defaults}
    if kind.attributions:
        defaults["attribution"] = kind.attributions[0]
    if said.get("inference_supports") == "full":
        defaults["keep_support_images"] = False  # it would be a copy of the data
    return defaults


def choose(data: ImageData, said: dict[str, Any], *, gpu: bool | None = None) -> tuple[Settings, list[str]]:
    """Settings for `data`: `said` wins (None means not said). Also returns the choices in words."""
    gpu = torch.cuda.is_available() if gpu is None else gpu
    said = {name: value for name, value in said.items() if value is not None}
    check(said)
    if "backbone" in said:
        backbones.require(said["backbone"])
    notes: list[str] = []
    if "preset" in said:
        start = preset(said["preset"])
        notes.append(f"preset {said['preset']} ({start.data}; the paper reports {start.reported}; from {start.source})")
        if said.setdefault("method", start.method) != start.method:
            raise SicError(f"--preset {said['preset']} is for --method {start.method}, not {said['method']}.")
        said = {**start.settings(), **_inherited(said, method(said["method"])), **said}
    kind = method(said.get("method", "sic"))
    _check_method(said, kind)
    given = set(said)
    if "weights" in said:
        said = _with_start(said, kind, notes)
    said = {**_method_defaults(said, kind, data.task), **said}
    recipe_name: RecipeName = said.get("recipe") or _recipe(said)
    recipe = RECIPES[recipe_name]
    if recipe_name == "frozen":
        _check_frozen(said, given, kind)
    number = len(data.splits["train"])
    if data.layout == RENDERED and recipe_name == "paper":
        said = {**PAPER_ON_BIRDS, **said}
    view = _view(data, said, recipe_name, gpu, notes)
    backbone = said.get("backbone")
    if backbone is None:
        backbone = kind.backbones[0] if kind.backbones else "resnet_small" if view["size"] <= 128 else "resnet18"
        notes.append(f"backbone {backbone} (suits {view['size']} px)")
    largest_batch = number if recipe_name == "frozen" else number // 8
    batch = said.get("batch_size") or min(recipe.batch_size, max(8, largest_batch))
    epochs = said.get("epochs")
    if epochs is None and recipe_name == "frozen":
        epochs = 1
    elif epochs is None:
        # About 1,500 steps teach a small network; more data needs fewer passes.
        epochs = min(100, max(20, round(1500 * batch / number)))
        notes.append(f"{epochs} epochs of {number} training images")
    chosen: dict[str, Any] = {
        "backbone": backbone,
        "epochs": epochs,
        "lr": recipe.lr,
        "temperature": kind.temperatures.get(recipe_name, 1.0),
        "batch_size": batch,
        "recipe": recipe_name,
        "augmentation": recipe.augmentation,
    }
    settings = Settings(**{**chosen, **said, **view})
    if settings.fading:
        notes.append(
            f"biases fade over the first {settings.fading:.0%} of the steps; `sic distill` converts a conventional "
            "network better, with unlabelled images"
        )
    if settings.epochs % settings.check_every:
        raise SicError(
            f"--check-every {settings.check_every} must divide --epochs {settings.epochs}: the last epoch is checked."
        )
    if settings.support_source == "n-way" and settings.ways is None:
        settings = replace(settings, ways=min(len(data.classes), 2 * settings.batch_size))
        notes.append(f"{settings.ways} of {len(data.classes)} classes a step")
    if gpu and "compiled" not in said and _work(settings, kind, number, len(data.classes)) >= WORTH_COMPILING:
        settings = replace(settings, compiled=True)
        notes.append("the network is compiled first, which takes a minute or two (override with --no-compile)")
    with_t = "temperature" in kind.options and recipe_name != "frozen"  # which chooses T itself
    temperature = f"T = {settings.temperature:g}, " if with_t else ""
    notes.append(f"recipe {recipe_name}: {temperature}learning rate {settings.lr:g}, batches of {settings.batch_size}")
    if kind.collapses and recipe_name == "paper" and settings.weights is None:
        notes.append(
            "the paper's recipe without pretrained weights usually collapses; --recipe scratch is made for that"
        )
    return settings, notes


def _check_frozen(said: dict[str, Any], given: set[str], kind: type[Classifier]) -> None:
    """Refuse what a fit on a frozen network cannot do or has no use for; `given`: what the user said."""
    if kind is not SIC or "weights" not in said:
        raise SicError("--recipe frozen is for --method sic with --weights: what is frozen must know something.")
    for name in NOT_FROZEN:
        if name in given:
            raise SicError(f"{flag(name)} means nothing to --recipe frozen; leave it out, or use --recipe paper.")


def _view(data: ImageData, said: dict[str, Any], recipe: RecipeName, gpu: bool, notes: list[str]) -> dict[str, Any]:
    """How images become the model's input: `size`, `fit` and `resize`."""
    side, rendered = typical_size(data), data.layout == RENDERED
    size = said.get("size")
    if size is None:
        largest = 224 if gpu else 160 if recipe == "frozen" else 96
        size = max([s for s in (32, 64, 96, 128, 160, 224) if s <= min(side, largest)], default=32)
        slow = f", a CPU manages {largest}" if side > largest and not gpu else ""
        notes.append(f"image size {size} px (images are about {side} px{slow})")
    fit: Fit | None = said.get("fit")
    if fit is None:
        # Nothing may be cut off that matters to a user; the paper crops photographs.
        fit = "crop" if recipe == "paper" and not rendered else "squash"
        kept = "their central square" if fit == "crop" else "whole images, resized to a square"
        notes.append(f"{kept} (override with --fit {'squash' if fit == 'crop' else 'crop'})")
    # The paper looks at the central 224 of 256 px of a photograph, and at whole rendered birds.
    resize = round(size * 256 / 224) if recipe == "paper" and fit == "crop" else size
    return {"size": size, "fit": fit, "resize": resize}


def _work(settings: Settings, kind: type[Classifier], number: int, classes: int) -> float:
    """What a fit has to embed, in images of 224 px: queries and supports."""
    supports = settings.supports_per_class * (settings.ways or classes)
    with_supports = kind.selections and settings.support_source != "bank"
    per_query = 1 + (supports / settings.batch_size if with_supports else 0)
    return settings.epochs * number * per_query * (settings.size / 224) ** 2


def _recipe(said: dict[str, Any]) -> RecipeName:
    if "weights" not in said:
        return "scratch"
    # A model of ours has been bcosified already.
    return "bcosify" if said.get("form") == "bcosified" and not Path(said["weights"]).is_dir() else "paper"


def _inherited(said: dict[str, Any], kind: type[Classifier]) -> dict[str, Any]:
    """What a model of ours decides about the network that starts from it."""
    if "weights" not in said or not Path(said["weights"]).is_dir():
        return {}
    folder = Path(said["weights"])
    start, _ = read_config(folder)
    if start.form not in kind.forms:
        raise SicError(
            f"{folder} has a {start.form} network, and --method {kind.name} needs a {' or '.join(kind.forms)} one; "
            "start from another model, or leave --weights out."
        )
    names = ["backbone", "form", "antialiased", "b", "backbone_b"]
    if start.method == kind.name:
        names += ["latent", "temperature"]
    network = {name: getattr(start, name) for name in names if meaningful(kind, name)}
    return {**network, "size": start.preprocessing.size, "fit": start.preprocessing.fit}


def _with_start(said: dict[str, Any], kind: type[Classifier], notes: list[str]) -> dict[str, Any]:
    """What the weights to start from decide: everything about the network where they are a model of ours."""
    weights = said["weights"]
    if Path(weights).is_dir():
        said = {**_inherited(said, kind), **said}
        with_t = f" with T = {said['temperature']:g}" if "temperature" in said else ""
        notes.append(f"{said['backbone']} at {said['size']} px{with_t}, as in {weights}")
        return said
    if weights not in PUBLISHED and is_distilled(Path(weights)):
        return _with_distilled(said, kind, notes)
    backbone = said.get("backbone", kind.backbones[0] if kind.backbones else "resnet50")
    native = weights in published(backbone, "bcos") or (weights not in PUBLISHED and not backbone.startswith("timm/"))
    usual: Form = "bcos" if native else "bcosified"
    form = said.get("form", usual if usual in kind.forms else kind.forms[0])
    backbones.require(backbone)
    check_weights(weights, backbone, form)
    notes.append(f"a {form} {backbone} that starts from {weights}")
    return {**said, "backbone": backbone, "form": form}


def _with_distilled(said: dict[str, Any], kind: type[Classifier], notes: list[str]) -> dict[str, Any]:
    """What a file of `sic distill` decides."""
    backbone = read_distilled(Path(said["weights"])).backbone
    if "bcosified" not in kind.forms:
        raise SicError(f"{said['weights']} holds a B-cos network, which --method {kind.name} cannot use.")
    if said.get("backbone", backbone) != backbone or said.get("form", "bcosified") != "bcosified":
        raise SicError(f"{said['weights']} holds a bcosified {backbone}; leave out --backbone and --form.")
    recipe = said.get("recipe", "frozen" if kind is SIC else "paper")
    how = "stays as it is: only its projection is trained" if recipe == "frozen" else "is trained further"
    notes.append(f"the {backbone} of {said['weights']} {how}")
    return {**said, "backbone": backbone, "form": "bcosified", "recipe": recipe}


def loader_workers(fits: int = 1) -> int:
    """Half of the cores decode and augment, at most eight; where several fits run at a time, for each of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(8, max(1, cores // 2)) // fits)
