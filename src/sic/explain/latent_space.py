"""The geometry of the latent space: similarity between classes, silhouettes, and a projection to the plane."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.bcos import bcos_similarity

ProjectionMethod = Literal["tsne", "pca"]
ENOUGH = 12
"""The fewest points for t-SNE; PCA projects fewer points."""


@dataclass(frozen=True)
class Silhouette:
    """The silhouette score (Rousseeuw), with Euclidean distances as in the choice of supports.

    1: well separated; 0: on the border to another class; below 0: closer to another class.
    """

    overall: float
    """Mean over all latents."""
    per_class: list[float | None]
    """Mean over the latents of each class; None if it has none."""


def class_similarity(
    latents: Tensor, labels: Sequence[Sequence[int]], vectors: Tensor, owners: Sequence[int], classes: int, b: float
) -> NDArray[np.float64]:
    """Mean B-cos similarity, C×C, of latents n×d of the row's class to support vectors S×d of the column's class.

    NaN if there is no pair. Latents with several labels count for each of their classes.
    """
    similarity = bcos_similarity(latents, vectors, b).double().cpu()
    return _class_means(similarity, torch.ones_like(similarity), _membership(labels, classes), owners)


def support_similarity(vectors: Tensor, owners: Sequence[int], classes: int, b: float) -> NDArray[np.float64]:
    """Mean B-cos similarity, C×C, between the support vectors of two classes, without pairs of a vector with itself.

    The diagonal is NaN for classes with one support.
    """
    similarity = bcos_similarity(vectors, vectors, b).double().cpu()
    others = 1 - torch.eye(len(vectors), dtype=torch.float64)
    return _class_means(similarity, others, _membership([(owner,) for owner in owners], classes), owners)


def silhouette(latents: NDArray[np.float32], labels: NDArray[np.intp], classes: int) -> Silhouette | None:
    """The silhouette score of latents n×d with one class each; None if it is undefined (one class, or one latent per
    class)."""
    from sklearn.metrics import silhouette_samples

    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    values = silhouette_samples(latents, labels)
    means = [float(values[labels == label].mean()) if (labels == label).any() else None for label in range(classes)]
    return Silhouette(float(values.mean()), means)


def _membership(labels: Sequence[Sequence[int]], classes: int) -> Tensor:
    """Labels as n×C of 0 and 1."""
    result = torch.zeros(len(labels), classes, dtype=torch.float64)
    for row, own in enumerate(labels):
        result[row, list(own)] = 1
    return result


def _class_means(similarity: Tensor, counts: Tensor, rows: Tensor, owners: Sequence[int]) -> NDArray[np.float64]:
    columns = _membership([(owner,) for owner in owners], rows.shape[1])
    pairs = rows.T @ counts @ columns
    means: NDArray[np.float64] = (rows.T @ (similarity * counts) @ columns / pairs).numpy()
    return means


def project(
    latents: NDArray[np.float32], method: ProjectionMethod, seed: int
) -> tuple[NDArray[np.float64], ProjectionMethod]:
    """Project latents n×d to points n×2; also returns the method that was used. Deterministic for a given seed."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    # If all latents are equal (a collapsed model), there is nothing to project.
    if len(latents) < 3 or not np.ptp(latents, axis=0).any():
        return np.zeros((len(latents), 2)), "pca"
    if method == "tsne" and len(latents) >= ENOUGH:
        perplexity = min(30.0, (len(latents) - 1) / 3)
        return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(latents).astype(
            float
        ), method
    return PCA(2, random_state=seed).fit_transform(latents.astype(float)), "pca"
