"""B-cos ResNets. The large ones are torchvision's own with their layers exchanged; the small ones suit small images."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torchvision.models import resnet as tv

from sic.backbones.registry import Backbone, register
from sic.bcos import BatchNormUncentred2d, BcosConv2d


def _exchange(module: nn.Module, b: float) -> None:
    """In place: convolutions become B-cos, activations disappear, max pooling becomes average pooling."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            in_channels = 6 if child.in_channels == 3 else child.in_channels
            settings = (child.kernel_size, child.stride, child.padding, child.dilation, child.groups)
            setattr(module, name, BcosConv2d(in_channels, child.out_channels, *settings, b=b))  # type: ignore[arg-type]
        elif isinstance(child, nn.ReLU):
            setattr(module, name, nn.Identity())
        elif isinstance(child, nn.MaxPool2d):
            setattr(module, name, nn.AvgPool2d(child.kernel_size, child.stride, child.padding))
        else:
            _exchange(child, b)


class TorchvisionResNet(Backbone):
    """torchvision's ResNet as a B-cos v2 network without its classifier."""

    def __init__(self, builder: Callable[..., tv.ResNet], b: float) -> None:
        super().__init__()
        self.net = builder(norm_layer=BatchNormUncentred2d)
        self.features = self.net.fc.in_features
        self.net.fc = nn.Identity()  # type: ignore[assignment]
        _exchange(self.net, b)

    def forward(self, encoded: Tensor) -> Tensor:
        return self.net(encoded)


@register
def resnet18(b: float = 2) -> Backbone:
    return TorchvisionResNet(tv.resnet18, b)


@register
def resnet34(b: float = 2) -> Backbone:
    return TorchvisionResNet(tv.resnet34, b)


@register
def resnet50(b: float = 2) -> Backbone:
    return TorchvisionResNet(tv.resnet50, b)


class Block(nn.Module):
    """Two 3×3 B-cos convolutions around a shortcut, as in a basic ResNet block."""

    def __init__(self, channels_in: int, channels_out: int, b: float) -> None:
        super().__init__()
        self.path = nn.Sequential(
            BcosConv2d(channels_in, channels_out, 3, 1, 1, b=b),
            BatchNormUncentred2d(channels_out),
            BcosConv2d(channels_out, channels_out, 3, 1, 1, b=b),
            BatchNormUncentred2d(channels_out),
        )
        self.shortcut = nn.Sequential()
        if channels_in != channels_out:
            self.shortcut = nn.Sequential(
                BcosConv2d(channels_in, channels_out, 1, b=b), BatchNormUncentred2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)


class SmallResNet(Backbone):
    """A stem (stride 2), then one stage of blocks per entry of `widths`, each but the first at half the resolution.

    Every pixel is covered equally often, and by several windows (a wide even kernel in the stem, pooling instead of
    strides in the stages): odd or narrow kernels with stride 2 draw a grid over contribution maps.
    """

    def __init__(self, widths: Sequence[int], depth: int, b: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [BcosConv2d(6, widths[0], 6, 2, 2, b=b), BatchNormUncentred2d(widths[0])]
        channels = widths[0]
        for stage, width in enumerate(widths):
            if stage > 0:
                layers.append(nn.AvgPool2d(2, ceil_mode=True))
            for _ in range(depth):
                layers.append(Block(channels, width, b))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.features = channels

    def forward(self, encoded: Tensor) -> Tensor:
        return self.layers(encoded).mean(dim=(2, 3))


@register
def resnet_small(b: float = 2) -> Backbone:
    """For images of up to about 128 px and for CPUs."""
    return SmallResNet((16, 32, 64, 128), depth=1, b=b)


@register
def resnet_tiny(b: float = 2) -> Backbone:
    """For tests and very small images."""
    return SmallResNet((16, 32, 64), depth=1, b=b)
