"""An overview of a model: its supports, the similarity of its classes, and a projection of its latents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.bcos import bcos_similarity
from sic.explain.contributions import negative_share
from sic.explain.explanation import own_contributions
from sic.explain.picture import rgba
from sic.methods import SIC, Contributions
from sic.predictions import Predictions
from sic.supports import Support, support_names

ProjectionMethod = Literal["tsne", "pca"]
ENOUGH = 12
"""The fewest points for t-SNE; PCA projects fewer points."""
Own = Callable[[Sequence[int]], Mapping[int, Contributions]]
"""Gives support contributions by support, of those whose image is kept."""
CHUNK = 32
"""Supports whose dynamic weights are in memory at a time."""
DRAWN = 1500
"""The most images in a projection; more would take long to place."""


@dataclass(frozen=True)
class SupportView:
    """One support and its contributions. Pictures are None if the model was saved without images."""

    index: int
    support: Support
    name: str
    """Its name for people, such as "Beagle #2" (`support_names`)."""
    class_name: str
    norm: float
    """`‖v‖`, which is also the sum of the map and the constant."""
    negative_mass: float | None
    """The share of the map that is negative; a large share means that the temperature was too small."""
    constant: float | None
    """The part of the norm that belongs to no pixel (positional codes)."""
    map: NDArray[np.float32] | None
    """S×S, the raw support contribution φ, signed and not scaled."""
    rgba: NDArray[np.uint8] | None
    """S×S×4, the support contribution as a colour picture."""

    @property
    def label(self) -> int:
        """The index of its class."""
        return self.support.label

    @property
    def source(self) -> str:
        """The id of its training image."""
        return self.support.source

    @property
    def image(self) -> NDArray[np.uint8] | None:
        """S×S×3."""
        return self.support.image


@dataclass(frozen=True)
class Silhouette:
    """The silhouette score (Rousseeuw), with Euclidean distances as in the choice of supports.

    1: well separated; 0: on the border to another class; below 0: closer to another class.
    """

    overall: float
    """Mean over all latents."""
    per_class: list[float | None]
    """Mean over the latents of each class; None if it has none."""


@dataclass(frozen=True)
class Point:
    """A projected latent."""

    x: float
    y: float
    labels: tuple[int, ...]
    id: str
    support: int | None
    """Index of the support; None for an image."""


@dataclass(frozen=True)
class Projection:
    """The projected latents of images and supports. Distances between clusters mean little."""

    method: ProjectionMethod
    seed: int
    points: list[Point]


@dataclass(frozen=True)
class Overview:
    """What can be said about a model without an image. Similarities are B-cos similarities; divided by `temperature`,
    they are evidence."""

    classes: list[str]
    temperature: float
    bias: float
    supports: list[SupportView]
    support_similarity: NDArray[np.float64]
    """C×C, mean similarity of the supports of two classes, each compared with the others only; NaN without pairs."""
    image_similarity: NDArray[np.float64] | None
    """C×C, mean similarity of images of the row's class to supports of the column's class; None without images."""
    support_silhouette: Silhouette | None
    image_silhouette: Silhouette | None
    """Over images with exactly one label."""
    images: int
    """The number of embedded images."""
    projection: Projection

    def of_class(self, label: int) -> list[SupportView]:
        """The supports of one class."""
        return [support for support in self.supports if support.label == label]

    def as_json(self) -> dict[str, Any]:
        """The overview as JSON, without pictures; NaN becomes null."""
        return {
            "classes": self.classes,
            "temperature": self.temperature,
            "bias": self.bias,
            "images": self.images,
            "supports": [
                {
                    "index": support.index,
                    "name": support.name,
                    "class": support.class_name,
                    "source": support.source,
                    "norm": support.norm,
                    "negative_mass": support.negative_mass,
                    "constant": support.constant,
                    "has_image": support.image is not None,
                }
                for support in self.supports
            ],
            "support_similarity": _rows(self.support_similarity),
            "image_similarity": None if self.image_similarity is None else _rows(self.image_similarity),
            "support_silhouette": None if self.support_silhouette is None else asdict(self.support_silhouette),
            "image_silhouette": None if self.image_silhouette is None else asdict(self.image_silhouette),
            "projection": asdict(self.projection),
        }


def _rows(matrix: NDArray[np.float64]) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]


def make_overview(
    classifier: SIC,
    supports: Sequence[Support],
    classes: Sequence[str],
    predictions: Predictions | None = None,
    own: Own | None = None,
    *,
    method: ProjectionMethod = "tsne",
    seed: int = 0,
) -> Overview:
    """The overview of a model; `predictions` for images add their similarities, silhouettes and projected latents.

    `own` returns the support contributions of some supports; by default they are computed.
    """
    own = own or (lambda indices: own_contributions(classifier, supports, indices))
    vectors = classifier.support_vectors.detach()
    owners = [support.label for support in supports]
    similarity = support_similarity(vectors, owners, len(classes), classifier.b)
    of_supports = silhouette(vectors.float().cpu().numpy(), np.asarray(owners, dtype=np.intp), len(classes))
    of_images, image_similarity = None, None
    images: list[tuple[tuple[int, ...], str]] = []
    latents = vectors[:0]
    if predictions is not None and predictions.latents is not None:
        images = [(sample.labels, sample.id) for sample in predictions.samples]
        latents = predictions.latents.to(vectors)
        labels = [shown for shown, _ in images]
        image_similarity = class_similarity(latents, labels, vectors, owners, len(classes), classifier.b)
        alone = [row for row, shown in enumerate(labels) if len(shown) == 1]
        truth = np.asarray([labels[row][0] for row in alone], dtype=np.intp)
        of_images = silhouette(latents[alone].float().cpu().numpy(), truth, len(classes))
    return Overview(
        list(classes),
        classifier.temperature,
        classifier.bias,
        _views(classifier, supports, classes, own),
        similarity,
        image_similarity,
        of_supports,
        of_images,
        len(images),
        _projection(vectors, supports, latents, images, method, seed),
    )


def _views(classifier: SIC, supports: Sequence[Support], classes: Sequence[str], own: Own) -> list[SupportView]:
    """All supports, in chunks, because the dynamic weights of all of them may not fit into memory."""
    norms = classifier.support_vectors.norm(dim=1).tolist()
    pictures: dict[int, tuple[float, float, NDArray[np.float32], NDArray[np.uint8]]] = {}
    kept = [index for index, support in enumerate(supports) if support.image is not None]
    for start in range(0, len(kept), CHUNK):
        chunk = kept[start : start + CHUNK]
        found = own(chunk)
        maps, weights = (torch.stack([getattr(found[i], part) for i in chunk]) for part in ("maps", "weights"))
        colours = (rgba(weights, maps) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        shares = negative_share(maps).tolist()
        for row, index in enumerate(chunk):
            drawn = maps[row].float().cpu().numpy()
            pictures[index] = shares[row], found[index].constant.item(), drawn, colours[row]
    views, names = [], support_names(supports, classes)
    for index, support in enumerate(supports):
        share, constant, map_, colour = pictures.get(index, (None, None, None, None))
        views.append(
            SupportView(
                index, support, names[index], classes[support.label], norms[index], share, constant, map_, colour
            )
        )
    return views


def _projection(
    vectors: Tensor,
    supports: Sequence[Support],
    latents: Tensor,
    images: Sequence[tuple[tuple[int, ...], str]],
    method: ProjectionMethod,
    seed: int,
) -> Projection:
    """The projection of the supports and the images (labels and id of each); of many images, a random sample."""
    own = [((support.label,), support.source) for support in supports]
    rows: NDArray[np.intp] = np.arange(len(images))
    if len(rows) > DRAWN:
        rows = np.sort(np.random.default_rng(seed).choice(rows, DRAWN, replace=False))
    own += [images[row] for row in rows]
    everything = torch.cat([vectors, latents[torch.from_numpy(rows)]]).float().cpu().numpy()
    places, used = project(everything, method, seed)
    points = [
        Point(float(x), float(y), labels, id, number if number < len(supports) else None)
        for number, ((x, y), (labels, id)) in enumerate(zip(places, own, strict=True))
    ]
    return Projection(used, seed, points)


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
        places = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(latents)
        return places.astype(float), method
    return PCA(2, random_state=seed).fit_transform(latents.astype(float)), "pca"
