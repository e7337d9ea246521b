"""Multi-head self-attention whose attention weights are part of the dynamic weight."""

from torch import Tensor, nn

from sic.bcos.explanation import frozen
from sic.bcos.layers import BcosLinear


class BcosAttention(nn.Module):
    """N×L×C → N×L×C. Queries, keys and values are plain linear maps, the output projection is a B-cos layer."""

    def __init__(self, features: int, heads: int, b: float = 2) -> None:
        super().__init__()
        if features % heads:
            raise ValueError(f"{features} features do not divide into {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = BcosLinear(features, features, b)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = frozen((query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(dim=-1))
        return self.out((attention @ value).transpose(1, 2).flatten(2))
