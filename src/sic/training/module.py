"""The training step and what happens after every epoch, as a Lightning module."""

from collections.abc import Callable
from typing import Any

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sic.bcos import BcosLinear, fade
from sic.data.labels import average_precisions, mean_precision, split_targets
from sic.data.transforms import TrainingTransform
from sic.errors import SicError
from sic.methods import SIC
from sic.supports import select
from sic.training.batches import Batch
from sic.training.losses import binary_loss, softmax_loss
from sic.training.schedule import learning_rate_factor
from sic.training.settings import Settings
from sic.training.watch import LatentHealth, collapse, latent_health


class Guide(nn.Module):
    """What keeps a network that starts from nothing from collapsing; gone once training is over.

    Binary cross-entropy alone is lowest for latents that separate nothing when all of them vanish. Softmax
    cross-entropy does not care for evidence that all classes share, so it asks for differences instead: on the SIC
    logits, and on a B-cos classifier of the pooled features, which learns before there are latents to compare.
    """

    SCALE = 10.0
    """B-cos outputs of fresh features are small: without it the head would wait for the features to grow."""

    def __init__(self, features: int, classes: int, b: float) -> None:
        super().__init__()
        self.head = BcosLinear(features, classes, b)

    def forward(self, pooled: Tensor, logits: Tensor, targets: Tensor, support_targets: Tensor) -> Tensor:
        everyone = torch.cat([targets, support_targets])
        return softmax_loss(logits, targets) + softmax_loss(self.SCALE * self.head(pooled), everyone)


class SICTraining(lightning.LightningModule):
    """Fits a `SIC` classifier; holds who the supports are, and the optional guide."""

    support_rows: Tensor
    """Positions of the supports among the training images."""
    embedding: DataLoader[tuple[Tensor, Tensor]]
    """The training images as the model sees them after training."""
    positive: Tensor | None
    """Weight of each class's positives in the loss, where classes are balanced."""
    steps_per_epoch: int
    transform: TrainingTransform
    """Moves the queries' pixels where the loader has not."""

    def __init__(
        self,
        classifier: SIC,
        settings: Settings,
        candidates: dict[int, list[int]],
        multi_label: bool,
        positive: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.classifier = classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.candidates = settings, candidates
        self.multi_label = multi_label
        self.guide = (
            Guide(classifier.encoder.backbone.features, classifier.classes, settings.b) if settings.guided else None
        )
        self.register_buffer("support_rows", torch.zeros_like(classifier.support_classes))
        self.register_buffer("positive", positive, persistent=False)
        self.health = LatentHealth(0.0, 0.0)
        self.collapsed: str | None = None
        """The sentence to say after this epoch, if the fit has collapsed."""
        self.figures: dict[str, float] = {}
        """Figures of the epoch: training and validation loss, score, latent health."""
        self._faded = torch.zeros(())
        self._pooled: Callable[[Tensor], Tensor] = classifier.encoder.pooled
        if settings.compiled:
            self._pooled = torch.compile(classifier.encoder.pooled, dynamic=False)
        self._losses: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    def configure_optimizers(self) -> Any:
        on_gpu = self.device.type == "cuda"
        optimiser = torch.optim.AdamW(self.parameters(), lr=self.settings.lr, weight_decay=0.0, fused=on_gpu)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate_factor(step, self.steps_per_epoch, self.total_steps)
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def faded(self) -> float:
        """How far a bcosified network is from conventional (0) to B-cos (1); others are there from the start."""
        steps = self.settings.fading * self.total_steps
        return min(1.0, self.global_step / steps) if steps else 1.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, Batch) and batch.moves is not None:
            batch.queries, batch.moves = self.transform.apply(batch.queries, batch.moves), None
        return batch

    def fade(self) -> None:
        """Bring the network as far from conventional to B-cos as it should be at this step."""
        faded: float | Tensor = self.faded
        if 0 < faded < 1:
            faded = self._faded = self._faded.to(self.device).fill_(faded)
        fade(self.classifier.encoder.backbone, faded)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier = self.classifier
        self.fade()
        images = torch.cat([batch.queries, batch.supports]).float() / 255
        images = images.contiguous(memory_format=torch.channels_last)
        pooled = self._pooled(images)
        with torch.autocast(self.device.type, enabled=False):
            pooled = pooled.float()
            latents = classifier.encoder.project(pooled)
            evidence = classifier.evidence(latents[: len(batch.queries)], latents[len(batch.queries) :])
            logits = classifier.logits(evidence, batch.support_classes)
            loss = self.loss(logits, batch.targets)
            if self.guide is not None:
                # Fades over the second half, so that what is optimised in the end is the method's own loss.
                strength = min(1.0, 2 * (1 - self.global_step / self.total_steps))
                loss = loss + strength * self.guide(pooled, logits, batch.targets, batch.support_targets)
        self._losses.append(loss.detach())
        if index % 20 == 0:
            self._refuse_nan()
        return loss

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The method's own, of N×C."""
        return binary_loss(logits, targets, None if self.positive is None else self.positive.to(logits.device))

    def _refuse_nan(self) -> None:
        if self._losses and not torch.stack(self._losses[-20:]).isfinite().all():
            raise SicError(
                f"The loss became NaN or infinite in epoch {self.current_epoch + 1}; try a lower --lr "
                f"(it was {self.settings.lr:g}). Nothing up to the epoch before is lost."
            )

    @torch.no_grad()
    def embed(self) -> NDArray[np.float32]:
        """`f⁺` of the training set with the evaluation transform, n×d, in full precision."""
        self.classifier.eval()
        latents = []
        with torch.autocast(self.device.type, enabled=False):
            for images, _ in self.embedding:
                latents.append(self.classifier.encoder(images.to(self.device).float() / 255).cpu())
        return torch.cat(latents).numpy()

    def reselect_supports(self) -> None:
        """k-means per class on fresh latents; from here on the model reasons with the images found."""
        latents = self.embed()
        if not np.isfinite(latents).all():
            raise SicError(f"The latents became NaN in epoch {self.current_epoch + 1}; try a lower --lr.")
        rows, classes = select(latents, self.candidates, self.settings.supports_per_class, self.settings.seed)
        self.support_rows.copy_(torch.from_numpy(rows))
        self.classifier.set_supports(torch.from_numpy(latents[rows]), torch.from_numpy(classes))
        self.health = latent_health(latents)

    def on_validation_epoch_start(self) -> None:
        self._refuse_nan()
        self.reselect_supports()
        self._outputs = []

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, targets = batch
        with torch.autocast(self.device.type, enabled=False):
            self._outputs.append((self.classifier(images.float() / 255).cpu(), targets.cpu()))

    def on_validation_epoch_end(self) -> None:
        logits = torch.cat([logits for logits, _ in self._outputs])
        targets = torch.cat([targets for _, targets in self._outputs])
        if self.multi_label:
            score = mean_precision(average_precisions(logits, targets))
        else:
            # An image may have several right answers (a bird that lacks parts): any of them counts.
            score = split_targets(targets)[0].gather(1, logits.argmax(1, keepdim=True)).mean().item()
        chance = targets.nanmean().item()
        self.collapsed = collapse(self.health, self.settings.temperature, score, chance, self.global_step)
        self.figures = {
            "train_loss": torch.stack(self._losses).mean().item() if self._losses else float("nan"),
            "val_loss": self.loss(logits, targets).item(),
            "val_score": score,
            "dead_units": self.health.dead_units,
            "latent_norm": self.health.norm,
        }
        self._losses = []
        # Of epochs with the same score, the one with the lower loss is the best.
        # What is not yet a B-cos network cannot be the best, however well it does.
        self.log("val_rank", score - 1e-3 * min(1.0, self.figures["val_loss"]) - 2 * (self.faded < 1))
