"""Turning a conventional network into a B-cos network: its layers are exchanged, its structure stays.

Two styles. `bcos` (Böhle et al. 2024): no activations, average pooling, unit-norm weights; a fresh network, or one for
published B-cos v2 weights. `bcosified` (Arya et al. 2024): keeps the weights of a pretrained network, its activations
as dynamic scales and its max pooling as a dynamic choice. With `biases` it starts out as exactly the network that it
was (`sic.bcos.fade` to 0) and can be taken to B-cos step by step.
"""

import copy
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sic.bcos.explanation import constant_parameter, encode_colours
from sic.bcos.linearity import culprits
from sic.bcos.rules import Rules
from sic.errors import SicError

Style = Literal["bcos", "bcosified"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def convert(
    network: nn.Module,
    style: Style = "bcos",
    *,
    b: float = 2,
    biases: bool = False,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    example: Tensor | None = None,
) -> nn.Module:
    """Convert a network that takes RGB images into a B-cos network.

    Args:
        network: The conventional network; it is not changed.
        style: "bcos" (no activations, average pooling, unit-norm weights) or "bcosified" (keeps weights and
            activations).
        b: B of the B-cos units.
        biases: Keep the biases, to fade them (see `sic.bcos.fade`).
        mean: Of the input normalisation that the network was trained with; it goes into the first layer.
        std: The same, standard deviation.
        example: RGB images N×3×H×W on which to measure that the result is dynamic-linear.

    Returns:
        A network that takes `encode_colours(images)`, N×6×H×W.

    Raises:
        SicError: Some modules cannot be converted; the message names them.
    """
    if style not in get_args(Style):
        raise ValueError(f"style must be one of {get_args(Style)}, not {style!r}")
    walk = _Walk(style == "bcosified", b, biases, torch.tensor(mean), torch.tensor(std))
    result = walk.visit(copy.deepcopy(network), "")
    failure = f"{type(network).__name__} cannot be converted to B-cos:"
    if walk.unknown:
        raise SicError(f"{failure} {_listed(walk.unknown)}.")
    if walk.colour_layers != 1:
        raise SicError(
            f"{failure} {walk.colour_layers} of its convolutions take 3 channels; exactly one may, the first."
        )
    if example is not None:
        try:
            found = culprits(result, encode_colours(example))
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().split("\n")[0][:160]
            raise SicError(f"{failure} it does not run on encoded colours ({reason}).") from None
        if found:
            raise SicError(
                f"{failure} the operations between its layers are not linear in the input for fixed scales, "
                f"in {_listed(found)}."
            )
    return result


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


ADDED = {"pos_embed", "pos_embedding", "cls_token", "class_token", "reg_token", "dist_token"}
"""Parameters that networks add or append to what they compute from the image."""
MULTIPLIED = {"gamma", "layer_scale"}
"""Parameters that scale: linear already."""


class ConstantTerm(nn.Module):
    """Makes a parameter that is added to the input (a positional code, a class token) a constant with its own share."""

    def forward(self, value: Tensor) -> Tensor:
        return constant_parameter(value)


class _Walk(Rules):
    """From the network down to its layers."""

    def __init__(self, bcosified: bool, b: float, biases: bool, mean: Tensor, std: Tensor) -> None:
        super().__init__(bcosified, b, biases, mean, std)
        self.done: dict[int, tuple[nn.Module, nn.Module]] = {}

    def visit(self, module: nn.Module, name: str) -> nn.Module:
        """The converted module. What is used in two places stays one."""
        if id(module) not in self.done:
            # With the original, or its id could be given to another.
            self.done[id(module)] = module, self.exchange(module, name)
        return self.done[id(module)][1]

    def exchange(self, module: nn.Module, name: str) -> nn.Module:
        """Another module where there is a rule, else the same with converted children."""
        kind = type(module)
        library = kind.__module__.partition(".")[0] in ("torch", "torchvision", "timm")
        if library and kind.__name__ in self.by_name:
            return self.by_name[kind.__name__](self, module, name).train(module.training)
        own = dict(module.named_parameters(recurse=False))
        children = {key: child for key, child in module._modules.items() if child is not None}
        foreign = own.keys() - ADDED - MULTIPLIED or list(module.buffers(recurse=False))
        # A module of theirs without parts computes something; one of the user's may only reshape, the example tells.
        computes = library and not children and not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if foreign or computes or parametrize.is_parametrized(module):
            return self.refuse(module, name)
        for parameter in own:
            if parameter in ADDED:
                parametrize.register_parametrization(module, parameter, ConstantTerm())
                module.get_submodule("parametrizations").train(module.training)
        for key, child in children.items():
            module._modules[key] = self.visit(child, f"{name}.{key}" if name else key)
        return module
