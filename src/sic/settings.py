"""The settings of a run: one table.

Each field of `Settings` says its type, default, help text, flag, and the values that it takes. The options of `sic
train`, `search` and `compare`, the checks, `run.json` and `config.json` are generated from it. To add a setting, add a
field here and use it. A field of `Network` is also stored with the model. A field with `special=True` is for
the methods that name it in their `options` or `fit_options`. Nothing here imports torch: `sic --help` reads it.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sic.errors import SicError

Form = Literal["bcos", "bcosified", "conventional"]
"""bcos: B-cos v2, for training from scratch or from B-cos v2 weights. bcosified: made from a conventional pretrained
network, with its activations. conventional: the network as its authors made it; it cannot be traced."""
Loss = Literal["bce", "ce"]
"""bce: one yes-or-no question per class, probabilities are sigmoids. ce: classes compete, they are a softmax."""
Fit = Literal["crop", "squash"]
"""crop: keep proportions and take the central square. squash: see the whole image, proportions changed."""
Padding = Literal["zeros", "reflect", "replicate"]
"""Outside of the image, for convolutions: nothing; the image mirrored; or the value at its border."""
Augmentation = Literal["none", "affine", "photo", "xray"]
How = Literal["nearest", "varied", "centroid", "random", "full"]
"""nearest: the images nearest to the centroids of k-means. varied: the same by the directions of latents, which are all
that a similarity depends on, among the typical images of a class. centroid: the centroids, which are no images. random:
images drawn once. full: all images."""
SupportSource = Literal["exact", "bank", "n-way"]
"""Supports of a training step. exact: images of every class, embedded with the queries. bank: remembered latents of
every class. n-way: images of some classes, embedded with the queries."""
Ambiguous = Literal["share", "every"]
"""The target of an image that fits several classes, one of which is meant (a bird that lacks parts). share: equal parts
of 1, as in the FunnyBirds framework. every: 1 for each of them."""
RecipeName = Literal["scratch", "paper", "bcosify", "frozen", "tuned"]


@dataclass(frozen=True)
class Recipe:
    """How to optimise; `guided` adds the terms that keep a network without pretrained weights from collapsing."""

    lr: float
    batch_size: int
    guided: bool
    clip: float | None
    augmentation: Augmentation
    fading: float = 0.0
    """Share of the steps over which a bcosified network loses its biases and reaches its B."""
    projection_first: bool = False
    """Whether the projection is trained first, with the network frozen. This needs the weights of a B-cos network, and
    T is chosen there."""
    inference_supports: How = "nearest"
    """The default of `--inference-supports`."""
    local_units: bool = False
    """The default of `--local-units`."""
    own_evidence: float = 6.0
    """With `projection_first`: T is chosen so that the evidence of a class for its own images has this sum at first."""
    apart: float = 0.0
    """Weight of the penalty on images of a class that are much alike."""
    misplaced: float = 0.0
    """The default of `--misplaced`."""
    competing: float = 0.0
    """With `projection_first`: weight of softmax cross-entropy beside the loss of the method, where that loss alone
    leaves most images without evidence."""
    sharpened: bool = False
    """Whether the penalty on misplaced evidence grows in proportion to the competition, where classes compete for units
    that start as taught classes (results/taught.json)."""


def _from_projection(lr: float, batch_size: int, clip: float | None, augmentation: Augmentation) -> Recipe:
    """A recipe for pretrained B-cos networks.

    The published loss alone makes the images of a class one point, and then all of its cases say the same (see
    results/variety.json). Evidence for a class then lies on images of other classes, too; see results/misplaced.json
    and results/tuned.json.
    """
    return Recipe(
        lr,
        batch_size,
        guided=False,
        clip=clip,
        augmentation=augmentation,
        projection_first=True,
        inference_supports="varied",
        local_units=True,
        own_evidence=48.0,
        apart=0.05,
        misplaced=0.3,
        competing=1.0,
    )


RECIPES: dict[RecipeName, Recipe] = {
    # The paper's own: binary cross-entropy alone, the settings of its ResNet50 on VOC. It needs pretrained weights.
    "paper": Recipe(1e-4, 32, guided=False, clip=None, augmentation="photo"),
    # For networks that start from random weights; see results/scratch, and results/matches.json (variety) for supports.
    "scratch": Recipe(3e-3, 64, guided=True, clip=1.0, augmentation="affine", inference_supports="varied"),
    # For a conventional network that becomes a B-cos network during training; see results/bcosified.
    "bcosify": Recipe(3e-4, 64, guided=False, clip=1.0, augmentation="photo", fading=0.4),
    # For pretrained B-cos networks that stay as they are: only the projection is trained, in seconds.
    "frozen": replace(_from_projection(3e-3, 64, clip=None, augmentation="none"), sharpened=True),
    # The projection first, then the whole network; the better of the two models is kept. See results/pets.json.
    # With crops of 8 to 100 % of the picture, 12 epochs gained nothing (results/many_classes.json).
    "tuned": _from_projection(1e-4, 32, clip=1.0, augmentation="affine"),
}


@dataclass(frozen=True)
class Option:
    """How a setting is given, and the values that it takes."""

    name: str
    type: type
    """bool, int, float or str."""
    help: str
    flags: tuple[str, ...]
    """As on the command line; the first is the name that messages use."""
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    above: float | None
    special: bool
    """Whether it means something only to the methods that name it."""
    search: bool
    """Whether `sic search` takes several values."""

    @property
    def flag(self) -> str:
        return self.flags[0]

    def check(self, value: Any) -> None:
        """Refuse a value that no run can use."""
        if fault := self.fault(value):
            raise SicError(f"{self.flag} {fault}.")

    def fault(self, value: Any) -> str | None:
        """Why no run can use a value, as the rest of a sentence; None: it can."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, not {value!r}"
        if self.type is bool and not isinstance(value, bool):
            return f"is either on or off (True or False), not {value!r}"
        if self.type in (int, float) and not self._in_range(value):
            return f"must be {self._range()}, not {value}"
        return None

    def _in_range(self, value: Any) -> bool:
        return (
            isinstance(value, int if self.type is int else (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def _range(self) -> str:
        """The numbers that it takes, in words."""
        words = ["a whole number" if self.type is int else "a number"]
        if self.low is not None:
            words.append(f"from {self.low} up" if self.high is None else f"from {self.low} to {self.high}")
        if self.above is not None:
            words.append(f"above {self.above}")
        return " ".join(words)


def setting(
    help: str,
    default: Any = MISSING,
    *,
    flags: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    special: bool = False,
    search: bool = False,
) -> Any:
    """A field of the table. Without a default, the value is chosen for the data (see `sic.training.choose`)."""
    about = {"help": help, "flags": flags, "low": low, "high": high, "above": above}
    return field(default=default, metadata={**about, "special": special, "search": search})


@dataclass(kw_only=True)
class Network:
    """Settings of the network and its cases; `config.json` has them too."""

    method: str = setting(
        "sic, or a method to compare with it, such as blackbox, bcos, bagnet, nwhead, protopnet.", "sic"
    )
    form: Form = setting(
        "bcos; bcosified: made from a conventional network; conventional: for some other methods.", "bcos"
    )
    antialiased: bool = setting(
        "Blur before strided layers to avoid a grid in the maps.", False, flags=("--antialias",)
    )
    padding: Padding = setting(
        "Padding of convolutions: zeros, or the image's own pixels (reflect, replicate).",
        "zeros",
    )
    loss: Loss = setting("bce: each class is judged by itself; ce: classes exclude each other.", "bce", special=True)
    inference_supports: How = setting(
        "Supports after training: nearest (the images nearest to the centroids of k-means), varied (typical images "
        "of a class that differ more), centroid (the centroids themselves), random, or full (all "
        "images; nwhead).",
        "nearest",
        special=True,
    )
    neighbours: int | None = setting(
        "Use only this many nearest supports (nwhead).", None, low=1, high=2**31, special=True
    )
    latent: int = setting("Size of the latent vectors.", 128, low=1, high=65_536, special=True, search=True)
    relu: bool = setting("Whether latents are non-negative (sic).", True, special=True)
    local_units: bool = setting(
        "Whether a latent unit looks at one place at a time: projection and ReLU before pooling (sic).",
        False,
        special=True,
    )
    attribution: str | None = setting(
        "How to explain: input-x-gradient, integrated-gradients or grad-cam (blackbox); enlarged or box (protopnet).",
        None,
        special=True,
    )
    b: float = setting("B of the B-cos units.", 2, low=1, special=True, search=True)
    backbone_b: float | None = setting("B of the backbone alone.", None, low=1, special=True, search=True)


@dataclass(kw_only=True)
class Settings(Network):
    """All settings of a run; written to `run.json`, read back by `--resume`."""

    preset: str | None = setting("The paper's settings for a dataset; `list` shows them all.", None)
    epochs: int = setting("Passes over the training images.", low=1)
    check_every: int = setting(
        "Choose supports, validate and save after this many epochs; default: after each.", 1, low=1
    )
    backbone: str = setting("Feature extractor.")
    weights: str | None = setting(
        "Weights to start from: photos, photos-small, imagenet, imagenet-long, a file, or a sic model directory.", None
    )
    size: int = setting("Side of the model's input in pixels.", low=16, high=1024)
    fit: Fit = setting("crop: central square; squash: whole image.")
    resize: int = field(metadata={})  # chosen with size and fit: the short side before the crop
    augmentation: Augmentation = setting("none, affine, photo or xray.")
    recipe: RecipeName = setting(
        "scratch (the whole network, with a guide), paper (B-cos weights), bcosify (conventional weights), frozen "
        "(projection only) or tuned (the projection first, then the whole network)."
    )
    teacher: str | None = setting(
        "A trained model directory of the same classes to imitate, such as a black box: its answers beside the labels "
        "and, if the networks are alike, its features.",
        None,
        special=True,
    )
    lr: float = setting("Learning rate.", low=0, search=True)
    head_lr: float | None = setting(
        "Learning rate of the layers after the backbone; default: the same (ProtoPNet: --lr, and a pretrained backbone "
        "a thirtieth of it).",
        None,
        low=0,
        special=True,
        search=True,
    )
    weight_decay: float = setting("Weight decay.", 0.0, low=0, search=True)
    temperature: float = setting(
        "Temperature T of the evidence.", flags=("--temperature", "-T"), above=0, special=True, search=True
    )
    misplaced: float | None = setting(
        "Weight of the penalty on evidence for a class that lies on images of other classes (sic); default: the "
        "recipe's.",
        None,
        low=0,
        special=True,
        search=True,
    )
    batch_size: int = setting("Queries per step.", low=2)
    supports_per_class: int = setting(
        "Supports (ProtoPNet: prototypes) per class.",
        3,
        flags=("--supports",),
        low=1,
        high=65_536,
        special=True,
        search=True,
    )
    support_source: SupportSource = setting(
        "Supports during training (sic): exact (random images, embedded in every step), bank (remembered latents: a "
        "step costs the same for any number of classes), n-way (exact, for some classes per step).",
        "exact",
        special=True,
    )
    ways: int | None = setting("Classes per step (--support-source n-way).", None, low=2, special=True)
    validation: float = setting("Share of the training images held out for validation.", 0.15, low=0.01, high=0.9)
    hold_out: bool = setting(
        "Choose the epoch on held-out training images, and measure on the data's own validation images.", False
    )
    ambiguous: Ambiguous = setting(
        "Targets of an image that fits several classes, one of which is meant (FunnyBirds): share (equal parts of 1) "
        "or every (1 for each of them).",
        "every",
    )
    balance: bool = setting("Weight the positives of rare classes as much as the negatives.", False)
    allow_leaks: bool = setting("Train even if many held-out images, or their groups, are also training images.", False)
    drop_leaks: bool = setting("Remove training images that are copies of held-out images or share their group.", False)
    compared: int = setting(
        "Models that were compared on these validation images before, to choose the settings; the promise allows for "
        "them.",
        0,
        low=0,
    )
    compiled: bool = setting("Compile the network; default: for long fits on a GPU.", False, flags=("--compile",))
    seed: int = setting("Random seed.", 0, low=0, high=2**32 - 1)
    keep_support_images: bool = setting(
        "Keep copies of the supports in the model.", True, flags=("--support-images",), special=True
    )

    @property
    def guided(self) -> bool:
        return RECIPES[self.recipe].guided

    @property
    def projection_first(self) -> bool:
        return RECIPES[self.recipe].projection_first

    @property
    def fading(self) -> float:
        return RECIPES[self.recipe].fading if self.form == "bcosified" else 0.0

    @property
    def clip(self) -> float | None:
        return RECIPES[self.recipe].clip

    @property
    def misplaced_weight(self) -> float:
        return RECIPES[self.recipe].misplaced if self.misplaced is None else self.misplaced

    @property
    def network(self) -> dict[str, Any]:
        """The settings that `config.json` has too."""
        return {each.name: getattr(self, each.name) for each in fields(Network)}


@cache
def table() -> dict[str, Option]:
    """Every setting that can be given, by name."""
    types = get_type_hints(Settings)
    return {
        each.name: _option(each.name, types[each.name], each.metadata) for each in fields(Settings) if each.metadata
    }


def _option(name: str, annotation: Any, about: Mapping[str, Any]) -> Option:
    kind = next((part for part in get_args(annotation) if part is not type(None)), None)
    kind = annotation if get_origin(annotation) is Literal or kind is None else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    about = {**about, "flags": about["flags"] or (f"--{name.replace('_', '-')}",)}
    return Option(name=name, type=str if choices else kind, choices=choices, **about)


def flag(name: str) -> str:
    """
    >>> flag("weight_decay"), flag("supports_per_class")
    ('--weight-decay', '--supports')
    """
    return table()[name].flag


def named(text: str) -> str:
    """The setting of a name or of a flag without its dashes.

    >>> named("weight-decay"), named("supports"), named("supports_per_class")
    ('weight_decay', 'supports_per_class', 'supports_per_class')
    """
    name = text.strip().replace("-", "_")
    by_flag = {option.flag[2:].replace("-", "_"): option.name for option in table().values()}
    return by_flag.get(name, name)


def check(said: Mapping[str, Any]) -> None:
    """Refuse names that are no setting and values that no run can use, before anything is read or written."""
    for name, value in said.items():
        if name not in table():
            raise SicError(f"There is no setting called {name!r}.")
        table()[name].check(value)


def to_json(settings: Settings) -> dict[str, Any]:
    """For `run.json`."""
    return asdict(settings)


def from_json(content: Mapping[str, Any]) -> Settings:
    """The settings that `run.json` holds. Older files have `preprocessing` instead of its parts, and `biases`."""
    found = {**content, **content.get("preprocessing", {})}
    found.pop("preprocessing", None)
    if found.pop("biases", None) == "carried" and found.get("form") == "bcosified":
        raise SicError("This run was started with carried biases, which sic no longer has; start it again.")
    return Settings(**found)
