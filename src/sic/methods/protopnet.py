"""ProtoPNet (Chen et al. 2019): a class is recognised by its prototypes, small parts of training images."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.errors import SicError
from sic.methods.contract import Classifier, Contributions, as_columns, without_weights
from sic.settings import Loss

ENLARGED, BOX = "enlarged", "box"
EPSILON = 1e-4
AGAINST = -0.5
"""The initial weight of a prototype for other classes, if classes exclude each other."""
NO = -5.0
"""The initial bias of the logits of `--loss bce`: without its prototypes, a class is absent."""
TOP = 0.95
"""A prototype's box holds the pixels of an enlarged similarity map above this quantile."""


class ProtoPNet(Classifier):
    """Logit of a class: its weights times the largest similarity of every prototype with a part of the image, and a
    bias with `--loss bce`.

    Its maps show where the prototypes of the class were found: the contribution of each to the logit is spread over the
    enlarged similarity map, or over a box around its top. The constant is the bias, the residual the contribution of
    the prototypes of other classes.
    """

    name, title = "protopnet", "ProtoPNet"
    supports_noun, support_noun, besides_supports = "prototypes", "part of the training image", "other prototypes"
    forms = ("conventional",)
    options = ("latent", "loss", "attribution")
    fit_options = ("supports_per_class", "keep_support_images", "head_lr")
    defaults = {"supports_per_class": 10, "lr": 3e-3, "weight_decay": 1e-3}
    losses = ("ce", "bce")
    attributions = (ENLARGED, BOX)
    with_supports = True
    prototype_classes: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        supports: int,
        *,
        latent: int = 128,
        loss: Loss = "ce",
        attribution: str = ENLARGED,
    ) -> None:
        """`supports`: the number of prototypes, a multiple of the number of classes."""
        super().__init__(backbone, classes, loss)
        if supports % classes:
            raise SicError(f"{supports} prototypes cannot be shared evenly by {classes} classes.")
        self.backbone = backbone
        self.add_on = nn.Sequential(
            nn.Conv2d(backbone.map_features, latent, 1), nn.ReLU(), nn.Conv2d(latent, latent, 1), nn.Sigmoid()
        )
        for layer in self.add_on:
            if isinstance(layer, nn.Conv2d):  # as published; by default patches hardly differ at first
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.constant_(layer.bias, 0)  # type: ignore[arg-type]
        self.prototypes = nn.Parameter(torch.rand(supports, latent))
        owners = torch.arange(classes).repeat_interleave(supports // classes)
        self.register_buffer("prototype_classes", owners, persistent=False)
        self.last = nn.Linear(supports, classes, bias=loss == "bce")
        with torch.no_grad():
            self.last.weight.fill_(0 if loss == "bce" else AGAINST)[owners, torch.arange(supports)] = 1
            if loss == "bce":
                self.last.bias.fill_(NO)
        self.explain_with(attribution)

    @property
    def support_labels(self) -> list[int]:
        return self.prototype_classes.tolist()

    def patches(self, images: Tensor) -> Tensor:
        """Latents of the parts of images, N×d×h×w, in (0, 1)."""
        return self.add_on(self.backbone.feature_maps(self.backbone.prepared(images)))

    def distances(self, patches: Tensor) -> Tensor:
        """Squared, between every prototype and every part: N×P×h×w."""
        products = F.conv2d(patches, self.prototypes[:, :, None, None])
        lengths = patches.square().sum(dim=1, keepdim=True)
        return (lengths - 2 * products + self.prototypes.square().sum(dim=1)[:, None, None]).relu()

    def logits(self, distances: Tensor) -> Tensor:
        """N×P×h×w distances → N×C."""
        return self.last(similarity(distances.amin(dim=(2, 3))))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.distances(self.patches(images)))

    @torch.no_grad()
    def project(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Replace every prototype by the nearest part of some images.

        Args:
            batches: Images N×3×H×W, and N×C, whether an image may give a part to the prototypes of a class.

        Returns:
            The source of each prototype, P×5: the position of the image, row and column in its feature map, and the
            height and width of that.
        """
        owners = self.prototype_classes
        nearest = torch.full((len(owners),), torch.inf, device=owners.device)
        vectors, sources = torch.zeros_like(self.prototypes), owners.new_zeros(len(owners), 5)
        first = 0
        for images, allowed in batches:
            patches = self.patches(images)
            distances = self.distances(patches).masked_fill(~allowed[:, owners][:, :, None, None], torch.inf)
            height, width = distances.shape[2:]
            best, where = distances.transpose(0, 1).flatten(1).min(dim=1)
            better = best < nearest
            image, row, column = where // (height * width), where // width % height, where % width
            shape = torch.tensor([height, width], device=owners.device).expand(len(owners), 2)
            found = torch.cat([torch.stack([image + first, row, column], dim=1), shape], dim=1)
            nearest = torch.where(better, best, nearest)
            vectors[better] = patches[image, :, row, column][better]
            sources[better] = found[better]
            first += len(images)
        self.prototypes.copy_(vectors)
        return sources

    def own_weights(self) -> Tensor:
        """Of every prototype for its class, P."""
        return self.last.weight[
            self.prototype_classes, torch.arange(len(self.prototypes), device=self.last.weight.device)
        ]

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        distances = self.distances(self.patches(images))
        return self.logits(distances), similarity(distances.amin(dim=(2, 3))) * self.own_weights()

    @torch.no_grad()
    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """By the prototypes of the classes `targets`."""
        self.require_evaluation()
        columns = as_columns(targets)
        distances = self.distances(self.patches(images))
        value = self.logits(distances).gather(1, columns)
        per_class = len(self.prototypes) // self.classes
        own = columns[:, :, None] * per_class + torch.arange(per_class, device=columns.device)
        shares = self._shares(distances, own.flatten(1), images.shape[-2:])
        maps = shares.unflatten(1, own.shape[1:]).sum(dim=2)
        constant = torch.zeros_like(value) if self.last.bias is None else self.last.bias[columns]
        return without_weights(maps, value, constant).reshape(targets.shape)

    @torch.no_grad()
    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Explain the contributions of prototypes (indices, N or N×K) to the logits of their classes."""
        self.require_evaluation()
        columns = as_columns(supports)
        distances = self.distances(self.patches(images))
        value = (similarity(distances.amin(dim=(2, 3))) * self.own_weights()).gather(1, columns)
        maps = self._shares(distances, columns, images.shape[-2:])
        return without_weights(maps, value, torch.zeros_like(value)).reshape(supports.shape)

    def _shares(self, distances: Tensor, prototypes: Tensor, size: torch.Size) -> Tensor:
        """The contributions of prototypes, N×K, to the logits of their classes, on pixels: N×K×H×W."""
        chosen = distances.gather(1, prototypes[:, :, None, None].expand(-1, -1, *distances.shape[2:]))
        found = similarity(chosen)
        enlarged = F.interpolate(found, (size[0], size[1]), mode="bilinear", align_corners=False)
        mass = boxes(enlarged) if self.attribution == BOX else enlarged
        mass = mass / mass.sum(dim=(2, 3), keepdim=True)
        adds = found.amax(dim=(2, 3)) * self.own_weights()[prototypes]
        return mass * adds[:, :, None, None]


def part_box(source: Sequence[int], side: int) -> tuple[int, int, int, int]:
    """The box (left, top, right, bottom) of a part in an image of side × side pixels; `source` as in `project`.

    >>> part_box([0, 1, 2, 4, 4], 32)
    (16, 8, 24, 16)
    """
    _, row, column, height, width = source
    left, top = column * side // width, row * side // height
    return left, top, -(-(column + 1) * side // width), -(-(row + 1) * side // height)


def similarity(squared_distances: Tensor) -> Tensor:
    """`log((d² + 1) / (d² + ε))`: large where the distance is small, and never negative."""
    return ((squared_distances + 1) / (squared_distances + EPSILON)).log()


def boxes(maps: Tensor) -> Tensor:
    """…×H×W → 1 in the smallest box around the pixels from the 95th percentile on, 0 elsewhere."""
    limit = maps.flatten(-2).quantile(TOP, dim=-1)[..., None, None]
    high = maps >= limit

    def between(hits: Tensor) -> Tensor:
        """…×n: from the first to the last."""
        return (hits.cumsum(-1) > 0) & (hits.flip(-1).cumsum(-1).flip(-1) > 0)

    rows, columns = between(high.any(dim=-1)), between(high.any(dim=-2))
    return (rows[..., :, None] & columns[..., None, :]).to(maps)
