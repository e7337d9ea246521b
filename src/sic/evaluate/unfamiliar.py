"""Images that are none of the classes: how many does a model refuse that accepts 95 % of the familiar ones?"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from sic.data.birds import render, sample_scene, species
from sic.data.images import to_tensor
from sic.evaluate.outputs import device_of
from sic.methods import Classifier
from sic.predictions import Answers

ACCEPTED = 0.95
"""Share of familiar images that must pass."""
SCORES = ("probability", "logit")
"""The highest over the classes. The same order where probabilities are sigmoids, not where they compete."""


def noise(count: int, size: int, seed: int = 0) -> Tensor:
    """Uniform noise, N×3×S×S."""
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def blurred_noise(count: int, size: int, seed: int = 0) -> Tensor:
    """Soft blobs of colour: noise through a Gaussian of a sixteenth of the size, stretched to [0, 1] again."""
    sigma = max(size / 16, 1)
    reach = min(math.ceil(3 * sigma), size - 1)
    places = torch.arange(-reach, reach + 1).float()
    kernel = torch.exp(-((places / sigma) ** 2) / 2)
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    padded = F.pad(noise(count, size, seed), (reach,) * 4, mode="reflect")
    soft = F.conv2d(F.conv2d(padded, kernel, groups=3), kernel.mT, groups=3)
    low, high = soft.amin((2, 3), keepdim=True), soft.amax((2, 3), keepdim=True)
    return (soft - low) / (high - low).clamp_min(1e-12)


def drawn_birds(count: int, size: int, seed: int = 0) -> Tensor:
    """Built-in birds of all kinds: strangers to every model of something else."""
    rng = np.random.default_rng(seed)
    kinds = species(max(count, 1), seed)
    scenes = [sample_scene(number, kinds[number], rng) for number in range(count)]
    return torch.stack([to_tensor(render(scene, size).image) for scene in scenes])


def best_scores(answers: Answers) -> dict[str, Tensor]:
    """The `SCORES` of n images, n each."""
    return {"probability": answers.probabilities.amax(1), "logit": answers.logits.double().amax(1)}


def acceptance_threshold(familiar: Tensor, accepted: float = ACCEPTED) -> float:
    """The highest threshold that at least this share of the familiar scores reaches."""
    return float(familiar.sort(descending=True).values[math.ceil(accepted * len(familiar)) - 1])


def refusal(familiar: Tensor, strangers: Tensor) -> dict[str, float]:
    """`flagged`: the share of strangers below the threshold; `auroc`: of telling both apart."""
    threshold = acceptance_threshold(familiar)
    truth = np.r_[np.ones(len(familiar)), np.zeros(len(strangers))]
    return {
        "threshold": threshold,
        "flagged": (strangers < threshold).double().mean().item(),
        "auroc": float(roc_auc_score(truth, torch.cat([familiar, strangers]).numpy())),
    }


@torch.no_grad()
def unfamiliar(classifier: Classifier, familiar: Answers, strangers: Mapping[str, Iterable[Tensor]]) -> dict[str, Any]:
    """For each kind of strangers (batches of images by name) and each of the `SCORES`: `refusal`.

    `familiar`: answers to images of the model's own classes. `no_similar_case`: the share that the model itself
    refuses.
    """
    device = device_of(classifier)
    known = best_scores(familiar)
    result: dict[str, Any] = {"familiar": _refused(familiar)}
    for name, batches in strangers.items():
        logits = torch.cat([classifier(batch.to(device)).cpu() for batch in batches])
        answers = Answers(logits, familiar.task, familiar.loss)
        scores = best_scores(answers)
        result[name] = _refused(answers) | {score: refusal(known[score], scores[score]) for score in SCORES}
    return result


def _refused(answers: Answers) -> dict[str, Any]:
    refused = (~answers.similar_case).double().mean().item()
    return {"images": len(answers.logits), "no_similar_case": refused}
