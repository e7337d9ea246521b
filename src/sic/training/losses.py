"""Losses in which a class that an image is unsure about (NaN in the targets, see `sic.data.labels`) plays no part."""

import torch.nn.functional as F
from torch import Tensor

from sic.data.labels import split_targets

LARGEST_WEIGHT = 100.0
"""Of positives: beyond that a few images would decide where every step goes."""


def binary_loss(logits: Tensor, targets: Tensor, positive: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, the mean over all that counts; `positive`: weight of each class's positives, C."""
    truth, counts = split_targets(targets)
    losses = F.binary_cross_entropy_with_logits(logits, truth, pos_weight=positive, reduction="none")
    return (losses * counts).sum() / counts.sum().clamp_min(1)


def softmax_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with an image's labels as answers that share it equally."""
    truth, counts = split_targets(targets)
    shares = truth / truth.sum(dim=1, keepdim=True).clamp_min(1)
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
