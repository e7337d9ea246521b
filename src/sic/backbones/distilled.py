"""A file of distilled weights: a B-cos network, its classifier where the teacher had one, and where they come from."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sic.errors import SicError

FORMAT = 1
KEY = "sic-distilled"
"""Under which the description stands in the file's metadata."""
PHOTOS = "photos"
PHOTOS_SMALL = "photos-small"
SHIPPED = {name: Path(__file__).with_name(f"{name}.safetensors") for name in (PHOTOS, PHOTOS_SMALL)}
"""Files that come with this package, by name: a ResNet50, and a network of half its layers."""
DISTILLED_B = 2
"""B of distilled networks, which their weights were made for."""
NETWORK, HEAD = "network.", "head.weight"
SCALE = ":scale"
"""Ends the name of the scales of a tensor that is stored in 8 bits."""


@dataclass
class Distilled:
    """What a file of distilled weights holds."""

    backbone: str
    network: dict[str, Tensor]
    head: Tensor | None = None
    """Directions C×F of the B-cos classifier."""
    temperature: float = 1.0
    """Of the classifier."""
    origin: dict[str, Any] = field(default_factory=dict)
    """Teacher, number of images, sizes, terms."""

    def write(self, file: Path, *, bits: int = 16) -> None:
        """`bits`: 16 (half precision) or 8 (with one scale per output channel)."""
        tensors = {f"{NETWORK}{name}": value for name, value in self.network.items()}
        if self.head is not None:
            tensors[HEAD] = self.head
        stored: dict[str, Tensor] = {}
        for name, value in tensors.items():
            if bits == 8 and value.dim() > 1:
                scale = value.flatten(1).abs().amax(1).clamp_min(1e-12).float() / 127
                spread = scale.view(-1, *[1] * (value.dim() - 1))
                stored[name], stored[name + SCALE] = (value / spread).round().to(torch.int8), scale
            else:
                stored[name] = value.half() if value.dim() > 1 else value.float()
        about = {"format": FORMAT, "backbone": self.backbone, "temperature": self.temperature, "origin": self.origin}
        save_file({name: value.contiguous().cpu() for name, value in stored.items()}, file, {KEY: json.dumps(about)})


def distilled_file(weights: str | Path) -> Path | None:
    """The file of distilled weights that `weights` names, one of ours or a path; None: it is something else."""
    path = Path(weights)
    if str(weights) in SHIPPED and not (path / "config.json").is_file():  # a model directory may have that name, too
        return SHIPPED[str(weights)]
    return path if _is_distilled(path) else None


def _is_distilled(file: Path) -> bool:
    """Whether a file of weights was written by `sic distill`."""
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        with safe_open(file, "pt") as content:
            return KEY in (content.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read_distilled(file: Path) -> Distilled:
    """Read a file that `sic distill` wrote."""
    try:
        with safe_open(file, "pt") as content:
            about = json.loads((content.metadata() or {})[KEY])
            stored = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  (it is no dictionary)
        if about["format"] > FORMAT:
            raise SicError(f"{file} was written by a newer sic (format {about['format']}); update sic to read it.")
        tensors = {
            name: _restored(value, stored.get(name + SCALE))
            for name, value in stored.items()
            if not name.endswith(SCALE)
        }
        if not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise SicError(f"{file} holds numbers that are not finite; fetch or distil it again.")
        network = {name.removeprefix(NETWORK): value for name, value in tensors.items() if name.startswith(NETWORK)}
        return Distilled(
            str(about["backbone"]), network, tensors.get(HEAD), float(about["temperature"]), dict(about["origin"])
        )
    except OSError as error:
        raise SicError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError):
        raise SicError(f"{file} is damaged or was not written by `sic distill`.") from None


def _restored(value: Tensor, scale: Tensor | None) -> Tensor:
    if scale is None:
        return value.float()
    return value.float() * scale.view(-1, *[1] * (value.dim() - 1))
