"""Norms against NumPy, torch's own and the Jacobian with frozen statistics."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from sic.bcos import (
    BatchNormUncentred2d,
    GroupNorm,
    LayerNorm,
    LayerNorm2d,
    encode_colours,
    explaining,
    fade,
    linear_maps,
    renew_statistics,
)

CHANNELS = 6
SHAPE = (3, CHANNELS, 4, 5)
EPS = 1e-5

Array = NDArray[np.float64]
Reference = Callable[[Array, Array], Array]


def batch_reference(x: Array, weight: Array) -> Array:
    return x / np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + EPS) * weight[:, None, None]


def group_reference(groups: int) -> Reference:
    def reference(x: Array, weight: Array) -> Array:
        size, result = CHANNELS // groups, np.empty_like(x)
        for n in range(len(x)):
            for g in range(groups):
                chunk = x[n, g * size : (g + 1) * size]
                result[n, g * size : (g + 1) * size] = (chunk - chunk.mean()) / np.sqrt(chunk.var() + EPS)
        return result * weight[:, None, None]

    return reference


def position_reference(x: Array, weight: Array) -> Array:
    result = np.empty_like(x)
    for n in range(len(x)):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                pixel = x[n, :, row, column]
                result[n, :, row, column] = (pixel - pixel.mean()) / np.sqrt(pixel.var() + EPS) * weight
    return result


def layer_reference(x: Array, weight: Array) -> Array:
    """Over the last two dimensions."""
    result = np.empty_like(x)
    for n in range(len(x)):
        for channel in range(CHANNELS):
            plane = x[n, channel]
            result[n, channel] = (plane - plane.mean()) / np.sqrt(plane.var() + EPS) * weight
    return result


# Ours, with a bias or without; the NumPy reference; torch's own.
NORMS: dict[str, tuple[Callable[[bool], nn.Module], Reference, Callable[[], nn.Module]]] = {
    "batch": (
        lambda bias: BatchNormUncentred2d(CHANNELS, bias=bias),
        batch_reference,
        lambda: nn.BatchNorm2d(CHANNELS),
    ),
    "group": (
        lambda bias: GroupNorm(3, CHANNELS, bias=bias),
        group_reference(3),
        lambda: nn.GroupNorm(3, CHANNELS),
    ),
    "all channels": (
        lambda bias: GroupNorm(1, CHANNELS, bias=bias),
        group_reference(1),
        lambda: nn.GroupNorm(1, CHANNELS),
    ),
    "position": (
        lambda bias: LayerNorm2d(CHANNELS, bias=bias),
        position_reference,
        lambda: ChannelsLast(nn.LayerNorm(CHANNELS)),
    ),
    "layer": (
        lambda bias: LayerNorm(SHAPE[2:], bias=bias),
        layer_reference,
        lambda: nn.LayerNorm(SHAPE[2:]),
    ),
}


class ChannelsLast(nn.Module):
    """A norm of torch's, applied to the channels."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias, self.norm = norm.weight, norm.bias, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def filled(norm: nn.Module) -> nn.Module:
    """In float64, with weights, biases and running statistics that show when they are forgotten."""
    torch.manual_seed(0)
    norm.double()
    with torch.no_grad():
        for name, value in sorted([*norm.named_parameters(), *norm.named_buffers()]):
            if value.is_floating_point():
                value.uniform_(*(-1, 1) if name.endswith(("bias", "mean")) else (0.5, 2))
    return norm


@pytest.fixture(params=NORMS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def data(mean: float = 0.7) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(SHAPE, dtype=torch.double) * torch.arange(1, CHANNELS + 1)[:, None, None] + mean


def test_norms_without_a_bias_agree_with_numpy(kind: str) -> None:
    build, reference, _ = NORMS[kind]
    norm = filled(build(False))
    expected = reference(data().numpy(), norm.weight.detach().numpy())
    torch.testing.assert_close(norm(data()), torch.from_numpy(expected))
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("training", [True, False])
def test_norms_start_out_as_those_of_torch(kind: str, training: bool) -> None:
    build, _, conventional = NORMS[kind]
    ours, theirs = filled(build(True)).train(training), filled(conventional()).train(training)
    fade(ours, 0)
    assert torch.equal(ours.weight, theirs.weight)  # filled in the same order
    torch.testing.assert_close(ours(data()), theirs(data()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_norms_end_without_a_bias(kind: str, training: bool) -> None:
    build, *_ = NORMS[kind]
    with_bias, without = filled(build(True)).train(training), build(False).double().train(training)
    without.load_state_dict({name: with_bias.state_dict()[name] for name in without.state_dict()})
    assert torch.equal(with_bias(data()), without(data()))


def test_halfway_is_halfway(kind: str) -> None:
    norm = filled(NORMS[kind][0](True)).eval()
    out = []
    for progress in (0.0, 0.25, 1.0):
        fade(norm, progress)
        out.append(norm(data()))
    torch.testing.assert_close(out[1], 0.75 * out[0] + 0.25 * out[2])
    assert not torch.allclose(out[0], out[2], atol=0.1)


def frozen_norm(norm: nn.Module, kind: str, encoded: Tensor, image: int) -> Callable[[Tensor], Tensor]:
    """The norm as a function of one image, with the scales that it has for this image of `encoded`."""
    weight, bias = norm.weight.detach(), (1 - norm.progress) * norm.bias.detach()
    if kind != "layer":
        weight, bias = weight[:, None, None], bias[:, None, None]
    if kind == "batch":
        mean, variance = encoded.mean(dim=(0, 2, 3)), encoded.var(dim=(0, 2, 3), unbiased=False)
        if not norm.training:
            mean, variance = norm.running_mean, norm.running_var
        factor = weight / (variance[:, None, None] + EPS).sqrt()
        return lambda x: x * factor + bias - (1 - norm.progress) * mean[:, None, None] * factor
    dims = {"position": [0], "layer": [1, 2], "all channels": [0, 1, 2], "group": [1, 2, 3]}[kind]

    def centred(x: Tensor) -> Tensor:
        x = x.unflatten(0, (3, -1)) if kind == "group" else x
        return x - x.mean(dim=dims, keepdim=True)

    scale = (centred(encoded[image]).square().mean(dim=dims, keepdim=True) + EPS).rsqrt()
    return lambda x: (centred(x) * scale).reshape(x.shape) * weight + bias


@pytest.mark.parametrize("progress", [0, 0.4, 1])
@pytest.mark.parametrize("training", [True, False])
def test_dynamic_matrix_and_the_share_of_the_bias(kind: str, training: bool, progress: float) -> None:
    norm = filled(LayerNorm((2, 3), bias=True) if kind == "layer" else NORMS[kind][0](True)).train(training)
    fade(norm, progress)
    images = torch.rand(2, 3, 2, 3, dtype=torch.double)
    with explaining() as trace:
        out = norm(encode_colours(images)).flatten(1)
        maps = linear_maps(out, trace)
    encoded = torch.cat([images, 1 - images], dim=1)
    for n, x in enumerate(encoded):
        reference = frozen_norm(norm, kind, encoded, n)
        expected = jacobian(reference, x).reshape(x.numel(), *x.shape)
        torch.testing.assert_close(maps.weights[n], expected, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(maps.constants[n], reference(torch.zeros_like(x)).flatten(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(out[n].detach(), reference(x).flatten(), rtol=1e-9, atol=1e-11)
    assert (maps.constants == 0).all() == (progress == 1)


def test_batch_norm_does_not_centre() -> None:
    norm = filled(BatchNormUncentred2d(CHANNELS))
    assert (norm(data(mean=5)) / data(mean=5) > 0).all()  # a subtracted mean would turn signs around


def test_the_gradient_in_training_sees_the_statistics(kind: str) -> None:
    norm = filled(NORMS[kind][0](False)) if kind != "layer" else filled(LayerNorm((2, 3)))
    x = data()[:2, :, :2, :3]
    ordinary = jacobian(norm, x)
    with explaining():
        dynamic = jacobian(norm, x)
    assert not torch.allclose(ordinary, dynamic, atol=1e-3)


def test_norms_without_weights() -> None:
    torch.testing.assert_close(
        LayerNorm(5, affine=False)(data()), nn.LayerNorm(5, elementwise_affine=False)(data()), rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(
        GroupNorm(2, CHANNELS, affine=False)(data()),
        nn.GroupNorm(2, CHANNELS, affine=False)(data()),
        rtol=1e-10,
        atol=1e-12,
    )
    assert not list(LayerNorm(5, affine=False).parameters())
    assert not list(GroupNorm(2, CHANNELS, affine=False).parameters())


@pytest.mark.parametrize("shape", [(4, CHANNELS), (4, CHANNELS, 7)])
def test_batch_norm_of_vectors_and_sequences(shape: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    ours, theirs = filled(BatchNormUncentred2d(CHANNELS, bias=True)), filled(nn.BatchNorm1d(CHANNELS))
    fade(ours, 0)
    x = torch.randn(shape, dtype=torch.double)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 1.0])
def test_eps_is_that_of_torch(eps: float) -> None:
    x = 0.1 * data()
    for ours, theirs in (
        (BatchNormUncentred2d(CHANNELS, eps, bias=True), nn.BatchNorm2d(CHANNELS, eps)),
        (GroupNorm(2, CHANNELS, eps), nn.GroupNorm(2, CHANNELS, eps)),
        (LayerNorm(5, eps), nn.LayerNorm(5, eps)),
    ):
        fade(ours, 0)
        torch.testing.assert_close(ours.double()(x), theirs.double()(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_running_statistics_move_towards_the_batch_by_the_momentum(bias: bool) -> None:
    norm = BatchNormUncentred2d(CHANNELS, momentum=0.25, bias=bias).double()
    theirs = nn.BatchNorm2d(CHANNELS, momentum=0.25).double()
    variance = np.ones(CHANNELS)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(SHAPE, dtype=torch.double) * (seed + 1) + seed
        norm(x)
        theirs(x)
        variance = 0.75 * variance + 0.25 * x.numpy().var(axis=(0, 2, 3))
    torch.testing.assert_close(norm.running_var, torch.from_numpy(variance))
    count = SHAPE[0] * SHAPE[2] * SHAPE[3]  # torch keeps unbiased variances
    unbiased = 0.75**3 + (norm.running_var - 0.75**3) * count / (count - 1)
    torch.testing.assert_close(theirs.running_var, unbiased)
    if bias:
        torch.testing.assert_close(norm.running_mean, theirs.running_mean)
    assert hasattr(norm, "running_mean") == bias


@pytest.mark.parametrize("bias", [True, False])
def test_evaluation_uses_the_running_statistics_and_leaves_them_alone(bias: bool) -> None:
    norm, x = filled(BatchNormUncentred2d(CHANNELS, bias=bias)).eval(), data()
    before = {name: value.clone() for name, value in norm.named_buffers()}
    expected = x * norm.weight[:, None, None] / (before["running_var"][:, None, None] + EPS).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())
    assert torch.equal(norm(x[1:2]), norm(x)[1:2])


def test_training_depends_on_the_batch() -> None:
    norm, x = BatchNormUncentred2d(CHANNELS).double(), data()
    assert not torch.allclose(norm(x[1:2]), norm(x)[1:2])


@pytest.mark.parametrize("progress", [0, 0.5, 1])
def test_gradients_flow_through_the_batch_statistics(progress: float) -> None:
    torch.manual_seed(4)
    norm = BatchNormUncentred2d(2, bias=True).double()
    fade(norm, progress)
    x = torch.randn(2, 2, 2, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))
    assert not norm.running_var.requires_grad
    assert not norm.running_mean.requires_grad


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_flat_image_is_harmless(kind: str, value: float) -> None:
    norm, x = NORMS[kind][0](True), torch.full(SHAPE, value, requires_grad=True)
    fade(norm, 0.5)
    out = norm(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("progress", [0, 1])
def test_bfloat16_is_close_to_float32(kind: str, progress: float) -> None:
    norm, x = NORMS[kind][0](True), data().float()
    fade(norm, progress)
    out = norm(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), norm(x), rtol=0.03, atol=0.03)


def test_groups_must_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="7 channels do not divide into 2 groups"):
        GroupNorm(2, 7)


def test_renewed_statistics_are_means_over_batches() -> None:
    network = nn.Sequential(BatchNormUncentred2d(CHANNELS), BatchNormUncentred2d(CHANNELS)).double().eval()
    first, second = network
    assert isinstance(first, BatchNormUncentred2d) and isinstance(second, BatchNormUncentred2d)
    first.running_var.fill_(77.0)
    batches = [torch.randn(number, *SHAPE[1:], dtype=torch.float64) * number for number in (3, 5, 2)]
    renew_statistics(network, batches)
    arrays = [batch.numpy() for batch in batches]
    variances = np.mean([array.var(axis=(0, 2, 3)) for array in arrays], axis=0)
    np.testing.assert_allclose(first.running_var, variances)
    # The second norm sees what the first makes of each batch.
    seen = [batch_reference(array, np.ones(CHANNELS)) for array in arrays]
    np.testing.assert_allclose(second.running_var, np.mean([array.var(axis=(0, 2, 3)) for array in seen], axis=0))
    assert first.momentum == 0.1 and not first.training
