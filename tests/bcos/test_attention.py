"""Attention against one head, one query and one key at a time."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from sic.bcos import BcosAttention, BcosLinear, BcosMultiheadAttention, encode_colours, explaining, fade, linear_maps


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


def test_queries_keys_and_values_are_plain_linear_maps() -> None:
    attention = BcosAttention(8, 2)
    assert isinstance(attention.qkv, BcosLinear)
    assert (attention.qkv.b, attention.qkv.unit, attention.qkv.bias) == (1, False, None)
    assert (attention.out.b, attention.out.unit, attention.out.bias) == (2, True, None)


def test_heads_may_be_wider_than_the_features() -> None:
    torch.manual_seed(1)
    attention = BcosAttention(6, 2, inner=8)
    assert attention.qkv.weight.shape == (24, 6)
    assert attention(torch.randn(2, 5, 6)).shape == (2, 5, 6)


def twins(dropout: float = 0.0, bias: bool = True) -> tuple[nn.MultiheadAttention, BcosMultiheadAttention]:
    """torch's attention, and ours with its weights at the start of the way to B-cos."""
    torch.manual_seed(2)
    theirs = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True, dropout=dropout).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours = BcosMultiheadAttention(8, 2, unit=False, qkv_bias=bias, out_bias=bias, dropout=dropout).double()
    names = {"qkv.weight": "in_proj_weight", "qkv.bias": "in_proj_bias"}
    state = theirs.state_dict()
    ours.load_state_dict({n: state[names.get(n, n.replace("out.", "out_proj."))] for n in ours.state_dict()})
    fade(ours, 0)
    return theirs, ours


@pytest.mark.parametrize("bias", [True, False])
def test_multihead_attention_starts_out_as_that_of_torch(bias: bool) -> None:
    theirs, ours = twins(bias=bias)
    x = torch.randn(3, 5, 8, dtype=torch.double)
    expected, _ = theirs(x, x, x, need_weights=False)
    got, weights = ours(x, x, x, need_weights=False)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    assert weights is None


def test_dropout_is_that_of_torch() -> None:
    theirs, ours = twins(dropout=0.5)
    x = torch.randn(3, 5, 8, dtype=torch.double)
    assert not torch.allclose(ours(x, x, x)[0], ours(x, x, x)[0])
    theirs.eval()
    ours.eval()
    torch.testing.assert_close(ours(x, x, x)[0], theirs(x, x, x)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("progress", [0, 0.5, 1])
def test_biases_of_attention_have_their_own_share(progress: float) -> None:
    _, ours = twins()
    fade(ours, progress)
    images = torch.rand(2, 3, 2, 4, dtype=torch.double)
    with explaining() as trace:
        x = encode_colours(images).flatten(2).transpose(1, 2).reshape(2, 6, 8)
        out = ours(x, x, x)[0].flatten(1)
        maps = linear_maps(out, trace)
    assert trace.source is not None
    pixels = (maps.weights * trace.source.detach()[:, None]).sum(dim=(2, 3, 4))
    torch.testing.assert_close(pixels + maps.constants, out.detach(), rtol=1e-10, atol=1e-12)
    assert (maps.constants == 0).all() == (progress == 1)


def test_attention_between_different_sequences_is_refused() -> None:
    _, ours = twins()
    x, y = torch.randn(2, 3, 5, 8, dtype=torch.double)
    for query, key, value in ((x, y, y), (x, x, y), (x, y, x), (x, x.clone(), x)):
        with pytest.raises(NotImplementedError, match="between different sequences"):
            ours(query, key, value)


def test_masks_are_refused() -> None:
    attention, x = double_attention(8, 2), torch.randn(1, 3, 8, dtype=torch.double)
    with pytest.raises(NotImplementedError, match="mask"):
        attention(x, attn_mask=torch.zeros(3, 3, dtype=torch.double))
    with pytest.raises(NotImplementedError, match="mask"):
        attention(x, is_causal=True)


@pytest.mark.parametrize(
    "mask",
    [
        {"attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1)},
        {"key_padding_mask": torch.tensor([[False, False, True]])},
    ],
    ids=["attention", "padding"],
)
def test_multihead_attention_refuses_masks_too(mask: dict[str, Tensor]) -> None:
    _, ours = twins()
    x = torch.randn(1, 3, 8, dtype=torch.double)
    with pytest.raises(NotImplementedError, match="mask"):
        ours(x, x, x, **mask)
