"""Latents drawn in the plane."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Method = Literal["tsne", "pca"]
ENOUGH = 12
"""Points from which on t-SNE has neighbourhoods to keep; below, PCA is used."""


def project(latents: NDArray[np.float32], method: Method, seed: int) -> tuple[NDArray[np.float64], Method]:
    """Places n×2 of latents n×d, and the method that was used. The same seed gives the same places."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    # Where all latents are one (a collapsed model), no direction is better than another.
    if len(latents) < 3 or not np.ptp(latents, axis=0).any():
        return np.zeros((len(latents), 2)), "pca"
    if method == "tsne" and len(latents) >= ENOUGH:
        perplexity = min(30.0, (len(latents) - 1) / 3)
        return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(latents).astype(
            float
        ), method
    return PCA(2, random_state=seed).fit_transform(latents.astype(float)), "pca"
