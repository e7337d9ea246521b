"""Measures whether a network is dynamic-linear, and finds the modules that are not."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sic.bcos.explanation import explaining
from sic.bcos.norms import BatchNormUncentred2d

TOLERANCE = 1e-7
"""Relative to the size of an output; rounding in double precision stays far below."""

Call = tuple[tuple[Any, ...], dict[str, Any]]


def culprits(network: nn.Module, encoded: Tensor) -> list[str]:
    """Names of the innermost modules that are not linear in explanation mode, for one encoded batch N×6×H×W."""
    network, encoded = copy.deepcopy(network).double(), encoded.double()
    _settle(network, encoded)
    calls: dict[str, list[Call]] = {}
    hooks = [
        module.register_forward_pre_hook(_recorder(calls.setdefault(name, [])), with_kwargs=True)
        for name, module in network.named_modules()
    ]
    with torch.no_grad():
        network(encoded)
    for hook in hooks:
        hook.remove()

    def blame(module: nn.Module, name: str) -> list[str]:
        """Only below what fails: what is inside a scale that is constant while explaining may be anything."""
        if calls[name] and all(is_linear(module, *call) for call in calls[name]):
            return []
        below = [
            found for key, child in module.named_children() for found in blame(child, f"{name}.{key}" if name else key)
        ]
        return below or ([f"{name or 'the network'} ({type(module).__name__})"] if calls[name] else [])

    return blame(network, "")


def is_linear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Do inputs and registered constants add up to the outputs, in a random direction of the output space?"""
    inputs: dict[int, tuple[Tensor, Tensor]] = {}

    def traced(x: Tensor) -> Tensor:
        """A copy of a leaf, since the module may work in place; a tensor that occurs twice stays one."""
        if not x.is_floating_point():
            return x
        if id(x) not in inputs:
            leaf = x.clone().requires_grad_()
            inputs[id(x)] = leaf, leaf.clone()
        return inputs[id(x)][1]

    with explaining() as trace:
        args, kwargs = _mapped((args, kwargs), traced)
        if not inputs:
            return True
        leaves = [leaf for leaf, _ in inputs.values()]
        trace.source = leaves[0]
        outputs = [y for y in _tensors(module(*args, **kwargs)) if y.is_floating_point()]
        if not all(y.requires_grad for y in outputs):
            return False
        generator = torch.Generator().manual_seed(0)
        directions = [torch.randn(y.shape, generator=generator).to(y) for y in outputs]
        leaves += trace.constants
        grads = torch.autograd.grad(outputs, leaves, directions, allow_unused=True, materialize_grads=True)
    terms = torch.cat([(y.detach() * d).flatten() for y, d in zip(outputs, directions, strict=True)])
    shares = sum((leaf.detach() * grad).sum() for leaf, grad in zip(leaves, grads, strict=True))
    return bool((terms.sum() - shares).abs() <= TOLERANCE * terms.norm())


@torch.no_grad()
def _settle(network: nn.Module, encoded: Tensor) -> None:
    """Give uncentred batch norms the statistics of this batch: a fresh network's signal may vanish without."""
    network.eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # fresh networks multiply whole branches by zero, or nearly
        random = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(random / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 1 + 0.2 * random)
    for module in network.modules():
        if isinstance(module, BatchNormUncentred2d):
            module.train()
            module.momentum = 1
    network(encoded)
    network.eval()


def _recorder(calls: list[Call]) -> Callable[..., None]:
    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        copies: dict[int, Tensor] = {}
        calls.append(_mapped((args, kwargs), lambda x: copies.setdefault(id(x), x.detach().clone())))

    return record


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(value, found.append)
    return found


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """`change` of every tensor in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(part, change) for key, part in value.items()}
    return type(value)(_mapped(part, change) for part in value) if type(value) in (list, tuple) else value
