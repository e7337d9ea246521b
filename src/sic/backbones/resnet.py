"""Small ResNets for small images."""

from collections.abc import Sequence

from torch import Tensor, nn

from sic.backbones.registry import Body, register


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut, as in a basic ResNet block."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Sequential()
        if channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)
            )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.path(x) + self.shortcut(x))


def small_resnet(widths: Sequence[int]) -> Body:
    """A stem (stride 2), then a block per entry of `widths`, each but the first at half the resolution.

    Every pixel is covered equally often, and by several windows (a wide even kernel in the stem, pooling instead of
    strides between the blocks): odd or narrow kernels with stride 2 draw a grid over contribution maps.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 6, 2, 2, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    for narrow, wide in zip((widths[0], *widths), widths, strict=False):
        if len(layers) > 3:
            layers.append(nn.AvgPool2d(2, ceil_mode=True))
        layers.append(Block(narrow, wide))
    return Body(nn.Sequential(*layers), widths[-1])


@register
def resnet_small() -> Body:
    """For images of up to about 128 px and for CPUs."""
    return small_resnet((16, 32, 64, 128))


@register
def resnet_tiny() -> Body:
    """For tests and very small images."""
    return small_resnet((16, 32, 64))
