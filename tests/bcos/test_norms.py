"""Norms against NumPy, torch's own and the Jacobian."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from sic.bcos import BatchNormUncentred2d, GroupNormUncentred2d, LayerNorm, PositionNormUncentred2d, explaining

CHANNELS = 6
SHAPE = (3, CHANNELS, 4, 5)
EPS = 1e-5

Array = NDArray[np.float64]


def batch_reference(x: Array, weight: Array) -> Array:
    return x / np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + EPS) * weight[:, None, None]


def group_reference(groups: int) -> Callable[[Array, Array], Array]:
    def reference(x: Array, weight: Array) -> Array:
        size, result = CHANNELS // groups, np.empty_like(x)
        for n in range(len(x)):
            for g in range(groups):
                chunk = x[n, g * size : (g + 1) * size]
                result[n, g * size : (g + 1) * size] = chunk / np.sqrt(chunk.var() + EPS)
        return result * weight[:, None, None]

    return reference


def position_reference(x: Array, weight: Array) -> Array:
    result = np.empty_like(x)
    for n in range(len(x)):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                pixel = x[n, :, row, column]
                result[n, :, row, column] = pixel / np.sqrt(pixel.var() + EPS) * weight
    return result


UNCENTRED = {
    "batch": (lambda: BatchNormUncentred2d(CHANNELS), batch_reference),
    "group": (lambda: GroupNormUncentred2d(3, CHANNELS), group_reference(3)),
    "all channels": (lambda: GroupNormUncentred2d(1, CHANNELS), group_reference(1)),
    "position": (lambda: PositionNormUncentred2d(CHANNELS), position_reference),
}


@pytest.fixture(params=UNCENTRED)
def uncentred(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[Array, Array], Array]]:
    build, reference = UNCENTRED[request.param]
    torch.manual_seed(0)
    norm = build().double()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    return norm, reference


def data(mean: float = 0.7) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(SHAPE, dtype=torch.double) * torch.arange(1, CHANNELS + 1)[:, None, None] + mean


def test_uncentred_norms_agree_with_numpy(uncentred: tuple[nn.Module, Callable[[Array, Array], Array]]) -> None:
    norm, reference = uncentred
    x = data()
    expected = reference(x.numpy(), norm.weight.detach().numpy())
    torch.testing.assert_close(norm(x), torch.from_numpy(expected))


def test_uncentred_norms_do_not_centre(uncentred: tuple[nn.Module, Callable[[Array, Array], Array]]) -> None:
    norm, _ = uncentred
    ratio = norm(data(mean=5)) / data(mean=5)
    assert (ratio > 0).all()  # a subtracted mean would turn signs around


@pytest.mark.parametrize("training", [True, False])
def test_uncentred_norms_are_linear_while_explaining(
    uncentred: tuple[nn.Module, Callable[[Array, Array], Array]], training: bool
) -> None:
    norm, _ = uncentred
    norm.train(training)
    x = data()[:2, :, :2, :3]
    with explaining():
        dynamic = jacobian(norm, x).reshape(x.numel(), x.numel())
    out = norm(x)
    torch.testing.assert_close(dynamic @ x.flatten(), out.flatten(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(dynamic, torch.diag((out / x).flatten()), rtol=1e-10, atol=1e-12)
    ordinary = jacobian(norm, x).reshape(x.numel(), x.numel())
    constant_scale = isinstance(norm, BatchNormUncentred2d) and not training
    assert torch.allclose(ordinary, dynamic, atol=1e-4) == constant_scale


def test_layer_norm_is_that_of_torch_without_a_bias() -> None:
    torch.manual_seed(2)
    norm, x = LayerNorm(7).double(), torch.randn(2, 3, 7, dtype=torch.double) + 3
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    torch.testing.assert_close(norm(x), F.layer_norm(x, (7,), norm.weight, None, norm.eps))


def test_layer_norm_is_linear_while_explaining() -> None:
    torch.manual_seed(3)
    norm, x = LayerNorm(7).double(), torch.randn(7, dtype=torch.double) + 3
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    with explaining():
        dynamic = jacobian(norm, x)
    torch.testing.assert_close(dynamic @ x, norm(x), rtol=1e-11, atol=1e-13)
    centring = torch.eye(7, dtype=torch.double) - 1 / 7
    expected = norm.weight.detach()[:, None] * centring / (x.var(unbiased=False) + norm.eps).sqrt()
    torch.testing.assert_close(dynamic, expected, rtol=1e-11, atol=1e-13)
    assert not torch.allclose(jacobian(norm, x), dynamic, atol=1e-3)


def test_running_variance_moves_towards_the_batch_by_the_momentum() -> None:
    norm = BatchNormUncentred2d(CHANNELS, momentum=0.25).double()
    expected = np.ones(CHANNELS)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(SHAPE, dtype=torch.double) * (seed + 1)
        norm(x)
        expected = 0.75 * expected + 0.25 * x.numpy().var(axis=(0, 2, 3))
    torch.testing.assert_close(norm.running_var, torch.from_numpy(expected))


def test_evaluation_uses_the_running_variance_and_leaves_it_alone() -> None:
    norm, x = BatchNormUncentred2d(CHANNELS).double(), data()
    norm.running_var.uniform_(0.5, 3)
    before = norm.running_var.clone()
    norm.eval()
    torch.testing.assert_close(norm(x), x / (before[:, None, None] + EPS).sqrt())
    assert torch.equal(norm.running_var, before)
    assert torch.equal(norm(x[1:2]), norm(x)[1:2])


def test_training_depends_on_the_batch() -> None:
    norm, x = BatchNormUncentred2d(CHANNELS).double(), data()
    assert not torch.allclose(norm(x[1:2]), norm(x)[1:2])


def test_gradients_flow_through_the_batch_statistics() -> None:
    torch.manual_seed(4)
    norm, x = BatchNormUncentred2d(2).double(), torch.randn(2, 2, 2, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))
    assert not norm.running_var.requires_grad


@pytest.mark.parametrize("kind", [BatchNormUncentred2d, PositionNormUncentred2d, lambda c: GroupNormUncentred2d(2, c)])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_flat_image_is_harmless(kind: Callable[[int], nn.Module], value: float) -> None:
    norm, x = kind(4), torch.full((2, 4, 3, 3), value, requires_grad=True)
    out = norm(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm", [build() for build, _ in UNCENTRED.values()] + [LayerNorm(5)], ids=str)
def test_bfloat16_is_close_to_float32(norm: nn.Module) -> None:
    x = data().float()
    out = norm(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), norm(x), rtol=0.03, atol=0.02)


def test_groups_must_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="7 channels do not divide into 2 groups"):
        GroupNormUncentred2d(2, 7)
