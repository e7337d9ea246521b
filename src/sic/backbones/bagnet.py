"""BagNets (Brendel & Bethge 2019): a ResNet50 whose features see small patches of the image, and nothing beside them.

Convolutions are not padded, and most of them are 1×1: a feature's patch is exactly `patch` pixels wide, and the next
feature's lies `STRIDE` pixels further.
"""

from torch import Tensor, nn

from sic.backbones.registry import Body, register

STRIDE = 8


class Bottleneck(nn.Module):
    """1×1, k×k, 1×1 around a shortcut, which is cut to the size of what an unpadded convolution leaves."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel, stride, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.activation = nn.ReLU()
        self.downsample = nn.Sequential()
        if stride != 1 or channels_in != 4 * channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x)))
        out = self.activation(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.activation(out + self.downsample(x)[:, :, : out.shape[2], : out.shape[3]])


def bagnet(wide_stages: int, patch: int) -> Body:
    """`wide_stages`: how many of the four stages begin with a 3×3 convolution; the others see no further."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 1, bias=False), nn.Conv2d(64, 64, 3, bias=False)]
    layers += [nn.BatchNorm2d(64), nn.ReLU()]
    channels_in = 64
    for stage, (blocks, stride) in enumerate(((3, 2), (4, 2), (6, 2), (3, 1))):
        channels = 64 * 2**stage
        for block in range(blocks):
            first = block == 0
            kernel = 3 if first and stage < wide_stages else 1
            layers.append(Bottleneck(channels_in, channels, kernel, stride if first else 1))
            channels_in = 4 * channels
    return Body(nn.Sequential(*layers), channels_in, patch=patch)


@register
def bagnet9() -> Body:
    return bagnet(2, 9)


@register
def bagnet17() -> Body:
    return bagnet(3, 17)


@register
def bagnet33() -> Body:
    return bagnet(4, 33)
