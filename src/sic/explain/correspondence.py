"""Which places of several pictures correspond: those at which the network finds similar features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.errors import SicError
from sic.methods import SIC
from sic.methods.contract import Traced

GROUPS = 5
"""The most regions of an image."""
ROUNDS = 20
"""Of k-means."""
SETTLING = 5
"""More rounds after a region was given up."""
ONE_SIDED = 0.05
"""Share of the contributions on either side below which a region is given up."""
GRID = 16
"""Cells along a side of the maps of units, which describe places if the backbone has no feature maps."""


@torch.no_grad()
def descriptors(classifier: SIC, images: Tensor, traced: Traced) -> Tensor:
    """What the network finds at each place of images, N×F×h×w.

    The last feature maps of the backbone; without these (transformers), the maps of the latent units.
    """
    if traced.feature_maps is not None:
        return traced.feature_maps
    backbone = classifier.backbone
    try:
        return backbone.feature_maps(backbone.prepared(images))
    except SicError:
        maps = traced.contributions(lambda latents: latents, weights=False).maps
        return F.adaptive_avg_pool2d(maps, (min(GRID, maps.shape[-2]), min(GRID, maps.shape[-1])))


def corresponding(places: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the pictures of each set into regions with similar descriptors: k-means over the places of all of them.

    Places count by their positive contributions. The directions of descriptors are compared, by the angles between
    their differences to the mean direction of their picture; in that mean, half of the weight is even and half goes
    by contributions. In the direction of a region, the first picture counts as much as all others together. Regions
    with places on one side alone are given up, one after the other: they split a part that shows on two backgrounds.
    Places unlike all regions that are left belong to none.

    Args:
        places: N×M×F×h×w, the descriptors of the M pictures of N sets.
        maps: N×M×H×W, their contributions; pictures without any do not count.

    Returns:
        N×M×H×W, the number of each pixel's region, from 0 to `GROUPS` - 1; `GROUPS`: none. And N×M×`GROUPS`, the
        cosine of the mean descriptors of each region here and in the first picture; 0 where one of them lacks it.
    """
    height, width = places.shape[-2:]
    masses = F.adaptive_avg_pool2d(maps.clamp(min=0), (height, width)).flatten(2)
    masses = masses / masses.sum(dim=2, keepdim=True).clamp_min(1e-30)
    directions = F.normalize(places.flatten(3).transpose(2, 3), dim=3)
    # What the places of a picture share, such as the colour of a coat, would set pictures apart instead of parts.
    shares = (masses + 1 / (height * width)) / (masses.sum(dim=2, keepdim=True) + 1)
    directions = F.normalize(directions - shares[:, :, None] @ directions, dim=3)
    centroids = _centroids(directions.flatten(1, 2), masses.flatten(1), height * width)[:, None]
    similarities = torch.where(centroids.any(dim=3)[..., None], centroids @ directions.transpose(2, 3), -1.0)
    similarities = F.pad(similarities, (0, 0, 0, 1))  # none
    own = F.one_hot(similarities.argmax(dim=2), GROUPS + 1)[..., :GROUPS].to(masses) * masses[..., None]
    means = F.normalize(own.transpose(2, 3) @ directions, dim=3)
    large = F.interpolate(
        similarities.flatten(0, 1).unflatten(2, (height, width)), maps.shape[2:], mode="bilinear", align_corners=False
    )
    return large.argmax(dim=1).unflatten(0, maps.shape[:2]), (means * means[:, :1]).sum(dim=3)


def _centroids(points: Tensor, weights: Tensor, first: int) -> Tensor:
    """`GROUPS` directions, N×GROUPS×F, from unit vectors N×P×F with weights N×P; zero for those that were given up.

    Deterministic: it starts with the heaviest point, and then with those that are heavy and far from the others. The
    `first` points are one side, the others the other one.
    """

    def at(rows: Tensor) -> Tensor:
        return points.take_along_dim(rows[:, None, None], dim=1)

    def members() -> list[Tensor]:
        own = F.one_hot((points @ centroids.transpose(1, 2)).argmax(dim=2), GROUPS).to(points) * weights[..., None]
        return [own[:, side].transpose(1, 2) for side in sides]

    def moved() -> Tensor:
        means = [F.normalize(own @ points[:, side], dim=2) for own, side in zip(members(), sides, strict=True)]
        sums = means[0] + means[1]
        return torch.where(
            sums.any(dim=2, keepdim=True) & centroids.any(dim=2, keepdim=True), F.normalize(sums, dim=2), centroids
        )

    sides = slice(first), slice(first, None)
    centroids = at(weights.argmax(dim=1))
    for _ in range(GROUPS - 1):
        nearest = (points @ centroids.transpose(1, 2)).amax(dim=2)
        centroids = torch.cat([centroids, at((weights * (1 - nearest)).argmax(dim=1))], dim=1)
    for _ in range(ROUNDS):
        centroids = moved()
    for _ in range(GROUPS - 1):
        amounts = [own.sum(dim=2) for own in members()]
        shares = torch.stack([own / own.sum(dim=1, keepdim=True).clamp_min(1e-30) for own in amounts]).amin(dim=0)
        shares = torch.where(centroids.any(dim=2), shares, 1.0)
        given_up = F.one_hot(shares.argmin(dim=1), GROUPS).bool() & (shares < ONE_SIDED)
        centroids = torch.where(given_up[..., None], 0, centroids)
        for _ in range(SETTLING):
            centroids = moved()
    return centroids
