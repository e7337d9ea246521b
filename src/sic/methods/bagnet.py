"""BagNet (Brendel & Bethge 2019): every patch of the image votes for itself, and a class's logit is the mean vote."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.backbones.networks import STRIDE
from sic.errors import SicError
from sic.methods.contract import Classifier, Contributions, as_columns, without_weights
from sic.settings import Loss


class BagNet(Classifier):
    """Explained by the votes: each is spread evenly over the pixels of its patch, so that their sum stays the logit."""

    name, title = "bagnet", "BagNet"
    forms = ("conventional",)
    backbones = ("bagnet17", "bagnet9", "bagnet33")
    complete = True

    def __init__(self, backbone: Backbone, classes: int, *, loss: Loss = "bce") -> None:
        super().__init__(backbone, classes, loss)
        if backbone.patch is None:
            raise SicError(f"BagNet needs features of small patches: --backbone {' or '.join(self.backbones)}.")
        self.backbone, self.patch = backbone, backbone.patch
        self.head = nn.Linear(backbone.features, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone.pool_maps(self.features(images)))  # linear: the mean vote is the mean's vote

    def features(self, images: Tensor) -> Tensor:
        """N×F×h×w; the patch of the one at (i, j) begins at pixel (8 i, 8 j)."""
        if min(images.shape[2:]) < self.patch:
            raise SicError(
                f"Images of {images.shape[3]}×{images.shape[2]} px are smaller than a patch of {self.patch} px."
            )
        return self.backbone.feature_maps(self.backbone.prepared(images))

    @torch.no_grad()
    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        self.require_evaluation()
        columns = as_columns(targets)
        number, classes = columns.shape
        features = self.features(images)
        height, width = features.shape[2:]
        votes = F.conv2d(features, self.head.weight[:, :, None, None])
        votes = votes.gather(1, columns[:, :, None, None].expand(-1, -1, height, width)) / (height * width)
        patch = votes.new_full((1, 1, self.patch, self.patch), 1 / self.patch**2)
        spread = F.conv_transpose2d(votes.flatten(0, 1)[:, None], patch, stride=STRIDE)[:, 0]
        # The last pixels of some images lie in no patch.
        right, below = images.shape[3] - spread.shape[2], images.shape[2] - spread.shape[1]
        maps = F.pad(spread, (0, right, 0, below)).unflatten(0, (number, classes))
        value = self.head(self.backbone.pool_maps(features)).gather(1, columns)
        return without_weights(maps, value, self.head.bias[columns]).reshape(targets.shape)
