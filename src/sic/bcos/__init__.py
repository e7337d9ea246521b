"""The B-cos algebra: layers whose forward pass is `W(x) x`, and the mode in which `W(x)` can be read off."""

from sic.bcos.attention import BcosAttention, BcosMultiheadAttention
from sic.bcos.convert import IMAGENET_MEAN, IMAGENET_STD, convert
from sic.bcos.downsampling import Blur, Halving, antialias
from sic.bcos.explanation import (
    LinearMaps,
    constant,
    encode_colours,
    explaining,
    frozen,
    is_explaining,
    keep_feature_maps,
    linear_maps,
)
from sic.bcos.layers import BcosConv2d, BcosLinear, Gate, bcos_similarity, fade, remove_biases
from sic.bcos.norms import BatchNormUncentred2d, GroupNorm, LayerNorm, LayerNorm2d, renew_statistics
from sic.bcos.padding import pad_with

__all__ = [
    "remove_biases",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "BatchNormUncentred2d",
    "BcosAttention",
    "BcosConv2d",
    "BcosLinear",
    "BcosMultiheadAttention",
    "Blur",
    "Gate",
    "GroupNorm",
    "Halving",
    "LayerNorm",
    "LayerNorm2d",
    "LinearMaps",
    "antialias",
    "bcos_similarity",
    "constant",
    "convert",
    "encode_colours",
    "explaining",
    "fade",
    "frozen",
    "is_explaining",
    "keep_feature_maps",
    "linear_maps",
    "pad_with",
    "renew_statistics",
]
