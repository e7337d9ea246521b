"""The B-cos algebra: layers whose forward pass is `W(x) x`, and the mode in which `W(x)` can be read off."""

from sic.bcos.attention import BcosAttention
from sic.bcos.encoding import encode_colours
from sic.bcos.explanation import LinearMaps, constant, explaining, frozen, is_explaining, linear_maps
from sic.bcos.layers import BcosConv2d, BcosLinear, bcos_similarity
from sic.bcos.norms import BatchNormUncentred2d, GroupNormUncentred2d, LayerNorm, PositionNormUncentred2d

__all__ = [
    "BatchNormUncentred2d",
    "BcosAttention",
    "BcosConv2d",
    "BcosLinear",
    "GroupNormUncentred2d",
    "LayerNorm",
    "LinearMaps",
    "PositionNormUncentred2d",
    "bcos_similarity",
    "constant",
    "encode_colours",
    "explaining",
    "frozen",
    "is_explaining",
    "linear_maps",
]
