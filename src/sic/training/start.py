"""The weights that a fit starts from (published, a file, or a sic model), and the settings that follow from them."""

from pathlib import Path
from typing import Any

from torch import Tensor

from sic import backbones, directory
from sic.backbones import Load
from sic.backbones.distilled import DISTILLED_B, SHIPPED, distilled_file, read_distilled
from sic.backbones.weights import PUBLISHED, loader, published
from sic.backbones.weights import check as check_weights
from sic.directory import read_config
from sic.errors import SicError
from sic.methods import SIC, Classifier, Comparing
from sic.settings import Form, RecipeName, Settings
from sic.training.history import Reporter

DISTILLED = {
    "frozen": "stays as it is: only its projection is trained (--fine-tune trains both)",
    "tuned": "is trained further, after its projection",
}
"""Training with a distilled network in words, by recipe."""


def starting_model(weights: str | None) -> Path | None:
    """The directory of the sic model that `weights` names; None: it is something else."""
    return Path(weights) if weights and distilled_file(weights) is None and Path(weights).is_dir() else None


def default_recipe(said: dict[str, Any]) -> RecipeName:
    """The recipe that suits the weights to start from."""
    if "weights" not in said:
        return "scratch"
    # A model of ours has been bcosified already.
    return "bcosify" if said.get("form") == "bcosified" and starting_model(said["weights"]) is None else "paper"


def inherited(said: dict[str, Any], kind: type[Classifier]) -> dict[str, Any]:
    """The settings that a network takes over from the sic model that it starts from."""
    folder = starting_model(said.get("weights"))
    if folder is None:
        return {}
    start, _ = read_config(folder)
    if start.form not in kind.forms:
        raise SicError(
            f"{folder} has a {start.form} network, and --method {kind.name} needs a {' or '.join(kind.forms)} one; "
            "start from another model, or leave --weights out."
        )
    names = ["backbone", "form", "antialiased", "padding", "b", "backbone_b"]
    if start.method == kind.name:
        names += ["latent", "temperature", "local_units"]
    network = {name: getattr(start, name) for name in names if kind.uses(name)}
    return {**network, "size": start.preprocessing.size, "fit": start.preprocessing.fit}


def with_start(said: dict[str, Any], kind: type[Classifier], gpu: bool, notes: list[str]) -> dict[str, Any]:
    """Add the settings that follow from the weights; a sic model decides everything about the network."""
    weights = said["weights"]
    if starting_model(weights) is not None:
        said = {**inherited(said, kind), **said}
        with_t = f" with T = {said['temperature']:g}" if "temperature" in said else ""
        notes.append(f"{said['backbone']} at {said['size']} px{with_t}, as in {weights}")
        return said
    if (file := distilled_file(weights)) is not None:
        return _with_distilled(said, file, kind, gpu, notes)
    backbone = said.get("backbone", kind.backbones[0] if kind.backbones else "resnet50")
    native = weights in published(backbone, "bcos") or (weights not in PUBLISHED and not backbone.startswith("timm/"))
    usual: Form = "bcos" if native else "bcosified"
    form = said.get("form", usual if usual in kind.forms else kind.forms[0])
    backbones.require(backbone)
    check_weights(weights, backbone, form)
    notes.append(f"a {form} {backbone} that starts from {weights}")
    return {**said, "backbone": backbone, "form": form}


def _with_distilled(
    said: dict[str, Any], file: Path, kind: type[Classifier], gpu: bool, notes: list[str]
) -> dict[str, Any]:
    """Add the settings that follow from a file of `sic distill`."""
    backbone = read_distilled(file).backbone
    if "bcosified" not in kind.forms:
        raise SicError(f"{said['weights']} holds a B-cos network, which --method {kind.name} cannot use.")
    if said.get("backbone", backbone) != backbone or said.get("form", "bcosified") != "bcosified":
        raise SicError(f"{said['weights']} holds a bcosified {backbone}; leave out --backbone and --form.")
    recipe: RecipeName = said.get("recipe", "paper" if kind is not SIC else "tuned" if gpu else "frozen")
    how = DISTILLED.get(recipe, "is trained further")
    known = "for photographs that comes with sic" if said["weights"] in SHIPPED else f"of {said['weights']}"
    notes.append(f"the {backbone} {known} {how}")
    if "b" in said and "backbone_b" not in said:
        said = {**said, "backbone_b": DISTILLED_B}
        notes.append(f"the network keeps its B = {DISTILLED_B}; --b {said['b']:g} is for the layers after it")
    return {**said, "backbone": backbone, "form": "bcosified", "recipe": recipe}


def taught_directions(weights: str | None) -> Tensor | None:
    """Directions of the classes that a distilled network was taught, K×F; None: there are none in `weights`."""
    file = None if weights is None else distilled_file(weights)
    return None if file is None else read_distilled(file).head


def origin(weights: str | None) -> str | None:
    """The first origin of the weights: a model that started from ImageNet weights passes that on."""
    folder = starting_model(weights)
    return weights if folder is None else directory.read_config(folder)[0].training.get("origin")


def published_weights(settings: Settings, reporter: Reporter) -> Load | None:
    """Read the weights of a file or of a published name, downloading them if needed."""
    if settings.weights is None or starting_model(settings.weights) is not None:
        return None
    return loader(
        settings.weights,
        settings.backbone,
        settings.form,
        lambda done, total: reporter.advance("downloading", done, total),
    )


def start_from(classifier: Classifier, folder: Path, settings: Settings) -> None:
    """Take over the backbone of a model of ours, of the same method its whole encoder; its classes do not matter."""
    trained, config, _ = directory.load(folder)
    whole = config.method == settings.method and isinstance(classifier, Comparing)
    names = ["backbone", "form", "padding", *(["latent"] if whole else [])]
    if any(getattr(config, name) != getattr(settings, name) for name in [*names, "antialiased"]):
        said = " ".join(f"--{name} {getattr(config, name)}" for name in names)
        raise SicError(
            f"{folder} was trained with {said} --{'' if config.antialiased else 'no-'}antialias; start from it "
            "with the same, or leave these out."
        )
    part = "encoder" if whole else "backbone"
    state = trained.get_submodule(part).state_dict()
    classifier.get_submodule(part).load_state_dict(state, strict=False)
