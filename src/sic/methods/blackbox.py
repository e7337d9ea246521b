"""The black box: a conventional network with a linear classifier, and the post-hoc attributions that explain it.

No attribution guarantees that pixels and constant add up to the logit; the residual is the difference. Attributions
refer to the normalised input, in which zero is the mean colour.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos.explanation import gradients
from sic.errors import SicError
from sic.methods.contract import (
    Classifier,
    Contributions,
    Pick,
    above_average,
    as_columns,
    own_logits,
    without_weights,
)
from sic.settings import Loss

INPUT_X_GRADIENT, INTEGRATED_GRADIENTS, GRAD_CAM = "input-x-gradient", "integrated-gradients", "grad-cam"
STEPS = 50
"""Steps of the integral."""

Outputs = Callable[[Tensor], Tensor]
"""Prepared images N×3×H×W, or feature maps, → N×K."""


def input_x_gradient(outputs: Outputs, prepared: Tensor) -> Tensor:
    """N×K×H×W."""
    found = [(gradient * prepared).sum(dim=1) for gradient in _gradients(outputs, prepared)]
    return torch.stack(found, dim=1).detach()


def integrated_gradients(outputs: Outputs, prepared: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Along the line from the mean colour: N×K×H×W, and the outputs at its start, N×K: a constant."""
    attribution = _captum().IntegratedGradients(outputs)
    maps = [
        attribution.attribute(prepared, target=k, n_steps=STEPS, internal_batch_size=max(len(prepared), 32))
        for k in range(columns)
    ]
    with torch.no_grad():
        start = outputs(torch.zeros_like(prepared))
    return torch.stack(maps, dim=1).sum(dim=2).detach().to(prepared), start


def grad_cam(outputs: Outputs, maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Selvaraju et al. 2017: feature maps N×F×h×w weighted by their mean gradients, ReLU, enlarged: N×K×H×W."""
    maps = maps.detach().requires_grad_()
    found = [
        (gradient.mean(dim=(2, 3), keepdim=True) * maps).sum(dim=1).relu() for gradient in _gradients(outputs, maps)
    ]
    return F.interpolate(torch.stack(found, dim=1).detach(), size, mode="bilinear", align_corners=False)


def _gradients(outputs: Outputs, inputs: Tensor) -> Iterator[Tensor]:
    """Of each of the K outputs, shaped as the inputs, which must require gradients."""
    values = outputs(inputs)
    for k in range(values.shape[1]):
        yield torch.autograd.grad(values[:, k].sum(), inputs, retain_graph=True)[0]


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError:
        raise SicError("Integrated gradients need captum; install it with: pip install 'sic[captum]'.") from None
    return captum.attr


class BlackBox(Classifier):
    """The conventional classifier. Its maps are approximations; their residual is the part that they leave out."""

    name, title = "blackbox", "Black box"
    forms = ("conventional",)
    options = ("loss", "attribution")
    specific = True
    attributions = (INPUT_X_GRADIENT, INTEGRATED_GRADIENTS, GRAD_CAM)

    def __init__(
        self, backbone: Backbone, classes: int, *, loss: Loss = "bce", attribution: str = INPUT_X_GRADIENT
    ) -> None:
        super().__init__(backbone, classes, loss)
        self.backbone = backbone
        self.head = nn.Linear(backbone.features, classes)
        self.explain_with(attribution)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        return self._explain(images, targets, own_logits)

    def explain_specific(self, images: Tensor, targets: Tensor) -> Contributions:
        return self._explain(images, targets, above_average)

    def _explain(self, images: Tensor, targets: Tensor, pick: Pick) -> Contributions:
        self.require_evaluation()
        with gradients():
            columns = as_columns(targets)
            prepared = self.backbone.prepared(images.clone()).requires_grad_()

            def values(prepared: Tensor) -> Tensor:
                every = columns.repeat(len(prepared) // len(columns), 1)  # an integral's steps come one after another
                return pick(self.head(self.backbone.pooled(prepared)), every)

            value = values(prepared).detach()
            constant = value.new_zeros(value.shape)
            if self.attribution == GRAD_CAM:
                features = self.backbone.feature_maps(prepared)

                def rest(maps: Tensor) -> Tensor:
                    return pick(self.head(self.backbone.pool_maps(maps)), columns)

                maps = grad_cam(rest, features, (images.shape[2], images.shape[3]))
            elif self.attribution == INTEGRATED_GRADIENTS:
                maps, constant = integrated_gradients(values, prepared, columns.shape[1])
            else:
                maps = input_x_gradient(values, prepared)
        return without_weights(maps, value, constant).reshape(targets.shape)
