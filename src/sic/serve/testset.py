"""The images that a model was not trained on, where its data is still at hand."""

from dataclasses import dataclass
from pathlib import Path

from sic.data.dataset import Sample
from sic.model import Model
from sic.predictions import Predictions
from sic.run import Run

BATCH = 16


@dataclass
class TestSet:
    """Test images, or else the next fairest ones, of which some are embedded."""

    name: str
    caution: str | None
    """What keeps them from being a fair test."""
    samples: list[Sample]
    embedded: int = 0
    """How many of them were looked at, from the first one on."""

    @property
    def done(self) -> bool:
        return self.embedded == len(self.samples)

    def embed_more(self, model: Model) -> None:
        """Embed the next few images."""
        batch = self.samples[self.embedded : self.embedded + BATCH]
        model.latents.embed(batch, keep=False)
        self.embedded += len(batch)
        if self.done:
            model.latents.keep()

    def predictions(self, model: Model) -> tuple[list[int], Predictions]:
        """Positions of the embedded images, and what the model says about them."""
        latents = model.latents
        places = [place for place, sample in enumerate(self.samples[: self.embedded]) if sample.id in latents]
        known = [self.samples[place] for place in places]
        return places, model.predictions_of(known, latents.of([sample.id for sample in known]))


def find(folder: Path, model: Model) -> TestSet:
    """The test set of the model in `folder`; `ImagesNotFound`, or another refusal, where there is none."""
    run = Run(folder, model.config)
    found = run.held_out(run.open())
    return TestSet(found.name, found.caution, found.samples)
