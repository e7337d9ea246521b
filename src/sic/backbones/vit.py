"""Vision transformers with a convolutional stem, fixed sine-cosine positions and mean pooling (SimpleViT, ViT_c)."""

import torch
from torch import Tensor, nn

from sic.backbones.registry import Body, register
from sic.bcos import constant


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
    """A stem convolution halves the image wherever it widens it; positions enter as an input-independent term."""

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
