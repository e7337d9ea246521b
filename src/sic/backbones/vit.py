"""B-cos vision transformers with a convolutional stem, fixed sine-cosine positions and mean pooling."""

from typing import Any

import torch
from torch import Tensor, nn

from sic.backbones.registry import Backbone, register
from sic.bcos import BcosAttention, BcosConv2d, BcosLinear, LayerNorm, PositionNormUncentred2d, constant


def positions(height: int, width: int, features: int, like: Tensor) -> Tensor:
    """Sine-cosine code of a grid, 1×(height·width)×features: a quarter each of sin x, cos x, sin y, cos y."""
    # In full precision always: training in half precision must not place patches elsewhere.
    kind: dict[str, Any] = {
        "device": like.device,
        "dtype": torch.float64 if like.dtype == torch.float64 else torch.float32,
    }
    frequency = 10_000.0 ** -torch.linspace(0, 1, features // 4, **kind)
    rows = torch.arange(height, **kind)[:, None] * frequency
    columns = torch.arange(width, **kind)[:, None] * frequency
    x = columns.expand(height, width, -1)
    y = rows[:, None].expand(height, width, -1)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1).flatten(0, 1)[None].to(like.dtype)


class EncoderLayer(nn.Module):
    """Pre-norm attention and a two-layer B-cos perceptron, each around a shortcut."""

    def __init__(self, features: int, heads: int, b: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(LayerNorm(features), BcosAttention(features, heads, b))
        self.perceptron = nn.Sequential(
            LayerNorm(features), BcosLinear(features, 4 * features, b), BcosLinear(4 * features, features, b)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


class ConvStemViT(Backbone):
    """Every stem convolution halves the image; its positions enter as an input-independent term."""

    def __init__(self, stem: tuple[int, ...], depth: int, heads: int, b: float) -> None:
        super().__init__()
        if stem[-1] % 4:
            raise ValueError(f"positions need a multiple of 4 features, not {stem[-1]}")
        layers: list[nn.Module] = []
        for channels_in, channels_out in zip((6, *stem), stem, strict=False):
            layers += [BcosConv2d(channels_in, channels_out, 3, 2, 1, b=b), PositionNormUncentred2d(channels_out)]
        self.features = stem[-1]
        self.stem = nn.Sequential(*layers)
        self.encoder = nn.Sequential(*(EncoderLayer(self.features, heads, b) for _ in range(depth)))
        self.norm = LayerNorm(self.features)

    def forward(self, encoded: Tensor) -> Tensor:
        grid = self.stem(encoded)
        tokens = grid.flatten(2).transpose(1, 2)
        tokens = tokens + constant(positions(grid.shape[2], grid.shape[3], self.features, tokens), len(tokens))
        return self.norm(self.encoder(tokens)).mean(dim=1)


@register
def vit_small(b: float = 2) -> Backbone:
    """For images of up to about 128 px: 1/8 of the resolution, four layers."""
    return ConvStemViT((32, 64, 128), depth=4, heads=4, b=b)
