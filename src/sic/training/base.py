"""The base of all fits, a Lightning module: losses, optimiser, schedule, the step of a plain classifier, validation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from sic.bcos import fade, renew_statistics
from sic.bcos.norms import processes
from sic.data.labels import shared, split_targets
from sic.data.transforms import TrainingTransform, evaluation_view
from sic.errors import SicError
from sic.methods import Classifier
from sic.predictions import Answers
from sic.settings import Settings
from sic.training.batches import Batch, Share, Views, gathered
from sic.training.teacher import Lesson, Teacher

STATISTICS = 256
"""Training images, at most, whose statistics batch norms get before a validation."""
LARGEST_WEIGHT = 100.0
"""The largest weight of positives; with a larger one, a few images would decide every step."""


def binary_loss(logits: Tensor, targets: Tensor, positive: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, the mean over all that counts; `positive`: weight of each class's positives, C."""
    truth, counts = split_targets(targets)
    losses = F.binary_cross_entropy_with_logits(logits, truth, pos_weight=positive, reduction="none")
    return (losses * counts).sum() / counts.sum().clamp_min(1)


def softmax_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with an image's labels as answers that share it equally."""
    shares, counts = split_targets(shared(targets))
    return F.cross_entropy(logits.masked_fill(~counts, -1e4), shares)


def positive_weights(targets: Tensor) -> Tensor:
    """Negatives over positives of each class, C, among the images that count for it, at most `LARGEST_WEIGHT`.

    With these weights the positives of a class weigh as much as its negatives, however rare they are.

    >>> positive_weights(Tensor([[1, 0], [0, 0], [0, 1], [float("nan"), 0]]))
    tensor([2., 3.])
    """
    truth, counts = split_targets(targets)
    positives = truth.sum(dim=0)
    return ((counts.sum(dim=0) - positives) / positives.clamp_min(1)).clamp_max(LARGEST_WEIGHT)


Candidates = dict[int, list[int]]
"""Positions of the training images that may be cases, per class."""


@dataclass(frozen=True)
class ChosenSupport:
    """A support that training chose, by its position among the training images."""

    label: int
    row: int | None
    """Its position among the training images; None: it is none of them."""
    box: tuple[int, int, int, int] | None = None
    """The part of the view that it is: left, top, right, bottom in pixels; None: all of it."""


class Training(lightning.LightningModule):
    """Fits a classifier; methods whose step or whose epochs are different do them in a subclass."""

    embedding: DataLoader[tuple[Tensor, Tensor]]
    """The training images as the model sees them after training."""
    positive: Tensor | None
    """Weight of each class's positives in the loss, where classes are balanced."""
    steps_per_epoch: int
    transform: TrainingTransform
    """Moves the queries' pixels where the loader has not."""
    views: Tensor | None = None
    """Bytes of all training images as the model sees them, on its device, where batches have no pixels."""
    shared = True
    """Whether several processes can do it together."""
    draws_supports = False
    """Whether a batch needs supports beside its queries."""
    teacher: Teacher | None = None
    """A trained model to imitate."""

    def __init__(
        self,
        classifier: Classifier,
        settings: Settings,
        candidates: Candidates,
        multi_label: bool,
        positive: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.classifier = classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.candidates = settings, candidates
        self.multi_label = multi_label
        self.register_buffer("positive", positive, persistent=False)
        self.chance: float | None = None
        """The base rate of the validation images, which an untrained model scores."""
        self.collapsed: str | None = None
        """The sentence to say after this epoch, if the fit has collapsed."""
        self.figures: dict[str, float] = {}
        """Figures of the epoch: training and validation loss, score, and what the method adds."""
        self.classifier.backbone.compiled = settings.compiled
        self._faded = torch.zeros(())
        self._losses: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self.prepare()

    def prepare(self) -> None:
        """A hook for methods: called once `classifier` and `settings` are there."""

    def compile_nothing(self) -> None:
        """From here on, run the network as it is."""
        self.settings = replace(self.settings, compiled=False)
        self.classifier.backbone.forget_compiled()

    @staticmethod
    def number_of_supports(settings: Settings, candidates: Candidates, classes: int) -> int:
        return 0

    def chosen_supports(self) -> list[ChosenSupport]:
        """The supports of the classifier, in its order."""
        return []

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    def configure_optimizers(self) -> Any:
        settings = self.settings
        pretrained = {id(parameter) for parameter in self.classifier.backbone.parameters()}
        groups = [
            {"params": [each for each in self.parameters() if id(each) in pretrained], "lr": settings.lr},
            {
                "params": [each for each in self.parameters() if id(each) not in pretrained],
                "lr": settings.lr if settings.head_lr is None else settings.head_lr,
            },
        ]
        optimiser = torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=self.on_gpu)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate_factor(step, self.steps_per_epoch, self.total_steps)
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        # Lightning refuses to clip before a fused step, which matters where gradients are scaled; bf16's are not.
        if gradient_clip_val is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    @property
    def faded(self) -> float:
        """How far a bcosified network is from conventional (0) to B-cos (1); others are there from the start."""
        steps = self.settings.fading * self.total_steps
        return min(1.0, self.global_step / steps) if steps else 1.0

    @property
    def presentable(self) -> bool:
        """Whether the classifier is what it should be in the end; what is not yet cannot be the best."""
        return self.faded == 1

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, Batch):
            if self.views is not None:
                batch.queries, batch.supports = self.views[batch.rows], self.views[batch.support_rows]
            if batch.moves is not None:
                batch.queries, batch.moves = self.transform.apply(batch.queries, batch.moves), None
        return batch

    def fade(self) -> None:
        """Bring the network as far from conventional to B-cos as it should be at this step."""
        faded: float | Tensor = self.faded
        if faded < 1:  # as a tensor from the first step on: a number would be compiled in
            faded = self._faded = self._faded.to(self.device).fill_(faded)
        fade(self.classifier.backbone, faded)

    def prepared(self, pixels: Tensor) -> Tensor:
        """Images for the network of bytes of a batch, N×3×S×S."""
        return (pixels.float() / 255).contiguous(memory_format=torch.channels_last)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.fade()
        logits = gathered(self.classifier(self.prepared(batch.queries)).float(), len(batch.targets))
        return self.noted(self.loss(logits, self.wanted(batch.targets, self.lesson(batch))), index)

    def on_fit_start(self) -> None:
        if self.teacher is not None:  # it is no part of this module, so nobody else moves it
            self.teacher.to(self.device)

    def lesson(self, batch: Batch) -> Lesson | None:
        """What the teacher, if there is one, says about the queries of a batch."""
        if self.teacher is None:
            return None
        lesson = self.teacher(self.prepared(batch.queries))
        number = len(batch.targets)
        maps = None if lesson.maps is None else gathered(lesson.maps, number)
        return Lesson(gathered(lesson.probabilities, number), maps)

    def wanted(self, targets: Tensor, lesson: Lesson | None = None) -> Tensor:
        """What the loss compares N×C logits with: the targets of N images, mixed with what a teacher says."""
        if self.settings.ambiguous == "share" and not self.multi_label:
            targets = shared(targets)
        return lesson.targets(targets) if lesson else targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The method's own, of logits and `wanted` targets, both N×C."""
        if self.classifier.loss == "ce":
            return softmax_loss(logits, targets)
        return binary_loss(logits, targets, None if self.positive is None else self.positive.to(logits.device))

    def noted(self, loss: Tensor, index: int) -> Tensor:
        """The loss of a step, remembered; now and then looked at."""
        self._losses.append(loss.detach())
        if index % 20 == 0:
            self.refuse_nan()
        return loss

    def refuse_nan(self) -> None:
        if self._losses and not torch.stack(self._losses[-20:]).isfinite().all():
            raise SicError(
                f"The loss became NaN or infinite in epoch {self.current_epoch + 1}; try a lower --lr "
                f"(it was {self.settings.lr:g}). All epochs before it are saved."
            )

    def training_views(self) -> Iterator[Tensor]:
        """The training images as the model sees them after training, in order and in batches, N×3×S×S in [0, 1]."""
        if self.views is None:
            batches: Iterable[Tensor] = (images for images, _ in self.embedding)
        else:
            batches = self.views.split(self.embedding.batch_size or len(self.views))
        for images in batches:
            yield images.to(self.device).float() / 255

    def renew_statistics(self) -> None:
        """Give the batch norms of a B-cos network the statistics of training images, with the present weights."""
        views, backbone = self.embedding.dataset, self.classifier.backbone
        assert isinstance(views, Views)
        rows = np.linspace(0, len(views.pixels) - 1, min(STATISTICS, len(views.pixels))).astype(int)
        parts = np.array_split(rows, -(-len(rows) // (self.embedding.batch_size or len(rows))))
        own = Share(self.global_rank, processes())  # of each batch, as in a training step
        batches = ([views.pixels[row] for row in part[own.of(len(part))]] for part in parts)
        with torch.autocast(self.device.type, enabled=False):
            images = (evaluation_view(batch, views.preprocessing).to(self.device).float() / 255 for batch in batches)
            renew_statistics(backbone.network, (backbone.prepared(batch) for batch in images))

    def before_validation(self) -> None:
        """A hook for methods: called after every epoch, before validation."""

    def on_validation_epoch_start(self) -> None:
        self.refuse_nan()
        self.renew_statistics()
        self.before_validation()
        self._outputs = []

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, targets = batch
        with torch.autocast(self.device.type, enabled=False):
            self._outputs.append((self.classifier(images.float() / 255).cpu(), targets.cpu()))

    def on_validation_epoch_end(self) -> None:
        logits, targets = (gathered(torch.cat(part).to(self.device)).cpu() for part in zip(*self._outputs, strict=True))
        found, self.chance = self.validity(logits, targets), targets.nanmean().item()
        self.figures = {
            "train_loss": torch.stack(self._losses).mean().item() if self._losses else float("nan"),
            "val_loss": found.loss,
            "val_score": found.score,
            **self.health_figures(found.score, self.chance),
        }
        self._losses = []
        self.log("val_rank", found.rank - 2 * (not self.presentable))

    def validity(self, logits: Tensor, targets: Tensor) -> "Validity":
        """How good the classifier is on N validation images, by its logits N×C."""
        answers = Answers(logits, "multi" if self.multi_label else "single", self.classifier.loss)
        return Validity(answers.main_score(targets), self.loss(logits, self.wanted(targets)).item(), len(targets))

    def health_figures(self, score: float, chance: float) -> dict[str, float]:
        """Further metrics of a method, for the history."""
        return {}


@dataclass(frozen=True)
class Validity:
    """How good a classifier is on validation images."""

    score: float
    loss: float
    images: int

    @property
    def rank(self) -> float:
        """Higher for better epochs: by score, and of epochs with the same score by loss.

        One of the images more or less changes an accuracy by more than any loss changes the rank.

        >>> Validity(0.9, 0.2, 50).rank > Validity(0.9, 0.3, 50).rank > Validity(0.88, 0.1, 50).rank
        True
        """
        return self.score - self.loss / (1 + self.loss) / (2 * self.images)


def near_chance(score: float, chance: float) -> bool:
    """Whether a score is hardly above chance: by less than half of it, and by less than a tenth of what is missing.

    >>> near_chance(0.22, 1 / 6), near_chance(0.3, 1 / 6), near_chance(0.54, 0.5), near_chance(0.58, 0.5)
    (True, False, True, False)
    """
    return not score > chance + min(chance / 2, (1 - chance) / 10)  # also where it is not a number


def learning_rate_factor(step: int, steps_per_epoch: int, total_steps: int) -> float:
    """The paper's schedule: share of the initial learning rate at `step` (from 0).

    Linear from 10 % to 100 % over the first two epochs, constant until half of all steps are done, halved there and
    again at 60, 70, 80 and 90 %.

    >>> [learning_rate_factor(step, 10, 1000) for step in (0, 10, 20, 499, 500, 600, 999)]
    [0.1, 0.55, 1.0, 1.0, 0.5, 0.25, 0.03125]
    """
    warm_up = 2 * steps_per_epoch
    ramp = 0.1 + 0.9 * step / warm_up if step < warm_up else 1.0
    tenths_past_half = 10 * step // total_steps - 5
    return ramp * 0.5 ** max(0, tenths_past_half + 1)
