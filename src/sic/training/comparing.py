"""Fits of classifiers that compare an image's latent with those of training images, chosen anew after every epoch."""

from collections.abc import Sized

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.bcos.norms import processes
from sic.errors import SicError
from sic.methods import Comparing, NWHead
from sic.settings import Settings
from sic.supports import Selection, room_for, select_how
from sic.training.base import Candidates, ChosenSupport, Training
from sic.training.batches import Batch, gathered


class ComparingTraining(Training):
    """Holds who the supports are."""

    classifier: Comparing
    support_rows: Tensor
    """Positions of the supports among the training images; -1: a mean of several."""
    draws_supports = True

    def prepare(self) -> None:
        self.register_buffer("support_rows", torch.zeros_like(self.classifier.support_classes))

    @staticmethod
    def number_of_supports(settings: Settings, candidates: Candidates, classes: int) -> int:
        sizes = [len(members) for members in candidates.values()]
        if settings.inference_supports == "full":
            return sum(sizes)
        return sum(min(settings.supports_per_class, size) for size in sizes)

    def chosen_supports(self) -> list[ChosenSupport]:
        pairs = zip(self.classifier.support_labels, self.support_rows.tolist(), strict=True)
        return [ChosenSupport(label, row if row >= 0 else None) for label, row in pairs]

    def whole(self, pooled: Tensor, batch: Batch) -> Tensor:
        """Features of all queries and then all supports of a batch, of which each process has embedded its share."""
        queries, supports = pooled.split([len(batch.queries), len(batch.supports)])
        return torch.cat([gathered(queries, len(batch.targets)), gathered(supports, len(batch.support_targets))])

    @torch.no_grad()
    def embed(self) -> NDArray[np.float32]:
        """Latents of the training set with the evaluation transform, n×d, in full precision."""
        self.fade()  # where a run is resumed, no step has done that
        self.classifier.eval()
        images_of = self.embedding.dataset
        assert isinstance(images_of, Sized)
        latents, done = room_for(len(images_of), self.classifier.support_vectors.shape[1]), 0
        with torch.autocast(self.device.type, enabled=False):
            for images in self.training_views():
                found = self.classifier.encoder(images)
                latents[done : done + len(found)] = found.cpu().numpy()
                done += len(found)
        if processes() > 1:  # each has embedded a share
            return gathered(torch.from_numpy(latents).to(self.device)).cpu().numpy()
        return latents

    def before_validation(self) -> None:
        """Fresh latents, fresh supports; from here on the model reasons with these."""
        latents = self.embed()
        if not np.isfinite(latents).all():
            raise SicError(f"The latents became NaN in epoch {self.current_epoch + 1}; try a lower --lr.")
        settings = self.settings
        chosen: Selection | None = None
        if self.global_rank == 0:  # the others would find the same, but for the last bits of unlike machines
            chosen = select_how(
                settings.inference_supports,
                latents,
                self.candidates,
                settings.supports_per_class,
                settings.seed,
                self.device if self.on_gpu else None,
            )
        chosen = self.trainer.strategy.broadcast(chosen)
        assert chosen is not None
        self.support_rows.copy_(torch.from_numpy(chosen.rows))
        self.classifier.set_supports(torch.from_numpy(chosen.vectors), torch.from_numpy(chosen.classes))
        self.look_at(latents)

    def look_at(self, latents: NDArray[np.float32]) -> None:
        """A hook for methods: called with the fresh latents of the training set."""


class NWHeadTraining(ComparingTraining):
    """Queries are classified by the random supports of their batch; gradients go through both."""

    classifier: NWHead

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier, number = self.classifier, len(batch.targets)
        pooled = classifier.backbone(self.prepared(torch.cat([batch.queries, batch.supports])))
        with torch.autocast(self.device.type, enabled=False):
            latents = classifier.encoder.project(self.whole(pooled.float(), batch))
            log_weights = classifier.log_weights(latents[:number], latents[number:])
            logits = classifier.logits(log_weights, batch.support_classes)
            loss = self.loss(logits, self.wanted(batch.targets))
        return self.noted(loss, index)
