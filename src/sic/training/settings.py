"""Every choice of a fit in one place: what the user said, and what sic chose where they said nothing."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from sic import backbones
from sic.backbones import FORMS, Form
from sic.backbones.weights import PUBLISHED, check, published
from sic.data.dataset import ImageData
from sic.data.images import Preprocessing, UnreadableImage, image_size
from sic.data.transforms import Augmentation
from sic.directory import read_config
from sic.errors import SicError
from sic.methods import LOSSES, SIC, Bcos, Classifier, Loss, method
from sic.supports import HOW, How
from sic.training.of_method import check_method, flag, means_something, method_defaults
from sic.training.presets import preset

RecipeName = Literal["scratch", "paper", "bcosify"]
SupportSource = Literal["exact", "bank", "n-way"]
"""Of a training step. exact: images of every class, embedded with the queries. bank: remembered latents of every class.
n-way: images of some classes, embedded with the queries."""


@dataclass(frozen=True)
class Recipe:
    """How to optimise; `guided` adds the terms that keep a network without pretrained weights from collapsing."""

    lr: float
    temperature: float
    batch_size: int
    guided: bool
    clip: float | None
    augmentation: Augmentation
    fading: float = 0.0
    """Share of the steps over which a bcosified network loses its biases and reaches its B."""


RECIPES: dict[RecipeName, Recipe] = {
    # The paper's own: binary cross-entropy alone, the settings of its ResNet50 on VOC. It needs pretrained weights.
    "paper": Recipe(1e-4, 30.0, 32, guided=False, clip=None, augmentation="photo"),
    # Ours, for networks that start from nothing; see results/scratch.
    "scratch": Recipe(3e-3, 1.0, 64, guided=True, clip=1.0, augmentation="affine"),
    # Ours, for a network that is turned from a conventional into a B-cos one on the way; see results/bcosified.
    "bcosify": Recipe(3e-4, 1.0, 64, guided=False, clip=1.0, augmentation="photo", fading=0.4),
}


CHOICES: dict[str, tuple[str, ...]] = {
    "fit": ("crop", "squash"),
    "form": FORMS,
    "recipe": tuple(RECIPES),
    "augmentation": get_args(Augmentation),
    "loss": LOSSES,
    "inference_supports": HOW,
    "support_source": get_args(SupportSource),
}
BCOS_TEMPERATURE: dict[RecipeName, float] = {"scratch": 0.1, "bcosify": 0.1}
"""Of the method bcos: outputs of its head are small at first, and would wait for the features to grow."""
WORTH_COMPILING = 250_000
"""Images of 224 px that a GPU must have before it. A ResNet50 was compiled in 137 s beside an H200, and an image then
took 0.16 ms instead of 1.3 (results/speed.json, results/loader.json): this is twice what makes up for that."""
PAPER_ON_BIRDS = {"lr": 1e-3, "augmentation": "none"}
"""What the paper does differently on FunnyBirds."""


@dataclass(frozen=True)
class Settings:
    """What a run is made of; written to `run.json`, read back by `--resume`."""

    backbone: str
    preprocessing: Preprocessing
    epochs: int
    lr: float
    temperature: float
    batch_size: int
    recipe: RecipeName
    augmentation: Augmentation
    form: Form = "bcos"
    antialiased: bool = False
    supports_per_class: int = 3
    latent: int = 128
    b: float = 2
    backbone_b: float | None = None
    """B of the backbone's units, if it is another than that of the projection and the similarity."""
    seed: int = 0
    validation: float = 0.15
    weights: str | None = None
    keep_support_images: bool = True
    method: str = "sic"
    loss: Loss = "bce"
    relu: bool = True
    attribution: str | None = None
    neighbours: int | None = None
    inference_supports: How = "nearest"
    support_source: SupportSource = "exact"
    ways: int | None = None
    """How many classes a step compares with (n-way)."""
    weight_decay: float = 0.0
    balance: bool = False
    """Weigh each class's positives so that they count as much as its negatives (`losses.positive_weights`)."""
    hold_out: bool = False
    """Hold validation images out of the training images although the data has its own: these are a fair test then."""
    allow_leaks: bool = False
    """Train although pictures or groups that are trained on are also measured on."""
    check_every: int = 1
    """After how many epochs supports are chosen, the validation images looked at, and all is saved."""
    compiled: bool = False
    """Compile the network for training: a minute or two, then faster steps."""
    preset: str | None = None
    """Where the settings came from that were not said."""

    @property
    def guided(self) -> bool:
        return RECIPES[self.recipe].guided and self.method == "sic"

    @property
    def fading(self) -> float:
        return RECIPES[self.recipe].fading if self.form == "bcosified" else 0.0

    @property
    def clip(self) -> float | None:
        return RECIPES[self.recipe].clip


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


def _check(said: dict[str, Any]) -> None:
    """Refuse what no run could be made of, before anything is read or written."""
    unknown = set(said) - {*Settings.__dataclass_fields__, "size", "fit"}
    if unknown:
        raise SicError(f"There is no setting called {sorted(unknown)[0]!r}.")
    for name, allowed in CHOICES.items():
        if said.get(name, allowed[0]) not in allowed:
            raise SicError(f"{flag(name)} must be one of {', '.join(allowed)}, not {said[name]!r}.")
    temperature = said.get("temperature", 1.0)
    for name in ("lr", "weight_decay"):
        value = said.get(name, 0.0)
        if not (math.isfinite(value) and value >= 0):
            raise SicError(f"{flag(name)} must be a number from 0 up, not {value}.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise SicError(f"--temperature must be a number above 0, not {temperature}.")
    if "backbone" in said:
        backbones.require(said["backbone"])


def choose(data: ImageData, said: dict[str, Any], *, gpu: bool | None = None) -> tuple[Settings, list[str]]:
    """Settings for `data`: `said` wins (None means not said). Also returns the choices in words."""
    gpu = torch.cuda.is_available() if gpu is None else gpu
    said = {name: value for name, value in said.items() if value is not None}
    _check(said)
    notes: list[str] = []
    if "preset" in said:
        start = preset(said["preset"])
        notes.append(f"preset {said['preset']} ({start.data}; the paper reports {start.reported}; from {start.source})")
        if said.setdefault("method", start.method) != start.method:
            raise SicError(f"--preset {said['preset']} is for --method {start.method}, not {said['method']}.")
        said = {**start.settings(), **_inherited(said), **said}
    check_method(said)
    kind = method(said.get("method", "sic"))
    said = {**method_defaults(said, data.task), **said}
    if "weights" in said:
        said = _with_start(said, notes)
    recipe_name: RecipeName = said.get("recipe") or _recipe(said)
    recipe = RECIPES[recipe_name]
    number = len(data.splits["train"])
    side = typical_size(data)

    size = said.pop("size", None)
    if size is None:
        largest = 224 if gpu else 96
        size = max([s for s in (32, 64, 96, 128, 160, 224) if s <= min(side, largest)], default=32)
        why = f"images are about {side} px" + (
            "" if side <= largest else f", a CPU manages {largest}" if not gpu else ""
        )
        notes.append(f"image size {size} px ({why})")
    rendered = data.layout == "FunnyBirds"
    fit: Literal["crop", "squash"] | None = said.pop("fit", None)
    if fit is None:
        # Nothing may be cut off that matters to a user; the paper crops photographs.
        fit = "crop" if recipe_name == "paper" and not rendered else "squash"
        kept = "their central square" if fit == "crop" else "whole images, pressed into a square"
        notes.append(f"{kept} (--fit {'squash' if fit == 'crop' else 'crop'} for the other)")
    backbone = said.get("backbone")
    if backbone is None:
        backbone = kind.backbones[0] if kind.backbones else "resnet_small" if size <= 128 else "resnet18"
        notes.append(f"backbone {backbone} (suits {size} px)")
    batch = said.get("batch_size") or min(recipe.batch_size, max(8, number // 8))
    epochs = said.get("epochs")
    if epochs is None:
        # About 1,500 steps teach a small network; more data needs fewer passes.
        epochs = min(100, max(20, round(1500 * batch / number)))
        notes.append(f"{epochs} epochs of {number} training images")
    if rendered and recipe_name == "paper":
        said = {**PAPER_ON_BIRDS, **said}
    # The paper looks at the central 224 of 256 px of a photograph, and at whole rendered birds.
    resize = round(size * 256 / 224) if recipe_name == "paper" and fit == "crop" else size
    settings = Settings(
        backbone=backbone,
        preprocessing=Preprocessing(size, resize, fit),
        epochs=epochs,
        lr=recipe.lr,
        temperature=_temperature(kind, recipe_name),
        batch_size=batch,
        recipe=recipe_name,
        augmentation=recipe.augmentation,
    )
    settings = replace(settings, **said)
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
        notes.append("the network is compiled first, which takes a minute or two (--no-compile leaves it out)")
    temperature = f"T = {settings.temperature:g}, " if "temperature" in kind.options else ""
    notes.append(f"recipe {recipe_name}: {temperature}learning rate {settings.lr:g}, batches of {settings.batch_size}")
    if kind is SIC and recipe_name == "paper" and settings.weights is None:
        notes.append(
            "the paper's recipe without pretrained weights usually collapses; --recipe scratch is made for that"
        )
    return settings, notes


def _work(settings: Settings, kind: type[Classifier], number: int, classes: int) -> float:
    """What a fit has to embed, in images of 224 px: queries and supports."""
    supports = settings.supports_per_class * (settings.ways or classes)
    with_supports = kind.selections and settings.support_source != "bank"
    per_query = 1 + (supports / settings.batch_size if with_supports else 0)
    return settings.epochs * number * per_query * (settings.preprocessing.size / 224) ** 2


def _temperature(kind: type[Classifier], recipe: RecipeName) -> float:
    if kind is SIC:
        return RECIPES[recipe].temperature
    return BCOS_TEMPERATURE.get(recipe, 1.0) if kind is Bcos else 1.0


def _recipe(said: dict[str, Any]) -> RecipeName:
    if "weights" not in said:
        return "scratch"
    # A model of ours has been bcosified already.
    return "bcosify" if said.get("form") == "bcosified" and not Path(said["weights"]).is_dir() else "paper"


def _inherited(said: dict[str, Any]) -> dict[str, Any]:
    """What a model of ours decides about the network that starts from it."""
    if "weights" not in said or not Path(said["weights"]).is_dir():
        return {}
    folder = Path(said["weights"])
    start, _ = read_config(folder)
    kind = method(said.get("method", "sic"))
    if start.form not in kind.forms:
        raise SicError(
            f"{folder} has a {start.form} network, and --method {said.get('method', 'sic')} needs a "
            f"{' or '.join(kind.forms)} one; start from another model, or leave --weights out."
        )
    names = ["backbone", "form", "antialiased", *sorted({"b", "backbone_b"} & means_something(kind))]
    if start.method == said.get("method", "sic"):
        names += sorted({"latent", "temperature"} & means_something(kind))
    network = {name: getattr(start, name) for name in names}
    return {**network, "size": start.preprocessing.size, "fit": start.preprocessing.fit}


def _with_start(said: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """What the weights to start from decide: everything about the network where they are a model of ours."""
    weights = said["weights"]
    if Path(weights).is_dir():
        said = {**_inherited(said), **said}
        with_t = f" with T = {said['temperature']:g}" if "temperature" in said else ""
        notes.append(f"{said['backbone']} at {said['size']} px{with_t}, as in {weights}")
        return said
    only = method(said.get("method", "sic")).backbones
    backbone = said.get("backbone", only[0] if only else "resnet50")
    native = weights in published(backbone, "bcos") or (weights not in PUBLISHED and not backbone.startswith("timm/"))
    form = said.get("form", "bcos" if native else "bcosified")
    backbones.require(backbone)
    check(weights, backbone, form)
    notes.append(f"a {form} {backbone} that starts from {weights}")
    return {**said, "backbone": backbone, "form": form}


def from_json(content: dict[str, Any]) -> Settings:
    """The settings that `run.json` holds; older files also have `biases`."""
    fields = {**content, "preprocessing": Preprocessing(**content["preprocessing"])}
    if fields.pop("biases", None) == "carried" and fields.get("form") == "bcosified":
        raise SicError("This run was started with carried biases, which sic no longer has; start it again.")
    return Settings(**fields)


def loader_workers(fits: int = 1) -> int:
    """Half of the cores decode and augment, at most eight; where several fits run at a time, for each of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(8, max(1, cores // 2)) // fits)
