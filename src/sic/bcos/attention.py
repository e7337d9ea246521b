"""Multi-head self-attention whose attention weights are part of the dynamic weight."""

import torch.nn.functional as F
from torch import Tensor, nn

from sic.bcos.explanation import is_explaining
from sic.bcos.layers import BcosLinear


class BcosAttention(nn.Module):
    """N×L×C → N×L×C. Queries, keys and values are plain linear maps, the output projection is a B-cos layer."""

    def __init__(
        self,
        features: int,
        heads: int,
        b: float = 2,
        *,
        unit: bool = True,
        qkv_bias: bool = False,
        out_bias: bool = False,
        inner: int | None = None,
        dropout: float = 0.0,
        out_dropout: float = 0.0,
    ) -> None:
        """`inner`: the size of all heads together, if it is not that of the features."""
        super().__init__()
        inner = inner or features
        if inner % heads:
            raise ValueError(f"{inner} features do not divide into {heads} heads")
        self.heads = heads
        self.qkv = BcosLinear(features, 3 * inner, b=1, unit=False, bias=qkv_bias)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = BcosLinear(inner, features, b, unit=unit, bias=out_bias)
        self.out_dropout = nn.Dropout(out_dropout)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise NotImplementedError("attention with a mask")
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = self.query_norm(query), self.key_norm(key)
        if is_explaining():
            attention = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(dim=-1).detach()
            mixed = self.dropout(attention) @ value
        else:
            # Without the N×heads×L×L attention weights in memory.
            mixed = F.scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout.p if self.training else 0.0
            )
        return self.out_dropout(self.out(mixed.transpose(1, 2).flatten(2)))


class BcosMultiheadAttention(BcosAttention):
    """The same behind the interface of `nn.MultiheadAttention`, for self-attention with the batch first."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Never returns the attention weights: nobody needs them who can have contributions."""
        if key is not query or value is not query:
            raise NotImplementedError("attention between different sequences")
        if key_padding_mask is not None:
            raise NotImplementedError("attention with a mask")
        return super().forward(query, attn_mask, is_causal), None
