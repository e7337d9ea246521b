"""Attention against one head, one query and one key at a time."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from sic.bcos import BcosAttention, explaining


def double_attention(features: int, heads: int, b: float = 2) -> BcosAttention:
    torch.manual_seed(0)
    attention = BcosAttention(features, heads, b).double()
    with torch.no_grad():
        attention.qkv.weight *= 3  # attention far from uniform
    return attention


def attended(attention: BcosAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The input of the output projection (L×C) for one sequence, and the attention weights heads×L×L."""
    length, features = x.shape
    size = features // attention.heads
    wq, wk, wv = attention.qkv.weight.detach().split(features)
    mixed, weights = torch.zeros_like(x), x.new_zeros(attention.heads, length, length)
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(length):
            scores = [float((wq[part] @ x[i]) @ (wk[part] @ x[j])) / math.sqrt(size) for j in range(length)]
            total = sum(math.exp(score) for score in scores)
            for j in range(length):
                weights[head, i, j] = math.exp(scores[j]) / total
                mixed[i, part] += weights[head, i, j] * (wv[part] @ x[j])
    return mixed, weights


def cosines(attention: BcosAttention, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """`cos` of every token with every output unit, L×C, and the unit weights `ŵ`."""
    w = attention.out.weight.detach()
    unit = w / w.norm(dim=1, keepdim=True)
    return mixed @ unit.T / mixed.norm(dim=1, keepdim=True), unit


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("b", [1, 2, 3])
def test_attention_is_what_the_loop_says(heads: int, b: float) -> None:
    attention = double_attention(8, heads, b)
    x = torch.randn(2, 5, 8, dtype=torch.double)
    for sequence, out in zip(x, attention(x), strict=True):
        mixed, _ = attended(attention, sequence)
        cosine, _ = cosines(attention, mixed)
        expected = mixed.norm(dim=1, keepdim=True) * cosine.abs() ** b * cosine.sign()
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("b", [1, 2])
def test_attention_weights_are_part_of_the_dynamic_weight(b: float) -> None:
    attention = double_attention(8, 2, b)
    x = torch.randn(4, 8, dtype=torch.double)

    def apply(x: Tensor) -> Tensor:
        return attention(x[None])[0]

    with explaining():
        dynamic = jacobian(apply, x)  # L×C×L×C
    torch.testing.assert_close(torch.einsum("icjd,jd->ic", dynamic, x), apply(x), rtol=1e-10, atol=1e-12)

    mixed, weights = attended(attention, x)
    cosine, unit = cosines(attention, mixed)
    wv = attention.qkv.weight.detach()[16:].view(2, 4, 8)
    values = torch.einsum("hij,hed->ihejd", weights, wv).reshape(4, 8, 4, 8)
    expected = torch.einsum("ic,ce,iejd->icjd", cosine.abs() ** (b - 1), unit, values)
    torch.testing.assert_close(dynamic, expected, rtol=1e-5, atol=1e-8)
    assert not torch.allclose(jacobian(apply, x), dynamic, atol=1e-3)


def test_attention_does_not_care_about_order() -> None:
    attention = double_attention(8, 2)
    x, order = torch.randn(2, 6, 8, dtype=torch.double), torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order])


def test_sequences_of_a_batch_do_not_meet() -> None:
    attention = double_attention(8, 2)
    x = torch.randn(3, 4, 8, dtype=torch.double)
    torch.testing.assert_close(attention(x)[1:2], attention(x[1:2]))


def test_heads_must_divide_the_features() -> None:
    with pytest.raises(ValueError, match="10 features do not divide into 4 heads"):
        BcosAttention(10, 4)
