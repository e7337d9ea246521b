"""A slow reference for dynamic weights: record every input-dependent factor, then replay the network with them.

It shares no code with explanation mode. The factors come from an ordinary forward pass, as the ratio between the output
of a layer and its linear part. With these factors fixed the network is affine: its answer to an impulse is a dynamic
weight, and its answer to zero is the constant. All weights at once are the slopes of the affine network.
"""

import copy
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones.networks import ConvStemViT, positions
from sic.bcos import (
    BcosAttention,
    BcosConv2d,
    BcosLinear,
    BcosMultiheadAttention,
    Gate,
    GroupNorm,
    LayerNorm,
    LayerNorm2d,
)
from sic.bcos.convert import ConstantTerm
from sic.errors import SicError
from sic.methods import SIC, Bcos, Classifier, Contributions


def encoded_colours(images: Tensor) -> Tensor:
    """`[x, 1 - x]`, independent of `sic.bcos.encode_colours`, which is checked, too."""
    return torch.cat([images, 1 - images], dim=1)


class Linearised:
    """The network of a classifier with the factors of one encoded image, 1×6×H×W.

    `features` takes other encoded images, N×6×H×W, and is affine in them; `evidence` and `scores` take such features,
    N×d, and are affine, too. It holds the graph for backward passes to the image; delete it when nothing else is asked.
    """

    def __init__(self, classifier: Classifier, encoded: Tensor) -> None:
        fixed = {id(value): value for value in classifier.buffers()}
        fixed |= {id(value): nn.Parameter(value.detach(), False) for value in classifier.parameters()}
        self._twin = copy.deepcopy(classifier, fixed)  # with the same weights
        self._kept: dict[Any, list[Tensor]] = {}
        self._calls: dict[Any, int] = {}
        self._weights: dict[nn.Module, Tensor] = {}
        self._recording = True
        self._without_positions = False
        self.positional = False
        """Whether the network adds codes of positions or tokens, which do not depend on the image."""
        replaying = weakref.proxy(self)  # so that all is freed at once when this is dropped
        for module in self._twin.modules():
            self.positional = self.positional or isinstance(module, ConvStemViT | ConstantTerm)
            if (replayed := Linearised._replayed(replaying, module)) is not None:
                module.forward = replayed  # type: ignore[method-assign]
        self.encoded = encoded
        self._leaf = encoded.clone().requires_grad_()
        with torch.enable_grad():
            self._features = self.features(self._leaf)
        self.own = self._features.detach()
        """The features of the image itself, 1×d."""
        with torch.no_grad():
            self.logits = self.scores(self.own)
        self._recording = False

    @torch.no_grad()
    def answer(self, encoded: Tensor) -> Tensor:
        """Logits, N×C. One image at a time: batches are slower on a CPU, in double precision."""
        return torch.cat([self.scores(self.features(one)) for one in encoded.split(1)])

    @cached_property
    def empty(self) -> Tensor:
        """The features of an empty image, 1×d."""
        with torch.no_grad():
            return self.features(torch.zeros_like(self.encoded))

    @torch.no_grad()
    def biases(self) -> Tensor:
        """Logits, C, of an empty image without codes of positions."""
        if not self.positional:
            return self.scores(self.empty)[0]
        self._without_positions = True
        try:
            return self.scores(self.features(torch.zeros_like(self.encoded)))[0]
        finally:
            self._without_positions = False

    def traced(self, outputs: Callable[[Tensor], Tensor]) -> Contributions:
        """Contributions K to `outputs`, which takes features and is made of the methods below: a backward pass each."""
        with torch.enable_grad():
            values = outputs(self._features)[0]
            weights = torch.stack([torch.autograd.grad(each, self._leaf, retain_graph=True)[0][0] for each in values])
        with torch.no_grad():
            constant = outputs(self.empty)[0]
        return Contributions((weights * self.encoded).sum(dim=1), weights, values.detach(), constant)

    def features(self, encoded: Tensor) -> Tensor:
        """What the logits are computed from: latents, N×d, or pooled features, N×F."""
        self._calls.clear()
        twin = self._twin
        if not isinstance(twin, SIC):
            return twin.backbone.pooled(encoded)
        if twin.encoder.local:
            features = twin.backbone.feature_maps(encoded).permute(0, 2, 3, 1)
        else:
            features = twin.backbone.pooled(encoded)
        units = twin.encoder.projection(features)
        if twin.encoder.relu:
            units = units * self._factor("relu", lambda: (units > 0).to(units))
        return units.mean(dim=(1, 2)) if twin.encoder.local else units

    def evidence(self, latents: Tensor) -> Tensor:
        """The evidence of each case, N×S (SIC only)."""
        self._calls.clear()
        twin = self._twin
        assert isinstance(twin, SIC)
        linear = latents @ F.normalize(twin.support_vectors, dim=1, eps=1e-12).T
        return linear * self._factor("similarity", lambda: _ratio(twin.evidence(latents), linear))

    @property
    def temperature(self) -> float:
        """T (SIC only)."""
        assert isinstance(self._twin, SIC)
        return self._twin.temperature

    def scores(self, features: Tensor) -> Tensor:
        """Logits, N×C."""
        twin = self._twin
        if isinstance(twin, SIC):
            return twin.logits(self.evidence(features))
        self._calls.clear()
        if isinstance(twin, Bcos):
            return twin.logits(features)
        raise SicError(f"{type(twin).__name__} is not a B-cos network: its explanations are not exact by construction.")

    def _factor(self, key: Any, compute: Callable[[], Tensor]) -> Tensor:
        """Computed while recording; the same again in the same call of each replay."""
        if self._recording:
            with torch.no_grad():
                self._kept.setdefault(key, []).append(compute())
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        return self._kept[key][call]

    def _replayed(self, module: nn.Module) -> Callable[..., Any] | None:
        """The replacement of a module's forward; None for a module that is already affine."""
        ordinary = module.forward
        if isinstance(module, BcosConv2d | BcosLinear):
            return lambda x: self._unit(module, ordinary, x)
        if isinstance(module, LayerNorm2d):
            return lambda x: self._norm(module, x.movedim(1, -1), (-1,), module.weight, module.bias).movedim(-1, 1)
        if isinstance(module, LayerNorm):
            return lambda x: self._norm(module, x, module.dims, module.weight, module.bias)
        if isinstance(module, GroupNorm):
            return lambda x: self._group_norm(module, x)
        if isinstance(module, BcosMultiheadAttention):
            return lambda query, *others, **more: (self._attention(module, query), None)
        if isinstance(module, BcosAttention):
            return lambda x, *others, **more: self._attention(module, x)
        if isinstance(module, nn.MaxPool2d | nn.AdaptiveMaxPool2d):
            return lambda x: self._chosen(module, x)
        if isinstance(module, ConvStemViT):
            return lambda x: self._tokens(module, x)
        if isinstance(module, ConstantTerm):
            return lambda value: torch.zeros_like(value) if self._without_positions else value
        if isinstance(module, Gate | nn.ReLU | nn.LeakyReLU):
            # A copy, because activations may work in place.
            return lambda x: x * self._factor(module, lambda: _ratio(ordinary(x.clone()), x))
        return None

    def _unit(self, module: BcosConv2d | BcosLinear, ordinary: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if module not in self._weights:
            self._weights[module] = module.scaled_weight()
        weight = self._weights[module]
        if isinstance(module, BcosLinear):
            linear = F.linear(x, weight)
            bias: Tensor | None = module.bias
        else:
            rows, columns = map(int, module.padding)
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            padded = F.pad(x, (columns, columns, rows, rows), mode=mode)
            linear = F.conv2d(padded, weight, None, module.stride, 0, module.dilation, module.groups)  # type: ignore[arg-type]
            bias = None if module.bias is None else module.bias[:, None, None]
        rest = 0 if bias is None else (1 - module.progress) * bias
        return linear * self._factor(module, lambda: _ratio(ordinary(x) - rest, linear)) + rest

    def _norm(
        self,
        module: LayerNorm | GroupNorm,
        x: Tensor,
        dims: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        scale = self._factor(module, lambda: (x.var(dim=dims, correction=0, keepdim=True) + module.eps).rsqrt())
        out = (x - x.mean(dim=dims, keepdim=True)) * scale
        if weight is not None:
            out = out * weight
        return out if bias is None else out + (1 - module.progress) * bias

    def _group_norm(self, module: GroupNorm, x: Tensor) -> Tensor:
        grouped = x.unflatten(1, (module.groups, -1))
        shape = (module.groups, -1, *[1] * (x.dim() - 2))
        weight, bias = (None if p is None else p.view(shape) for p in (module.weight, module.bias))
        return self._norm(module, grouped, tuple(range(2, grouped.dim())), weight, bias).flatten(1, 2)

    def _attention(self, module: BcosAttention, x: Tensor) -> Tensor:
        query, key, value = module.qkv(x).unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)

        def looks() -> Tensor:
            q, k = module.query_norm(query), module.key_norm(key)
            return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)

        mixed = self._factor(module, looks) @ value
        return module.out(mixed.transpose(1, 2).flatten(2))

    def _tokens(self, module: ConvStemViT, x: Tensor) -> Tensor:
        grid = module.stem(x)
        tokens = module.embedding(grid.flatten(2).transpose(1, 2))
        if not self._without_positions:
            tokens = tokens + positions(grid.shape[2], grid.shape[3], module.features, tokens)
        return module.norm(module.encoder(tokens).mean(dim=1))

    def _chosen(self, module: nn.MaxPool2d | nn.AdaptiveMaxPool2d, x: Tensor) -> Tensor:
        def indices() -> Tensor:
            if isinstance(module, nn.AdaptiveMaxPool2d):
                return F.adaptive_max_pool2d(x, module.output_size, return_indices=True)[1]  # type: ignore[call-overload]
            sizes = module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode
            return F.max_pool2d(x, *sizes, return_indices=True)[1]  # type: ignore[arg-type]

        kept = self._factor(module, indices).expand(len(x), -1, -1, -1)
        return x.flatten(2).gather(2, kept.flatten(2)).view_as(kept)


def _ratio(output: Tensor, linear: Tensor) -> Tensor:
    return torch.where(linear == 0, 0, output / linear)
