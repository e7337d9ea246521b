"""Gates compute what their module computes; while explaining, `W(x)` is the diagonal of `m(x) / x`."""

import pytest
import torch
from timm.layers import SEModule
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torchvision.ops import SqueezeExcitation

from sic.bcos import Gate, explaining

GATES = {
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Hardswish": nn.Hardswish,
    "ReLU6": lambda: nn.ReLU6(inplace=True),
    "Tanh": nn.Tanh,
    "ELU": nn.ELU,
    "RMSNorm": lambda: nn.RMSNorm(3),
    "SqueezeExcitation": lambda: SqueezeExcitation(4, 2),
    "SEModule": lambda: SEModule(4, rd_channels=2),
}


@pytest.fixture(params=GATES)
def module(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return GATES[request.param]().double()


def data() -> Tensor:
    torch.manual_seed(1)
    return 3 * torch.randn(1, 4, 2, 3, dtype=torch.double)


def test_a_gate_computes_what_its_module_computes(module: nn.Module) -> None:
    expected = module(data())
    assert torch.equal(Gate(module)(data()), expected)
    with explaining():
        torch.testing.assert_close(Gate(module)(data()), expected, rtol=1e-14, atol=1e-16)


def test_the_factor_is_the_dynamic_weight(module: nn.Module) -> None:
    x = data()
    with explaining():
        dynamic = jacobian(Gate(module), x).reshape(x.numel(), x.numel())
    out = module(x.clone())
    torch.testing.assert_close(dynamic, torch.diag((out / x).flatten()), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(dynamic @ x.flatten(), out.flatten(), rtol=1e-12, atol=1e-14)


def test_training_sees_the_ordinary_gradient(module: nn.Module) -> None:
    x = data()
    ordinary = jacobian(lambda x: Gate(module)(x.clone()), x)
    assert torch.equal(ordinary, jacobian(lambda x: module(x.clone()), x))
    with explaining():
        dynamic = jacobian(Gate(module), x)
    assert not torch.allclose(ordinary, dynamic, atol=1e-3)


def test_nothing_in_gives_nothing_out(module: nn.Module) -> None:
    x = data()
    x[0, 1] = 0
    with explaining():
        leaf = x.requires_grad_()
        out = Gate(module)(leaf)
        (weights,) = torch.autograd.grad(out.sum(), leaf)
    assert (out[0, 1] == 0).all()
    assert weights.isfinite().all()
    assert (weights[0, 1] == 0).all()


def test_a_module_that_works_in_place_does_not_spoil_the_explanation() -> None:
    x = 10 * torch.randn(5)
    before = x.clone()
    with explaining():
        torch.testing.assert_close(Gate(nn.ReLU6(inplace=True))(x), before.clamp(0, 6))
    assert torch.equal(x, before)
