"""The stages of ProtoPNet: warm-up, joint training, projection of the prototypes onto training images, last layer."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from sic.data.labels import split_targets
from sic.errors import SicError
from sic.methods import ProtoPNet
from sic.methods.protopnet import part_box
from sic.settings import Settings
from sic.training.base import Candidates, ChosenSupport, Training, learning_rate_factor
from sic.training.batches import Batch

CLUSTER, SEPARATION, SPARSE = 0.8, 0.08, 1e-4
"""Weights of the costs: own prototypes near, others far, few connections to other classes."""
PRETRAINED, LAST = 1 / 30, 1 / 3
"""Learning rates relative to that of new layers and prototypes; with `--head-lr`, a pretrained network has `--lr`. The
authors' last layer learns as slowly as pretrained ones, in tens of thousands of steps on enlarged data; it is a convex
problem, and here it has fewer."""


WARM = 5
"""Epochs, at most, in which new layers and prototypes learn alone."""
ROUND = 10
"""Epochs from one projection to the next."""
Stage = Literal["warm", "joint", "last"]


def rounds(epochs: int) -> list[int]:
    """The epochs of each round: 10, but for the first one, which is longer if `epochs` is no multiple of 10.

    >>> rounds(23), rounds(8)
    ([13, 10], [8])
    """
    later = max(1, epochs // ROUND) - 1
    return [epochs - ROUND * later, *[ROUND] * later]


def stages(epochs: int) -> list[Stage]:
    """What learns in each epoch: new layers and prototypes (warm), all but the last layer (joint), or the last layer.

    The last fifth of a round belongs to the last layer. Each time that it begins, prototypes are projected onto
    training images.

    >>> "".join(stage[0] for stage in stages(23))
    'wwwwwjjjjjjlljjjjjjjjll'
    """
    result: list[Stage] = []
    for length in rounds(epochs):
        for epoch in range(length):
            warm = len(result) < min(WARM, epochs // 4)
            result.append("last" if epoch >= length - max(1, length // 5) else "warm" if warm else "joint")
    return result


def growth(epochs: int) -> tuple[float, float]:
    """The epochs after which the cluster and separation costs begin, and after which all of them is there: the middle
    and the end of the first round. A fit of one round has all of them for the last quarter of the epochs before its
    projection, after which they play no part.

    >>> growth(30), growth(10)
    ((5.0, 10.0), (4.0, 6.0))
    """
    first, *later = rounds(epochs)
    if later:
        return first / 2, float(first)
    learning = stages(epochs).index("last")
    return learning / 2, learning * 3 / 4


def strength(epochs: float, begin: float, full: float) -> float:
    """The strength of the cluster and separation costs after so many epochs: none until `begin`, all of it from `full`.

    At first, distances are large and their costs are many times the cross-entropy. Short fits that have all of them
    from the first step learn less (results/protopnet.json).

    >>> strength(4, 5, 10), strength(7.5, 5, 10), strength(25, 5, 10)
    (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, (epochs - begin) / (full - begin)))


class ProtoPNetTraining(Training):
    """The stages of ProtoPNet. As published: warm-up, a projection every 10 epochs, Adam with weight decay for the
    network and the new layers. The published last layer has 20 epochs to itself after each projection; here it is a
    fifth of the epochs, so that all methods have equally many. The published costs are there from the first step; here
    they come in during the first round, because fits are shorter (`strength`)."""

    classifier: ProtoPNet
    shared = False  # projecting looks at all images, and layers begin and cease to learn
    sources: Tensor
    """P×5, as `ProtoPNet.project` returns them; images are counted among the training images."""

    def prepare(self) -> None:
        if self.settings.epochs < 2:
            raise SicError("--method protopnet needs at least 2 --epochs: its last layer learns after everything else.")
        self.register_buffer("sources", torch.zeros(len(self.classifier.prototypes), 5, dtype=torch.long))
        self.stages = stages(self.settings.epochs)
        self.growth = growth(self.settings.epochs)

    @staticmethod
    def number_of_supports(settings: Settings, candidates: Candidates, classes: int) -> int:
        return settings.supports_per_class * classes

    def chosen_supports(self) -> list[ChosenSupport]:
        return [
            ChosenSupport(label, source[0], part_box(source, self.settings.size))
            for label, source in zip(self.classifier.support_labels, self.sources.tolist(), strict=True)
        ]

    @property
    def stage(self) -> Stage:
        return self.stages[min(self.current_epoch, len(self.stages) - 1)]

    @property
    def presentable(self) -> bool:
        """Whether prototypes are parts of training images: they are from a projection until the network learns on."""
        return self.stage == "last"

    def configure_optimizers(self) -> Any:
        classifier, settings = self.classifier, self.settings
        new, decay = settings.lr if settings.head_lr is None else settings.head_lr, settings.weight_decay
        published = settings.head_lr is None and settings.weights is not None
        old = PRETRAINED * settings.lr if published else settings.lr
        groups = [
            {"params": list(classifier.backbone.parameters()), "lr": old, "weight_decay": decay},
            {"params": list(classifier.add_on.parameters()), "lr": new, "weight_decay": decay},
            {"params": [classifier.prototypes], "lr": new},
            {"params": list(classifier.last.parameters()), "lr": LAST * new},
        ]
        optimiser = torch.optim.Adam(groups, fused=self.on_gpu)

        def joint(step: int) -> float:
            return learning_rate_factor(step, self.steps_per_epoch, self.total_steps)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, [joint, joint, joint, lambda step: 1.0])
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        classifier, stage = self.classifier, self.stage
        if stage == "last" and self.stages[self.current_epoch - 1] != "last":
            self.project()
        classifier.backbone.requires_grad_(stage == "joint")
        classifier.add_on.requires_grad_(stage != "last")
        classifier.prototypes.requires_grad_(stage != "last")
        classifier.last.requires_grad_(stage == "last")
        # Prototypes stay what they are only while the layers before them do, running statistics included.
        classifier.train(stage != "last")

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier = self.classifier
        patches = classifier.patches(self.prepared(batch.queries))
        with torch.autocast(self.device.type, enabled=False):
            distances = classifier.distances(patches.float())
            loss = self.loss(classifier.logits(distances), self.wanted(batch.targets))
            if self.stage == "last":
                others = classifier.last.weight.abs().sum() - classifier.own_weights().abs().sum()
                loss = loss + SPARSE * others
            else:
                cluster, separation = prototype_costs(distances.amin(dim=(2, 3)), batch.targets)
                costs = CLUSTER * cluster - SEPARATION * separation
                loss = loss + strength(self.global_step / self.steps_per_epoch, *self.growth) * costs
        return self.noted(loss, index)

    @torch.no_grad()
    def project(self) -> None:
        """Every prototype becomes the nearest part of the training images that show its class and nothing else."""
        classifier = self.classifier.eval()
        members = {label: set(rows) for label, rows in self.candidates.items()}

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            first = 0
            for images in self.training_views():
                rows = range(first, first + len(images))
                may = [[row in members[label] for label in range(classifier.classes)] for row in rows]
                yield images, torch.tensor(may, device=self.device)
                first += len(images)

        with torch.autocast(self.device.type, enabled=False):
            self.sources.copy_(classifier.project(batches()))


def prototype_costs(distances: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster and separation cost of N×P smallest distances and N×C targets: the distance to the nearest prototype of
    the classes that an image shows, and to the nearest of those that it does not show; means over images. Unknown
    labels play no part."""
    truth, counts = split_targets(targets)
    nearest = distances.unflatten(1, (targets.shape[1], -1)).amin(dim=2)
    return _nearest(nearest, truth > 0), _nearest(nearest, counts & (truth == 0))


def _nearest(distances: Tensor, among: Tensor) -> Tensor:
    """The mean over images of the smallest of N×C distances, of images that have any."""
    found = distances.masked_fill(~among, torch.inf).amin(dim=1)[among.any(dim=1)]
    return found.sum() / max(len(found), 1)
