"""The images that a model was not trained on, where its data is still at hand."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sic.data
from sic.data.dataset import Sample
from sic.data.images import UnreadableImage
from sic.directory import RUN, read_run
from sic.errors import SicError
from sic.evaluate.held_out import held_out
from sic.explain import Latents
from sic.model import Model
from sic.predictions import Predictions

BATCH = 16


@dataclass
class TestSet:
    """Test images, or else the next fairest ones, and their latents as far as they are known."""

    name: str
    caution: str | None
    """What keeps them from being a fair test."""
    samples: list[Sample]
    latents: list[Tensor | None] = field(default_factory=list)
    """One per sample looked at so far, d each; None where the file cannot be read."""

    @property
    def done(self) -> bool:
        return len(self.latents) == len(self.samples)

    @torch.no_grad()
    def look_further(self, model: Model) -> None:
        """Embed the next few images."""
        views: dict[int, Tensor] = {}
        start = len(self.latents)
        batch = self.samples[start : start + BATCH]
        for offset, sample in enumerate(batch):
            try:
                views[offset] = model.tensor(sample.path)
            except (SicError, UnreadableImage):
                continue
        latents = model.sic.encoder(torch.stack(list(views.values()))).cpu() if views else []
        known = dict(zip(views, latents, strict=True))
        self.latents += [known.get(offset) for offset in range(len(batch))]

    def embedded(self, model: Model) -> Latents | None:
        """The images looked at so far that can be read, where the model is."""
        known = [
            (sample, latent) for sample, latent in zip(self.samples, self.latents, strict=False) if latent is not None
        ]
        if not known:
            return None
        vectors = torch.stack([latent for _, latent in known]).to(model.device)
        return Latents([sample.id for sample, _ in known], [sample.labels for sample, _ in known], vectors)

    @torch.no_grad()
    def predictions(self, model: Model) -> tuple[list[int], Predictions]:
        """Positions of the images looked at, and what the model says about them."""
        places = [place for place, latent in enumerate(self.latents) if latent is not None]
        known = self.embedded(model)
        latents = torch.zeros(0, model.config.latent) if known is None else known.vectors
        return places, model.predictions_of([self.samples[place] for place in places], latents)


def find(folder: Path, model: Model) -> TestSet | str:
    """The test set of the model in `folder`, or a sentence that says why there is none."""
    if not (folder / RUN).is_file():
        return f"{folder} has no {RUN}, so its test images are not known."
    run = read_run(folder)
    arguments: dict[str, Any] = run["data"].get("opened_with", {})
    try:
        data = sic.data.open(**arguments)
    except (SicError, TypeError, OSError) as error:
        return f"The model's data cannot be opened ({error})."
    if list(data.classes) != model.classes:
        return f"The data in {data.root} has other classes now than the model."
    found = held_out(data, model.classes, run.get("validation", []))
    return TestSet(found.name, found.caution, found.samples)
