"""Weights to start from: published ones by name, or a file.

A file's tensors go to a network's by name where the names agree, and otherwise in order: B-cos v2, torchvision and
timm all list the layers of an architecture in the order in which an image passes them, and name them differently.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model_weights

from sic.backbones.distilled import SHIPPED, distilled_file, read_distilled
from sic.backbones.download import fetch
from sic.backbones.registry import TIMM
from sic.errors import SicError
from sic.integrity import check_finite
from sic.settings import Form

Progress = Callable[[int, int], None]

IMAGENET, LONG = "imagenet", "imagenet-long"
PUBLISHED = (IMAGENET, LONG)
"""Names of weights; `imagenet-long` are those that B-cos v2 trained for 600 instead of 90 epochs."""
IMAGENET_TERMS = (
    "These weights were trained on ImageNet (ILSVRC 2012). Its terms of access allow non-commercial research and "
    "education; whether they bind a model that starts from these weights is for you to settle before you use it."
)

OWN_TERMS = (
    "These weights came from a file or from another model; the terms of whatever that was trained on may bind this one."
)


def terms(weights: str) -> str:
    """The terms of `weights` that limit the use of a model that starts from them."""
    return IMAGENET_TERMS if weights in PUBLISHED or weights in SHIPPED else OWN_TERMS


_RELEASE = "https://github.com/B-cos/B-cos-v2/releases/download/v0.0.1-weights"
_BCOS_V2 = {
    ("resnet18", IMAGENET): "resnet_18-68b4160fff",
    ("resnet34", IMAGENET): "resnet_34-a63425a03e",
    ("resnet50", IMAGENET): "resnet_50-ead259efe4",
    ("resnet101", IMAGENET): "resnet_101-84c3658278",
    ("resnet152", IMAGENET): "resnet_152-42051a77c1",
    ("resnext50_32x4d", IMAGENET): "resnext_50_32x4d-57af241ab9",
    ("densenet121", IMAGENET): "densenet_121-b8daf96afb",
    ("densenet161", IMAGENET): "densenet_161-9e9ea51353",
    ("densenet169", IMAGENET): "densenet_169-7037ee0604",
    ("densenet201", IMAGENET): "densenet_201-00ac87066f",
    ("vgg11", IMAGENET): "vgg_11_bnu-34036029f0",
    ("vitc_ti", IMAGENET): "bcos_vitc_ti_patch1_14-ddd6193a77",
    ("vitc_s", IMAGENET): "bcos_vitc_s_patch1_14-cf55c88f0c",
    ("vitc_b", IMAGENET): "bcos_vitc_b_patch1_14-a13c46397b",
    ("vitc_l", IMAGENET): "bcos_vitc_l_patch1_14-8739e18b8d",
    ("resnet50", LONG): "resnet_50_long-ef38a88533",
    ("resnet152", LONG): "resnet_152_long-0b4b434939",
    ("densenet121", LONG): "densenet_121_long-5175461597",
    ("convnext_tiny", LONG): "convnext_tiny_pn-539b1bfb37",
    ("convnext_base", LONG): "convnext_base_pn-b0495852c6",
    ("convnext_tiny_bnu", LONG): "convnext_tiny_bnu-dbd7f5ef9d",
    ("convnext_base_bnu", LONG): "convnext_base_bnu-7c32a704b3",
}
"""The official B-cos v2 checkpoints; the last ten characters are the beginning of the file's SHA-256."""
_CONVENTIONAL = {
    f"vitc_{size}": f"standard_vitc_{size}_patch1_14-{digest}"
    for size, digest in {"ti": "a5d6bded37", "s": "34ecd7288e", "b": "4d374b0220", "l": "560e48f246"}.items()
}
"""Conventional twins that B-cos v2 published too."""
_TORCHVISION = {"vgg11": "vgg11_bn"}
"""Names that differ in torchvision."""
PARALLEL = "module."
"""Stands before all names of a parallel network."""
_HEADS = ("fc.", "classifier.", "head.", "linear_head.linear.")


def published(backbone: str, form: Form) -> list[str]:
    """The names of published weights that a backbone of this form can start from."""
    if form == "bcos":
        return [name for name in PUBLISHED if (backbone, name) in _BCOS_V2]
    if backbone.startswith(TIMM) or backbone in _CONVENTIONAL or _torchvision_url(backbone) is not None:
        return [IMAGENET]
    return []


def check(weights: str, backbone: str, form: Form) -> None:
    """Refuse what cannot be had, before anything is downloaded or read."""
    if weights not in PUBLISHED:
        if distilled_file(weights) is None and not Path(weights).is_file():
            raise SicError(
                f"--weights {weights}: there is no such file or folder; give a sic model directory, a file of weights, "
                f"or one of {', '.join([*SHIPPED, *PUBLISHED])}."
            )
    elif weights not in published(backbone, form):
        forms: tuple[Form, ...] = ("conventional",) if form == "conventional" else ("bcos", "bcosified")
        known = [f"--form {other} --weights {name}" for other in forms for name in published(backbone, other)]
        hint = f"there are: {' and '.join(known)}" if known else "give a file, or a sic model that you trained before"
        raise SicError(f"There are no weights called {weights} for a {form} {backbone}; {hint}.")


class Linear(NamedTuple):
    """The tensors of a layer."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Weights:
    """Tensors of a network by name, and where they came from. Calling it fills a network with them."""

    state: dict[str, Tensor]
    source: str
    converted: bool = False
    """Whether they are those of a B-cos network; otherwise of the conventional network that it is made from."""

    def __call__(self, network: nn.Module) -> None:
        fill(network, self.state, self.source)

    def classifier(self, network: nn.Module) -> Linear | None:
        """The linear classifier behind `network`, where there is one."""
        for stem, weight in self._heads(network):
            if len(_size(weight)) == 2:
                bias = self.state.get(f"{stem}bias")
                flat = weight.flatten(1).float()
                return Linear(flat, flat.new_zeros(len(flat)) if bias is None else bias.float())
        return None

    def norm(self, network: nn.Module) -> Linear | None:
        """Weight F and bias F of the layer norm between the network's pooling and the classifier, as ConvNeXt has it;
        None where there is none, or where the network has it itself (timm)."""
        if not hasattr(network, "forward_head"):
            for stem, weight in self._heads(network):
                if len(_size(weight)) == 1 and f"{stem}bias" in self.state:
                    return Linear(weight.float(), self.state[f"{stem}bias"].float())
        return None

    def _heads(self, network: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """The weights of the layers behind `network`, and how the names of each begin."""
        prefix = _prefix(_without_counters(network.state_dict()), self.state)
        for name, weight in self.state.items():
            if _is_head(name, prefix) and name.endswith("weight"):
                yield name.removesuffix("weight"), weight


def loader(weights: str, backbone: str, form: Form, progress: Progress | None = None) -> Weights:
    """The `weights` of a published name or of a file. Downloads them where they are not at hand."""
    check(weights, backbone, form)
    if (file := distilled_file(weights)) is not None:
        return Weights(read_distilled(file).network, weights, converted=True)
    if weights not in PUBLISHED:
        return Weights(read_state(Path(weights)), weights, converted=form == "bcos")
    if form != "bcos" and backbone.startswith(TIMM):
        from sic.backbones.libraries import timm_state

        return Weights(timm_state(backbone.removeprefix(TIMM)), backbone)
    if form == "bcos":
        url = f"{_RELEASE}/{_BCOS_V2[backbone, weights]}.pth"
    elif backbone in _CONVENTIONAL:
        url = f"{_RELEASE}/{_CONVENTIONAL[backbone]}.pth"
    else:
        url = str(_torchvision_url(backbone))
    fetched = fetch(url, url.removesuffix(".pth").rpartition("-")[2], progress)
    return Weights(read_state(fetched), fetched.name, converted=form == "bcos")


def _torchvision_url(backbone: str) -> str | None:
    try:
        return str(get_model_weights(_TORCHVISION.get(backbone, backbone)).DEFAULT.url)  # type: ignore[attr-defined]
    except ValueError:
        return None


def read_state(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth file that holds tensors and nothing else."""
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises almost anything on a damaged file
        reason = str(error).strip().split("\n")[0][:120]
        if isinstance(error, pickle.UnpicklingError | EOFError | KeyError):  # torch's words are about how to run code
            reason = "it is damaged, or holds more than tensors"
        raise SicError(f"{file} cannot be read as weights ({reason}).") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not (isinstance(content, dict) and content and all(isinstance(value, Tensor) for value in content.values())):
        raise SicError(f"{file} does not hold a network's weights: it should map names to tensors.")
    state = {str(name): value for name, value in content.items()}
    try:
        check_finite(state)
    except ValueError as error:
        raise SicError(f"{file} is damaged, or was rounded to a format that is too small: {error}.") from None
    return state


def fill(network: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Copy `state` into `network`, all of it but a classifier's part; `source` is named where that does not work."""
    uncounted, places = _without_counters(state), _without_counters(network.state_dict())
    if not any(name.endswith("running_mean") for name in places):  # uncentred norms have none
        uncounted = {name: value for name, value in uncounted.items() if not name.endswith("running_mean")}
    prefix = _prefix(places, uncounted)
    pairs = dict(zip(places, uncounted, strict=False)) if prefix is None else {name: prefix + name for name in places}
    new: dict[str, Tensor] = {}
    for place, name in pairs.items():
        value, wanted = uncounted[name], places[place]
        if _size(value) != _size(wanted) or _role(place) != _role(name):
            raise SicError(
                f"{source} does not fit this backbone: its {name} has shape {tuple(value.shape)}, "
                f"and {place} needs {tuple(wanted.shape)}."
            )
        new[place] = value.reshape(wanted.shape)
    missing = places.keys() - pairs.keys()
    used = set(pairs.values())
    left = [name for name in uncounted if name not in used and not _is_head(name, prefix)]
    if missing or left:
        what = (
            f"has nothing for {sorted(missing)[0]}" if missing else f"has {left[0]} besides, and {len(left) - 1} more"
        )
        raise SicError(f"{source} does not fit this backbone: it {what}.")
    network.load_state_dict(new, strict=False)


def _without_counters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}


def _prefix(places: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str | None:
    """What stands before the name of every place in a file that has them all by name."""
    first = next(iter(places))
    found = (name.removesuffix(first) for name in state if name.endswith(first))
    return next((prefix for prefix in found if all(prefix + place in state for place in places)), None)


def _role(name: str) -> str:
    return next((role for role in ("bias", "running_mean", "running_var") if name.endswith(role)), "weight")


def _size(value: Tensor) -> tuple[int, ...]:
    """A linear layer and a 1×1 convolution are the same."""
    return tuple(side for side in value.shape if side != 1)


def _is_head(name: str, prefix: str | None) -> bool:
    """Whether a name is that of a classifier's tensor, where `prefix`, or its beginning, may stand before it: the
    `module.` of parallel networks, also where names do not agree (None)."""
    parts = (PARALLEL if prefix is None else prefix).split(".")
    starts = {".".join(parts[:length] + [""]) for length in range(1, len(parts))}
    names = (name, *(name.removeprefix(start) for start in starts))
    return any(each.removeprefix("0.").lstrip("_").startswith(_HEADS) for each in names)
