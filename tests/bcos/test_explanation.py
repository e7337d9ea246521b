"""Explanation mode: seen by one thread only, gone when left, and without traces in the model."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from sic import backbones
from sic.bcos import (
    BcosLinear,
    LinearMaps,
    constant,
    encode_colours,
    explaining,
    is_explaining,
    linear_maps,
)
from sic.bcos.explanation import constant_parameter
from tests.models import norms_take_the_next_batch


def settled(name: str) -> nn.Module:
    """A backbone whose norms have seen one batch, so that activations have a useful size."""
    torch.manual_seed(0)
    net = backbones.create(name)
    norms_take_the_next_batch(net)
    with torch.no_grad():
        net.train()(torch.rand(8, 3, 24, 24))
    return net.eval()


@pytest.fixture(scope="module", params=["resnet_tiny", "vit_small"])
def net(request: pytest.FixtureRequest) -> nn.Module:
    return settled(request.param)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(3, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def explain(net: nn.Module, images: Tensor) -> LinearMaps:
    with explaining() as trace:
        return linear_maps(net(images)[:, :2], trace)


def same(a: LinearMaps, b: LinearMaps) -> bool:
    return torch.equal(a.weights, b.weights) and torch.equal(a.constants, b.constants)


def in_another_thread(function: Callable[[], Tensor]) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=600)


def test_explaining_twice_gives_the_same_and_leaves_nothing_behind(net: nn.Module, images: Tensor) -> None:
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert same(explain(net, images), explain(net, images))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not images.requires_grad
    assert images.grad is None
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_explaining_does_not_touch_gradients_that_are_there(net: nn.Module, images: Tensor) -> None:
    net(images).sum().backward()
    before = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    explain(net, images)
    after = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert before
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    net.zero_grad(set_to_none=True)


def test_two_threads_explain_as_one_would(net: nn.Module, images: Tensor) -> None:
    parts = [images[:1], images[1:]]
    alone = [explain(net, part) for part in parts]
    barrier = threading.Barrier(2)

    def work(part: Tensor) -> list[LinearMaps]:
        results = []
        for _ in range(5):
            barrier.wait(timeout=600)
            results.append(explain(net, part))
        return results

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(work, parts))
    for expected, rounds in zip(alone, together, strict=True):
        for got in rounds:
            torch.testing.assert_close(got.weights, expected.weights, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(got.constants, expected.constants, rtol=1e-5, atol=1e-7)


def test_another_thread_does_not_see_the_mode() -> None:
    torch.manual_seed(2)
    layer, x = BcosLinear(5, 4), torch.randn(5)
    ordinary = jacobian(layer, x)
    with explaining():
        assert is_explaining()
        assert torch.equal(in_another_thread(lambda: jacobian(layer, x)), ordinary)
        assert in_another_thread(lambda: torch.tensor(is_explaining())).item() is False
        assert not torch.allclose(jacobian(layer, x), ordinary, atol=1e-3)
    assert torch.equal(jacobian(layer, x), ordinary)


def test_training_goes_on_in_another_thread(net: nn.Module, images: Tensor) -> None:
    def gradient() -> Tensor:
        grads = torch.autograd.grad(net(images).square().sum(), list(net.parameters()))
        return torch.cat([g.flatten() for g in grads])

    with explaining() as trace:
        outputs = net(images)[:, :2]
        meanwhile = in_another_thread(gradient)
        maps = linear_maps(outputs, trace)
    torch.testing.assert_close(meanwhile, gradient(), rtol=1e-4, atol=1e-5)
    assert same(maps, explain(net, images))


def test_an_exception_turns_the_mode_off() -> None:
    with pytest.raises(ZeroDivisionError), explaining():
        raise ZeroDivisionError
    assert not is_explaining()
    x = torch.rand(1, 3, 2, 2, requires_grad=True)
    assert encode_colours(x).grad_fn is not None  # an ordinary forward pass again


def test_contexts_inside_one_another_are_separate(images: Tensor) -> None:
    with explaining() as outer:
        encode_colours(images)
        with explaining() as inner:
            encode_colours(images[:1])
        assert is_explaining()
        assert inner.source is not None
        assert len(inner.source) == 1
    assert outer.source is not None
    assert len(outer.source) == 3
    assert not is_explaining()


def test_one_context_explains_one_forward_pass(net: nn.Module, images: Tensor) -> None:
    with explaining():
        net(images)
        with pytest.raises(RuntimeError, match="one explanation context explains one forward pass"):
            net(images)
    explain(net, images)


def test_there_must_be_something_to_explain() -> None:
    with explaining() as trace, pytest.raises(RuntimeError, match="nothing was encoded"):
        linear_maps(torch.zeros(1, 1), trace)


@pytest.mark.parametrize(
    "surroundings",
    [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["inference mode", "no_grad", "autocast"],
)
def test_the_surroundings_of_the_caller_do_not_matter(
    net: nn.Module, images: Tensor, surroundings: Callable[[], AbstractContextManager[None]]
) -> None:
    expected = explain(net, images)
    with surroundings():
        own = images + 0  # made here: an inference tensor, for one
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        got = explain(net, own)
        assert state == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    assert got.weights.dtype == torch.float32
    assert same(got, expected)


class Affine(nn.Module):
    """`A [x, 1 - x] + c`: what its parts are is plain to see."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 24))
        self.term = nn.Parameter(torch.randn(1, 3))

    def forward(self, encoded: Tensor) -> Tensor:
        return encoded.flatten(1) @ self.matrix.T + constant(self.term, len(encoded))


def test_an_input_independent_term_gets_a_share_of_its_own() -> None:
    torch.manual_seed(3)
    net, images = Affine(), torch.rand(2, 3, 2, 2)
    with explaining() as trace:
        maps = linear_maps(net(encode_colours(images)), trace)
    torch.testing.assert_close(maps.constants, net.term.detach().expand(2, 3))
    torch.testing.assert_close(maps.weights, net.matrix.detach().view(3, 6, 2, 2).expand(2, 3, 6, 2, 2))


def test_an_input_independent_term_is_trained_as_usual() -> None:
    torch.manual_seed(4)
    net = Affine()
    net(encode_colours(torch.rand(5, 3, 2, 2))).sum().backward()
    torch.testing.assert_close(net.term.grad, torch.full((1, 3), 5.0))


def test_a_parameter_is_itself_unless_it_is_explained() -> None:
    parameter = nn.Parameter(torch.randn(1, 4, 5))
    assert constant_parameter(parameter) is parameter
    with explaining() as trace:
        encode_colours(torch.rand(3, 3, 2, 2))
        copies = constant_parameter(parameter)
        assert torch.equal(copies, parameter.detach().expand(3, 4, 5))
        assert [copy is copies for copy in trace.constants] == [True]
    assert constant_parameter(parameter) is parameter


def test_rows_of_one_input_share_its_constants() -> None:
    """Layers that see each image as several rows, one image's after the other's."""
    with explaining() as trace:
        encoded = encode_colours(torch.rand(2, 3, 2, 2)).flatten(1)
        windows = encoded.reshape(6, 8) + constant(torch.ones(1, 8), 6)
        maps = linear_maps((windows.reshape(2, 24) * torch.tensor([[1.0], [10.0]])).sum(1, keepdim=True), trace)
    torch.testing.assert_close(maps.constants, torch.tensor([[24.0], [240.0]]))


def test_an_output_that_ignores_the_input_has_no_pixels() -> None:
    with explaining() as trace:
        encode_colours(torch.rand(2, 3, 2, 2))
        maps = linear_maps(constant(torch.tensor([[1.0, -2.0]]), 2), trace)
    assert (maps.weights == 0).all()
    torch.testing.assert_close(maps.constants, torch.tensor([[1.0, -2.0], [1.0, -2.0]]))


def test_only_transformers_have_a_share_of_positions(images: Tensor) -> None:
    assert (explain(settled("resnet_tiny"), images).constants == 0).all()
    assert (explain(settled("vit_small"), images).constants.abs() > 1e-3).all()
