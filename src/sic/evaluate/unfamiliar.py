"""Unfamiliar images, which show none of the classes: how many are rejected at a threshold that accepts 95 % of the
familiar ones?"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from sic.data.birds import sample_scene, species
from sic.data.drawing import render
from sic.data.images import to_tensor
from sic.methods import Classifier, device_of
from sic.predictions import Answers

ACCEPTED = 0.95
"""Share of familiar images that the threshold accepts."""
FAMILIAR, NOISE, BLURRED, BIRDS = KINDS = ("familiar", "noise", "blurred noise", "drawn birds")
"""The images of the model's classes, and the unfamiliar ones that are always there."""
SCORES = ("probability", "logit")
"""The maximum over the classes. Both give the same order for sigmoids, but not for a softmax."""


def noise(count: int, size: int, seed: int = 0) -> Tensor:
    """Uniform noise, N×3×S×S."""
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def blurred_noise(count: int, size: int, seed: int = 0) -> Tensor:
    """Blobs of colour: noise filtered with a Gaussian (σ = size / 16) and rescaled to [0, 1]."""
    from torchvision.transforms.v2.functional import gaussian_blur

    sigma = max(size / 16, 1)
    side = 2 * min(math.ceil(3 * sigma), size - 1) + 1
    soft = gaussian_blur(noise(count, size, seed), [side, side], [sigma, sigma])
    low, high = soft.amin((2, 3), keepdim=True), soft.amax((2, 3), keepdim=True)
    return (soft - low) / (high - low).clamp_min(1e-12)


def drawn_birds(count: int, size: int, seed: int = 0) -> Tensor:
    """Images of the built-in birds."""
    rng = np.random.default_rng(seed)
    kinds = species(max(count, 1), seed)
    scenes = [sample_scene(number, kinds[number], rng) for number in range(count)]
    return torch.stack([to_tensor(render(scene, size).image) for scene in scenes])


def best_scores(answers: Answers) -> dict[str, Tensor]:
    """The `SCORES` of n images."""
    return {"probability": answers.probabilities.amax(1), "logit": answers.logits.double().amax(1)}


def acceptance_threshold(familiar: Tensor, accepted: float = ACCEPTED) -> float:
    """The highest threshold that accepts at least this share of the familiar scores."""
    return float(familiar.sort(descending=True).values[math.ceil(accepted * len(familiar)) - 1])


def refusal(familiar: Tensor, strangers: Tensor) -> dict[str, float]:
    """`flagged`: the share of unfamiliar images below the threshold; `auroc`: of separating both kinds."""
    threshold = acceptance_threshold(familiar)
    truth = np.r_[np.ones(len(familiar)), np.zeros(len(strangers))]
    return {
        "threshold": threshold,
        "flagged": (strangers < threshold).double().mean().item(),
        "auroc": float(roc_auc_score(truth, torch.cat([familiar, strangers]).numpy())),
    }


@torch.no_grad()
def unfamiliar(classifier: Classifier, familiar: Answers, strangers: Mapping[str, Iterable[Tensor]]) -> dict[str, Any]:
    """`refusal` for each kind of unfamiliar images (batches by name) and each of the `SCORES`.

    `familiar`: answers for images of the model's classes. `no_similar_case`: the share without a class at 50 %.
    """
    device = device_of(classifier)
    known = best_scores(familiar)
    result: dict[str, Any] = {FAMILIAR: _refused(familiar)}
    for name, batches in strangers.items():
        logits = torch.cat([classifier(batch.to(device)).cpu() for batch in batches])
        answers = Answers(logits, familiar.task, familiar.loss, familiar.calibration)
        scores = best_scores(answers)
        result[name] = _refused(answers) | {score: refusal(known[score], scores[score]) for score in SCORES}
    return result


def _refused(answers: Answers) -> dict[str, Any]:
    refused = (~answers.similar_case).double().mean().item()
    return {"images": len(answers.logits), "no_similar_case": refused}
