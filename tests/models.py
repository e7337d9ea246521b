"""Making untrained models that behave like trained ones, and taking them apart."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sic.backbones import create
from sic.backbones.distilled import Distilled
from sic.bcos import BatchNormUncentred2d, encode_colours, explaining, linear_maps
from sic.settings import Settings


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, BatchNormUncentred2d | nn.BatchNorm2d | nn.BatchNorm1d)]


def norms_take_the_next_batch(module: nn.Module) -> None:
    """The running statistics become those of the next batch seen in training mode, at once."""
    for norm in _batch_norms(module):
        norm.momentum = 1


def settle(module: nn.Module, inputs: Tensor) -> nn.Module:
    """In evaluation mode, with norms that have seen `inputs`, so that activations have a useful size."""
    norms_take_the_next_batch(module.eval())
    for norm in _batch_norms(module):
        norm.train()
    with torch.no_grad():
        module(inputs)
    return module.eval()


def randomise(module: nn.Module, inputs: Tensor) -> nn.Module:
    """Settled, but nothing as it was at the start: biases, scales and tokens, which begin as 0 or 1 and would not be
    missed, and running statistics that are those of no batch."""
    generator = torch.Generator().manual_seed(3)

    def random(value: Tensor, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(value.shape, generator=generator, dtype=value.dtype)

    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith("bias"):
                value += random(value, -0.2, 0.2)
            elif value.dim() == 1 or not value.any():
                value.copy_(random(value, 0.5, 1.5))
        settle(module, inputs)
        for norm in _batch_norms(module):
            mean, variance = norm.running_mean, norm.running_var
            mean += variance.sqrt() * random(mean, -0.2, 0.2)
            variance.mul_(random(variance, 0.8, 1.5)).add_(0.2 * variance.mean())
    return module


def shares(module: nn.Module, images: Tensor, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """What pixels and constants contribute to the first outputs, N×K each, and those outputs."""
    with explaining() as trace:
        values = module(encode_colours(images)).flatten(1)[:, :outputs]
        maps = linear_maps(values, trace)
    assert trace.source is not None
    pixels = (maps.weights * trace.source.detach()[:, None]).sum(dim=(2, 3, 4))
    return pixels, maps.constants, values.detach()


def small_settings(**other: Any) -> Settings:
    """Settings of a short fit of a small network."""
    usual: dict[str, Any] = {
        "backbone": "resnet_tiny", "size": 32, "resize": 32, "fit": "crop", "epochs": 2, "lr": 3e-3, "temperature": 1.0,
        "batch_size": 8, "recipe": "scratch", "augmentation": "none",
    }  # fmt: skip
    return Settings(**usual | other)


def small_distilled(file: Path, **origin: Any) -> Path:
    """Write a file as `sic distill` does: an untrained network with a classifier of five classes."""
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    head = torch.randn(5, backbone.features)
    Distilled("resnet_tiny", backbone.network.state_dict(), head, 0.5, origin).write(file)
    return file
