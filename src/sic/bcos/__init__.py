"""The B-cos algebra: layers whose forward pass is `W(x) x`, and the mode in which `W(x)` can be read off."""

from sic.bcos.attention import BcosAttention, BcosMultiheadAttention
from sic.bcos.blur import Blur, antialias
from sic.bcos.convert import IMAGENET_MEAN, IMAGENET_STD, convert
from sic.bcos.encoding import encode_colours
from sic.bcos.explanation import LinearMaps, constant, explaining, frozen, is_explaining, linear_maps
from sic.bcos.fading import fade, remove_biases
from sic.bcos.gate import Gate
from sic.bcos.halving import Halving
from sic.bcos.layers import BcosConv2d, BcosLinear, bcos_similarity
from sic.bcos.norms import BatchNormUncentred2d, GroupNorm, LayerNorm, LayerNorm2d

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
    "linear_maps",
]
