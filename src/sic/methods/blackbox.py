"""The black box: a conventional network with a linear classifier, explained after the fact."""

from torch import Tensor, nn

from sic.backbones import Backbone
from sic.methods.contract import Classifier, Contributions, as_columns, without_weights
from sic.methods.posthoc import (
    GRAD_CAM,
    INPUT_X_GRADIENT,
    INTEGRATED_GRADIENTS,
    grad_cam,
    gradients,
    input_x_gradient,
    integrated_gradients,
)
from sic.settings import Loss


class BlackBox(Classifier):
    """What everybody uses; its maps are approximations, and their residual is what they leave out."""

    name, title = "blackbox", "Black box"
    forms = ("conventional",)
    options = ("loss", "attribution")
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
        self.require_evaluation()
        with gradients():
            columns = as_columns(targets)
            prepared = self.backbone.prepared(images.clone()).requires_grad_()

            def logits(prepared: Tensor) -> Tensor:
                every = columns.repeat(len(prepared) // len(columns), 1)  # an integral's steps come one after another
                return self.head(self.backbone.pooled(prepared)).gather(1, every)

            value = logits(prepared).detach()
            constant = value.new_zeros(value.shape)
            if self.attribution == GRAD_CAM:
                features = self.backbone.feature_maps(prepared)

                def rest(maps: Tensor) -> Tensor:
                    return self.head(self.backbone.pool_maps(maps)).gather(1, columns)

                maps = grad_cam(rest, features, (images.shape[2], images.shape[3]))
            elif self.attribution == INTEGRATED_GRADIENTS:
                maps, constant = integrated_gradients(logits, prepared, columns.shape[1])
            else:
                maps = input_x_gradient(logits, prepared, columns.shape[1])
        return without_weights(maps, value, constant).reshape(targets.shape)
