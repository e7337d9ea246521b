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


def corresponding(places: Tensor, maps: Tensor) -> Tensor:
    """Divide the pictures of each set into regions with similar descriptors: k-means over the places of all of them.

    Places count by their positive contributions, the first picture as much as all others. The directions of descriptors
    are compared, by the angles between their differences to the mean direction of their picture.

    Args:
        places: N×M×F×h×w, the descriptors of the M pictures of N sets.
        maps: N×M×H×W, their contributions; pictures without any do not count.

    Returns:
        N×M×H×W, the number of each pixel's region, from 0 to `GROUPS` - 1.
    """
    height, width = places.shape[-2:]
    masses = F.adaptive_avg_pool2d(maps.clamp(min=0), (height, width)).flatten(2)
    masses = masses / masses.sum(dim=2, keepdim=True).clamp_min(1e-30)
    directions = F.normalize(places.flatten(3).transpose(2, 3), dim=3)
    # What the places of a picture share, such as the colour of a coat, would set pictures apart instead of parts.
    directions = directions - directions.mean(dim=2, keepdim=True)
    directions = F.normalize(directions, dim=3).flatten(1, 2)
    masses[:, 0] *= masses[:, 1:].sum(dim=(1, 2)).round().clamp_min(1)[:, None]
    centroids = _centroids(directions, masses.flatten(1))
    similarities = (centroids @ directions.transpose(1, 2)).view(len(places), GROUPS, -1, height, width)
    return torch.stack(
        [
            F.interpolate(each, (maps.shape[2], maps.shape[3]), mode="bilinear", align_corners=False).argmax(dim=1)
            for each in similarities.unbind(dim=2)
        ],
        dim=1,
    )


def _centroids(points: Tensor, weights: Tensor) -> Tensor:
    """`GROUPS` directions, N×GROUPS×F, from unit vectors N×P×F with weights N×P. Deterministic: it starts with the
    heaviest point, and then with those that are heavy and far from the others."""

    def at(rows: Tensor) -> Tensor:
        return points.take_along_dim(rows[:, None, None], dim=1)

    centroids = at(weights.argmax(dim=1))
    for _ in range(GROUPS - 1):
        nearest = (points @ centroids.transpose(1, 2)).amax(dim=2)
        centroids = torch.cat([centroids, at((weights * (1 - nearest)).argmax(dim=1))], dim=1)
    for _ in range(ROUNDS):
        own = F.one_hot((points @ centroids.transpose(1, 2)).argmax(dim=2), GROUPS).to(points)
        sums = (own * weights[..., None]).transpose(1, 2) @ points
        moved = sums.norm(dim=2, keepdim=True) > 0
        centroids = torch.where(moved, F.normalize(sums, dim=2), centroids)
    return centroids
