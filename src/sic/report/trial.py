"""Trying the model on labelled images: what it said about them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import Sample
from sic.evaluate.accuracy import accuracy_figures
from sic.evaluate.held_out import HeldOut
from sic.explain import Latents
from sic.model import Model


@dataclass(frozen=True)
class Trial:
    """Images that the model was tried on, and what it said."""

    images: HeldOut
    latents: Latents
    logits: Tensor
    """n×C."""
    figures: dict[str, Any]
    """As of `accuracy_figures`."""

    @property
    def name(self) -> str:
        """For people: which images of which data."""
        return self.images.name

    @property
    def samples(self) -> list[Sample]:
        return self.images.samples


@torch.no_grad()
def attempt(model: Model, images: HeldOut) -> Trial:
    """Run the model over readable images, once."""
    latents = model.embed(images.samples)
    logits = model.classifier.logits(model.classifier.evidence(latents.vectors)).cpu()
    figures = accuracy_figures(logits, images.samples, model.config.task, model.classes)
    return Trial(images, latents, logits, figures)
