"""The B-cos counterpart of each kind of layer of a conventional network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sic.bcos.attention import BcosAttention, BcosMultiheadAttention
from sic.bcos.layers import BcosConv2d, BcosLinear, Gate
from sic.bcos.norms import BatchNormUncentred2d, GroupNorm, LayerNorm, LayerNorm2d
from sic.bcos.padding import SamePad

KEPT = {
    *("Identity", "Dropout", "Dropout1d", "Dropout2d", "DropPath", "PatchDropout", "SelectSeq"),
    *(
        "StochasticDepth",
        "Flatten",
        "Unflatten",
        "Permute",
        "PixelShuffle",
        "PixelUnshuffle",
        "ChannelShuffle",
        "Upsample",
    ),
    *(
        "AvgPool2d",
        "AvgPool2dSame",
        "AdaptiveAvgPool2d",
        "FastAdaptiveAvgPool",
        "BlurPool2d",
        "ZeroPad2d",
        "ReflectionPad2d",
    ),
    *("ReplicationPad2d", "LayerScale", "LayerScale2d"),
}
"""Linear already."""
PIECEWISE_LINEAR = {"ReLU", "LeakyReLU"}
"""Activations whose slope, which autograd finds, is the factor that we want."""
CURVED = {
    *("ReLU6", "GELU", "GELUTanh", "QuickGELU", "SiLU", "Swish", "SwishMe", "Mish", "MishMe"),
    *("Hardswish", "HardSwish", "HardSwishMe", "HardMish", "HardMishMe", "ELU", "CELU", "SELU", "Tanh"),
    *("Hardtanh", "Softsign"),
}
"""Activations, element by element, that leave zero at zero: a factor times their input."""
GATES = {"SqueezeExcitation", "SqueezeExcite", "SEModule", "EffectiveSEModule", "RMSNorm", "RmsNorm", "RmsNorm2d"}
"""Modules that multiply their input by something that they compute from it."""


class Rules:
    """One method per kind of layer: the layer and its name in the network → what takes its place."""

    def __init__(self, bcosified: bool, b: float, biases: bool, mean: Tensor, std: Tensor) -> None:
        self.bcosified, self.b, self.biases = bcosified, b, biases
        self.mean, self.std = mean, std
        self.unknown: list[str] = []
        """Modules without a rule."""
        self.colour_layers = 0
        """Convolutions that take an image."""

    def visit(self, module: nn.Module, name: str) -> nn.Module:
        raise NotImplementedError

    def refuse(self, module: nn.Module, name: str, what: str = "") -> nn.Module:
        self.unknown.append(f"{name or 'the network'} ({type(module).__name__}{what})")
        return module

    def keep(self, module: nn.Module, name: str) -> nn.Module:
        return module

    def gate(self, module: nn.Module, name: str) -> nn.Module:
        return Gate(module)

    def bias(self, module: Any) -> bool:
        return self.biases and module.bias is not None

    @staticmethod
    @torch.no_grad()
    def copy(source: Any, target: nn.Module, **other: Tensor) -> nn.Module:
        """Weight, and bias and statistics where the target has any; `other` values take the place of the source's."""
        if source.weight is not None:
            target.to(source.weight).requires_grad_(source.weight.requires_grad)
        for name, value in target.state_dict().items():
            value.copy_(other.get(name, getattr(source, name)).reshape(value.shape))
        return target

    def convolution(self, module: nn.Conv2d, name: str) -> nn.Module:
        if module.padding_mode != "zeros":
            return self.refuse(module, name, f" with {module.padding_mode} padding")
        colours = module.in_channels == 3 and module.groups == 1
        self.colour_layers += colours
        same = module.padding == "same" or type(module).__name__ == "Conv2dSame"
        layer = BcosConv2d(
            6 if colours else module.in_channels,
            module.out_channels,
            module.kernel_size,
            module.stride,
            0 if same or isinstance(module.padding, str) else module.padding,
            module.dilation,
            module.groups,
            self.b,
            unit=not self.bcosified,
            bias=self.bias(module),
        )
        weight = module.weight
        if colours:  # a fresh network gets fresh weights for its six channels
            weight = self.fold_normalisation(weight) if self.bcosified else layer.weight.detach().clone()
        self.copy(module, layer, weight=weight)
        return nn.Sequential(SamePad(module), layer) if same else layer

    def fold_normalisation(self, weight: Tensor) -> Tensor:
        """O×3×h×w for `(x - mean) / std` → O×6×h×w for `[x, 1 - x]`.

        Both see the same, since `x - mean = (1 - mean) x - mean (1 - x)`; and padding, zero for both, adds nothing.
        """
        mean, std = self.mean[:, None, None].to(weight), self.std[:, None, None].to(weight)
        return torch.cat([weight * (1 - mean) / std, -weight * mean / std], dim=1)

    def linear(self, module: nn.Linear, name: str) -> nn.Module:
        layer = BcosLinear(
            module.in_features, module.out_features, self.b, unit=not self.bcosified, bias=self.bias(module)
        )
        return self.copy(module, layer)

    def batch_norm(self, module: nn.BatchNorm2d, name: str) -> nn.Module:
        if not (module.affine and module.track_running_stats):
            return self.refuse(module, name, " without weights or running statistics")
        momentum = 0.1 if module.momentum is None else module.momentum
        layer = BatchNormUncentred2d(module.num_features, module.eps, momentum, bias=self.bias(module))
        return self.copy(module, layer)

    def layer_norm(self, module: nn.LayerNorm, name: str) -> nn.Module:
        kind = LayerNorm2d if "2d" in type(module).__name__ else LayerNorm
        affine, bias = module.weight is not None, self.bias(module)
        return self.copy(module, kind(module.normalized_shape, module.eps, affine=affine, bias=bias))

    def group_norm(self, module: nn.GroupNorm, name: str) -> nn.Module:
        layer = GroupNorm(
            module.num_groups, module.num_channels, module.eps, affine=module.affine, bias=self.bias(module)
        )
        return self.copy(module, layer)

    def norm_and_activation(self, module: Any, name: str) -> nn.Module:
        """timm's norms that bring their activation along."""
        norm = self.batch_norm if isinstance(module, nn.BatchNorm2d) else self.layer_norm
        return nn.Sequential(norm(module, name), module.drop, self.visit(module.act, f"{name}.act"))

    def activation(self, module: nn.Module, name: str) -> nn.Module:
        """Gone in the style of B-cos v2; else a dynamic scale."""
        if not self.bcosified:
            return nn.Identity()
        return module if type(module).__name__ in PIECEWISE_LINEAR else Gate(module)

    def max_pooling(self, module: nn.MaxPool2d, name: str) -> nn.Module:
        if self.bcosified:
            return module
        if module.dilation not in (1, (1, 1)):
            return self.refuse(module, name, " with dilation")
        return nn.AvgPool2d(module.kernel_size, module.stride, module.padding, module.ceil_mode)

    def adaptive_max_pooling(self, module: nn.AdaptiveMaxPool2d, name: str) -> nn.Module:
        return module if self.bcosified else nn.AdaptiveAvgPool2d(module.output_size)

    def multihead_attention(self, module: nn.MultiheadAttention, name: str) -> nn.Module:
        unusual = module.bias_k is not None or module.add_zero_attn
        if unusual or not (module.batch_first and module._qkv_same_embed_dim):
            return self.refuse(module, name, " other than self-attention with the batch first")
        bias = self.biases and module.in_proj_bias is not None
        result = BcosMultiheadAttention(
            module.embed_dim,
            module.num_heads,
            self.b,
            unit=not self.bcosified,
            qkv_bias=bias,
            out_bias=bias,
            dropout=module.dropout,
        )
        result.qkv.to(module.in_proj_weight)
        with torch.no_grad():
            result.qkv.weight.copy_(module.in_proj_weight)
            if result.qkv.bias is not None:
                result.qkv.bias.copy_(module.in_proj_bias)
        self.copy(module.out_proj, result.out)
        return result

    def timm_attention(self, module: Any, name: str) -> nn.Module:
        plain = {"qkv", "q_norm", "k_norm", "proj", "attn_drop", "proj_drop", "norm"}
        parts: dict[str, Any] = dict(module.named_children())
        # timm has a dozen other classes of this name.
        usual = type(module).__module__ in ("timm.layers.attention", "timm.models.vision_transformer")
        if not usual or parts.keys() - plain or not isinstance(parts.get("norm", nn.Identity()), nn.Identity):
            return self.refuse(module, name, " of its own kind")
        qkv, projection = parts["qkv"], parts["proj"]
        result = BcosAttention(
            qkv.in_features,
            module.num_heads,
            self.b,
            unit=not self.bcosified,
            qkv_bias=self.bias(qkv),
            out_bias=self.bias(projection),
            inner=projection.in_features,
            dropout=parts["attn_drop"].p,
            out_dropout=parts["proj_drop"].p,
        )
        self.copy(qkv, result.qkv)
        self.copy(projection, result.out)
        # Inside the attention weights, which are constant while explaining: any norm will do.
        result.query_norm, result.key_norm = parts["q_norm"], parts["k_norm"]
        return result

    by_name: dict[str, Callable[..., nn.Module]] = {
        **dict.fromkeys(KEPT, keep),
        **dict.fromkeys(GATES, gate),
        **dict.fromkeys(PIECEWISE_LINEAR | CURVED, activation),
        "Conv2d": convolution,
        "Conv2dSame": convolution,
        "Linear": linear,
        "BatchNorm1d": batch_norm,
        "BatchNorm2d": batch_norm,
        "LayerNorm": layer_norm,
        "LayerNorm2d": layer_norm,
        "GroupNorm": group_norm,
        "GroupNorm1": group_norm,
        "BatchNormAct2d": norm_and_activation,
        "LayerNormAct": norm_and_activation,
        "LayerNormAct2d": norm_and_activation,
        "MaxPool2d": max_pooling,
        "AdaptiveMaxPool2d": adaptive_max_pooling,
        "MultiheadAttention": multihead_attention,
        "Attention": timm_attention,
        # Their shortcuts for inference would pass our layers by.
        "TransformerEncoder": refuse,
        "TransformerEncoderLayer": refuse,
    }
    """Rules for classes of torch, torchvision and timm. By name: timm need not be there, and a subclass may compute
    something else."""
