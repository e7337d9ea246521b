"""Our own network definitions: small ResNets, BagNets, and vision transformers with a convolutional stem."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sic.backbones.registry import Body, register
from sic.bcos import constant


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


STRIDE = 8
"""Pixels between the patches of a BagNet."""


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
    """BagNet (Brendel & Bethge 2019): a ResNet50 whose features see small patches of the image and nothing else.

    Convolutions are not padded, and most of them are 1×1: the patch of a feature is exactly `patch` pixels wide, and
    that of the next feature lies `STRIDE` pixels further.

    `wide_stages`: how many of the four stages begin with a 3×3 convolution; the others see no further.
    """
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


def positions(height: int, width: int, features: int, like: Tensor) -> Tensor:
    """Sine-cosine code of a grid, 1×(height·width)×features: a quarter each of sin x, cos x, sin y, cos y."""
    # In single precision always, as B-cos v2 does: a model is the same function in half and in double precision.
    steps = torch.arange(features // 4, device=like.device) / max(features // 4 - 1, 1)
    frequency = 1 / 10_000**steps
    rows = torch.arange(height, device=like.device)[:, None] * frequency
    columns = torch.arange(width, device=like.device)[:, None] * frequency
    x = columns.expand(height, width, -1)
    y = rows[:, None].expand(height, width, -1)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1).flatten(0, 1)[None].to(like.dtype)


class EncoderLayer(nn.Module):
    """Pre-norm attention and a two-layer perceptron, each around a shortcut."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.attention = nn.MultiheadAttention(features, heads, bias=False, batch_first=True)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(features), nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.perceptron(x)


class ConvStemViT(nn.Module):
    """A vision transformer with a convolutional stem, fixed sine-cosine positions and mean pooling (SimpleViT, ViT_c).

    A stem convolution halves the image wherever it widens it; positions enter as an input-independent term.
    """

    def __init__(self, stem: tuple[int, ...], features: int, depth: int, heads: int) -> None:
        super().__init__()
        if features % 4:
            raise ValueError(f"positions need a multiple of 4 features, not {features}")
        layers: list[nn.Module] = []
        for channels_in, channels_out in zip((3, *stem), stem, strict=False):
            stride = 2 if channels_out > channels_in else 1
            layers += [
                nn.Conv2d(channels_in, channels_out, 3, stride, 1),
                nn.GroupNorm(1, channels_out),
                nn.GELU(),
            ]
        self.features = features
        self.stem = nn.Sequential(*layers)
        self.embedding = nn.Linear(stem[-1], features)
        self.encoder = nn.Sequential(*(EncoderLayer(features, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        """N×F."""
        grid = self.stem(x)
        tokens = self.embedding(grid.flatten(2).transpose(1, 2))
        tokens = tokens + constant(positions(grid.shape[2], grid.shape[3], self.features, tokens), tokens.shape[0])
        return self.norm(self.encoder(tokens).mean(dim=1))


def _vit(stem: tuple[int, ...], features: int, depth: int, heads: int) -> Body:
    return Body(ConvStemViT(stem, features, depth, heads), features)


@register
def vit_small() -> Body:
    """For images of up to about 128 px: 1/8 of the resolution, four layers."""
    return _vit((32, 64, 128), 128, depth=4, heads=4)


@register
def vitc_ti() -> Body:
    return _vit((24, 48, 96, 192), 192, depth=11, heads=3)


@register
def vitc_s() -> Body:
    return _vit((48, 96, 192, 384), 384, depth=11, heads=6)


@register
def vitc_b() -> Body:
    return _vit((64, 128, 128, 256, 256, 512), 768, depth=11, heads=12)


@register
def vitc_l() -> Body:
    return _vit((64, 128, 128, 256, 256, 512), 1024, depth=13, heads=16)
