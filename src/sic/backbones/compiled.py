"""Networks that are compiled for training. A sequence is compiled by blocks, so that equal blocks are compiled once."""

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor, nn

KEEP = "autograd_cache_allow_custom_autograd_functions"
"""torch's own setting, which another version may not have."""
MOST_KINDS = 64
"""Most kinds of blocks with the same code; by default, torch gives up at eight."""


def compiled(function: Callable[[Tensor], Tensor], mode: str | None) -> Callable[[Tensor], Tensor]:
    """`function` for inputs of one shape. `mode`: as in `torch.compile`."""
    # Without this, torch does not keep compiled code that has an autograd function for the next fit. Ours is pure.
    if hasattr(torch._functorch.config, KEEP):
        setattr(torch._functorch.config, KEEP, True)
    return torch.compile(function, dynamic=False, mode=mode)


def compiled_by_blocks(network: nn.Sequential, mode: str | None) -> Callable[[Tensor], Tensor]:
    """A function that computes `network` with compiled `blocks`, once in every training step."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_KINDS)
    parts = [compiled(part, mode) for part in blocks(network)]

    def forward(x: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # what graphs returned in the step before may be overwritten
        for part in parts:
            x = part(x)
        return x

    return forward


def is_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether a module does nothing but call its children one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def blocks(network: nn.Sequential) -> list[nn.Module]:
    """The parts of a sequence, in order: what has layers of its own, and the layers between.

    >>> norm, block = nn.BatchNorm2d(3), nn.ModuleDict({"layer": nn.ReLU()})
    >>> [len(list(part.children())) for part in blocks(nn.Sequential(nn.ReLU(), norm, nn.Sequential(block, block)))]
    [2, 1, 1]
    """
    parts, layers = list[nn.Module](), list[nn.Module]()

    def visit(module: nn.Module) -> None:
        if is_sequence(module):
            for child in module:
                visit(child)
        elif any(True for _ in module.children()):
            end()
            parts.append(module)
        else:
            layers.append(module)

    def end() -> None:
        if layers:
            parts.append(nn.Sequential(*layers))
            layers.clear()

    visit(network)
    end()
    return parts
