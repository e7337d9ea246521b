"""B-cos layers against the definition `‖x‖ · |cos|^B · sgn cos`, patch by patch, and `W(x)` against the Jacobian."""

import itertools

import pytest
import torch
from timm.layers import SEModule
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torchvision.ops import SqueezeExcitation

from sic.bcos import (
    BcosAttention,
    BcosConv2d,
    BcosLinear,
    Gate,
    GroupNorm,
    bcos_similarity,
    encode_colours,
    explaining,
    fade,
    linear_maps,
    remove_biases,
)
from sic.bcos.layers import Fading, scaled, sum_of_squares

BS = (1, 1.5, 2, 3)
CONVOLUTIONS = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (1, 3), "padding": (0, 1)},
    {"kernel_size": (4, 2), "stride": (1, 2), "padding": (2, 0)},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 4},
]


def unit(x: Tensor, w: Tensor, b: float) -> float:
    """One B-cos unit, by the book."""
    if x.norm() == 0:
        return 0.0
    cosine = (x @ w / (x.norm() * w.norm())).item()
    return x.norm().item() * abs(cosine) ** b * (1 if cosine > 0 else -1)


def dynamic_row(x: Tensor, w: Tensor, b: float) -> Tensor:
    """The row of `W(x)` of one unit: `|cos|^(B-1) ŵ`."""
    cosine = x @ w / (x.norm() * w.norm())
    return cosine.abs() ** (b - 1) * w / w.norm()


def length(layer: BcosLinear | BcosConv2d, out: int) -> float:
    """What the norm of a unit's weights scales its output by."""
    return 1.0 if layer.unit else layer.weight[out].detach().norm().item()


def patch(layer: BcosConv2d, padded: Tensor, out: int, row: int, column: int) -> tuple[slice, list[int], list[int]]:
    """Channels, rows and columns of the padded image (C×H×W) that one output unit looks at."""
    size = layer.in_channels // layer.groups
    group = out // (layer.out_channels // layer.groups)
    rows = [row * layer.stride[0] + i * layer.dilation[0] for i in range(layer.kernel_size[0])]
    columns = [column * layer.stride[1] + i * layer.dilation[1] for i in range(layer.kernel_size[1])]
    assert rows[-1] < padded.shape[1]
    assert columns[-1] < padded.shape[2]
    return slice(group * size, (group + 1) * size), rows, columns


def pad(layer: BcosConv2d, image: Tensor) -> Tensor:
    assert isinstance(layer.padding, tuple)
    vertical, horizontal = layer.padding
    padded = image.new_zeros(image.shape[0], image.shape[1] + 2 * vertical, image.shape[2] + 2 * horizontal)
    padded[:, vertical : vertical + image.shape[1], horizontal : horizontal + image.shape[2]] = image
    return padded


def slow_convolution(layer: BcosConv2d, images: Tensor) -> Tensor:
    height, width = layer(images).shape[2:]
    result = images.new_zeros(len(images), layer.out_channels, height, width)
    for n, out, row, column in itertools.product(*map(range, result.shape)):
        padded = pad(layer, images[n])
        channels, rows, columns = patch(layer, padded, out, row, column)
        x = padded[channels][:, rows][:, :, columns].flatten()
        value = unit(x, layer.weight[out].detach().flatten(), 1 + layer.progress * (layer.b - 1))
        result[n, out, row, column] = value * length(layer, out)
        if layer.bias is not None:
            result[n, out, row, column] += (1 - layer.progress) * layer.bias[out].item()
    return result


def slow_matrix(layer: BcosConv2d, image: Tensor) -> Tensor:
    """`W(x)` of a convolution for one image, outputs × inputs, built row by row."""
    shape = layer(image[None]).shape[1:]
    height, width = image.shape[1:]
    top, left = layer.padding
    assert isinstance(top, int)
    assert isinstance(left, int)
    result = []
    for out, row, column in itertools.product(*map(range, shape)):
        padded = pad(layer, image)
        channels, rows, columns = patch(layer, padded, out, row, column)
        x = padded[channels][:, rows][:, :, columns]
        b = 1 + layer.progress * (layer.b - 1)
        weights = dynamic_row(x.flatten(), layer.weight[out].detach().flatten(), b).view(x.shape) * length(layer, out)
        full = torch.zeros_like(padded)
        for i, r in enumerate(rows):
            for j, c in enumerate(columns):
                full[channels, r, c] += weights[:, i, j]
        result.append(full[:, top : top + height, left : left + width].flatten())
    return torch.stack(result)


def jacobian_matrix(layer: nn.Module, x: Tensor) -> Tensor:
    return jacobian(layer, x).reshape(-1, x.numel())


@pytest.mark.parametrize("b", BS)
def test_linear_layers_follow_the_definition(b: float) -> None:
    torch.manual_seed(0)
    layer, x = BcosLinear(7, 5, b).double(), torch.randn(2, 3, 7, dtype=torch.double)
    expected = torch.tensor(
        [[[unit(v, w, b) for w in layer.weight.detach()] for v in row] for row in x], dtype=torch.double
    )
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("b", BS)
@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
def test_convolutions_follow_the_definition(b: float, settings: dict[str, int]) -> None:
    torch.manual_seed(1)
    layer, x = BcosConv2d(4, 8, **settings, b=b).double(), torch.randn(2, 4, 6, 5, dtype=torch.double)
    torch.testing.assert_close(layer(x), slow_convolution(layer, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("b", BS)
def test_similarities_follow_the_definition(b: float) -> None:
    torch.manual_seed(2)
    x, vectors = torch.randn(3, 6, dtype=torch.double), 5 * torch.randn(4, 6, dtype=torch.double)
    expected = torch.tensor([[unit(row, v, b) for v in vectors] for row in x], dtype=torch.double)
    torch.testing.assert_close(bcos_similarity(x, vectors, b), expected, rtol=1e-4, atol=1e-6)


def test_a_vector_is_as_similar_to_itself_as_it_is_long() -> None:
    v = torch.randn(1, 6, dtype=torch.double)
    assert bcos_similarity(v, 3 * v).item() == pytest.approx(v.norm().item())
    assert bcos_similarity(v, -v).item() == pytest.approx(-v.norm().item())


@pytest.mark.parametrize("b", BS)
def test_dynamic_matrix_of_a_linear_layer(b: float) -> None:
    torch.manual_seed(3)
    layer, x = BcosLinear(7, 5, b).double(), torch.randn(7, dtype=torch.double)
    with explaining():
        dynamic = jacobian(layer, x)
    expected = torch.stack([dynamic_row(x, w, b) for w in layer.weight.detach()])
    torch.testing.assert_close(dynamic, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dynamic @ x, layer(x), rtol=1e-12, atol=1e-14)
    assert torch.allclose(jacobian(layer, x), dynamic, atol=1e-3) == (b == 1)


@pytest.mark.parametrize("b", BS)
@pytest.mark.parametrize("settings", CONVOLUTIONS[1:], ids=str)
def test_dynamic_matrix_of_a_convolution(b: float, settings: dict[str, int]) -> None:
    torch.manual_seed(4)
    layer, x = BcosConv2d(4, 4, **settings, b=b).double(), torch.randn(4, 5, 4, dtype=torch.double)
    with explaining():
        dynamic = jacobian_matrix(layer, x[None])
    torch.testing.assert_close(dynamic, slow_matrix(layer, x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dynamic @ x.flatten(), layer(x[None]).flatten(), rtol=1e-11, atol=1e-13)
    assert torch.allclose(jacobian_matrix(layer, x[None]), dynamic, atol=1e-3) == (b == 1)


@pytest.mark.parametrize("b", BS)
def test_dynamic_matrix_of_similarities(b: float) -> None:
    torch.manual_seed(5)
    x, vectors = torch.randn(6, dtype=torch.double), torch.randn(4, 6, dtype=torch.double)

    def similarities(x: Tensor) -> Tensor:
        return bcos_similarity(x[None], vectors, b)[0]

    with explaining():
        dynamic = jacobian(similarities, x)
    torch.testing.assert_close(dynamic, torch.stack([dynamic_row(x, v, b) for v in vectors]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dynamic @ x, similarities(x), rtol=1e-12, atol=1e-14)
    assert torch.allclose(jacobian(similarities, x), dynamic, atol=1e-3) == (b == 1)


@pytest.mark.parametrize("b", BS)
@pytest.mark.parametrize("kind", ["linear", "convolution", "similarity"])
def test_nothing_in_gives_nothing_out_and_finite_gradients(b: float, kind: str) -> None:
    torch.manual_seed(6)
    layer: nn.Module = BcosConv2d(3, 4, 3, padding=1, b=b) if kind == "convolution" else BcosLinear(3, 4, b)
    x = torch.zeros(2, 3, 4, 4) if kind == "convolution" else torch.zeros(2, 3)
    x.requires_grad_()
    out = bcos_similarity(x, layer.weight, b) if kind == "similarity" else layer(x)
    assert (out == 0).all()
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("b", BS)
def test_a_black_corner_does_not_disturb_the_rest(b: float) -> None:
    torch.manual_seed(7)
    layer, x = BcosConv2d(3, 4, 3, b=b), torch.rand(1, 3, 8, 8)
    x[..., :4, :4] = 0
    x.requires_grad_()
    out = layer(x)
    out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (out[..., :2, :2] == 0).all()
    assert (out[..., 4:, 4:] != 0).all()


@pytest.mark.parametrize("b", BS)
def test_a_zero_weight_gives_zero_and_finite_gradients(b: float) -> None:
    layer, x = BcosLinear(3, 2, b), torch.randn(4, 3)
    with torch.no_grad():
        layer.weight[0] = 0
    out = layer(x)
    out.sum().backward()
    assert (out[:, 0] == 0).all()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()
    similarity = bcos_similarity(x, torch.zeros(1, 3), b)
    assert (similarity == 0).all()


def test_the_length_of_a_weight_does_not_matter() -> None:
    torch.manual_seed(8)
    linear, conv = BcosLinear(5, 4), BcosConv2d(3, 4, 3)
    x, image = torch.randn(2, 5), torch.randn(1, 3, 5, 5)
    before = linear(x), conv(image)
    with torch.no_grad():
        linear.weight *= 7
        conv.weight *= 0.3
    torch.testing.assert_close((linear(x), conv(image)), before)


def faded(layer: nn.Module, progress: float) -> nn.Module:
    """In float64, with a large bias where there is one."""
    fade(layer, progress)
    layer.double()
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("progress", [0, 0.3, 1])
@pytest.mark.parametrize("settings", CONVOLUTIONS[1::2], ids=str)
def test_a_fading_convolution_is_what_the_loop_says(settings: dict[str, int], progress: float) -> None:
    torch.manual_seed(12)
    layer = faded(BcosConv2d(4, 4, **settings, unit=False, bias=True), progress)
    images = torch.randn(2, 4, 6, 5, dtype=torch.double)
    torch.testing.assert_close(layer(images), slow_convolution(layer, images), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("unit_weights", [True, False])
@pytest.mark.parametrize("b", BS)
@pytest.mark.parametrize("progress", [0, 0.3, 0.5, 1])
def test_a_fading_linear_layer_is_what_the_loop_says(progress: float, b: float, unit_weights: bool) -> None:
    torch.manual_seed(13)
    layer = faded(BcosLinear(7, 5, b, unit=unit_weights, bias=True), progress)
    x = torch.randn(3, 7, dtype=torch.double)
    expected = torch.tensor(
        [
            [
                unit(row, w, 1 + progress * (b - 1)) * length(layer, out) + (1 - progress) * layer.bias[out].item()
                for out, w in enumerate(layer.weight.detach())
            ]
            for row in x
        ],
        dtype=torch.double,
    )
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_starts_out_as_that_of_torch(settings: dict[str, int], bias: bool) -> None:
    torch.manual_seed(14)
    theirs = nn.Conv2d(4, 8, **settings, bias=bias).double()
    ours = faded(BcosConv2d(4, 8, **settings, unit=False, bias=bias), 0)
    ours.load_state_dict(theirs.state_dict())  # the same names
    x = torch.randn(2, 4, 7, 6, dtype=torch.double)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "bias"), [((3, 7), True), ((2, 4, 7), True), ((3, 7), False), ((2, 4, 7), False), ((7,), False)]
)
def test_a_linear_layer_starts_out_as_that_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(15)
    theirs = nn.Linear(7, 5, bias=bias).double()
    ours = faded(BcosLinear(7, 5, unit=False, bias=bias), 0)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(shape, dtype=torch.double)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-14, atol=1e-14)


def test_progress_raises_b() -> None:
    layer = BcosLinear(3, 2, b=2.5)
    got = []
    for progress in (0, 0.5, 1):
        fade(layer, progress)
        got.append(layer.current_b)
    assert got == [1, 1.75, 2.5]


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_without_unit_weights_their_length_scales_the_output(kind: str) -> None:
    torch.manual_seed(16)
    layer: nn.Module = BcosLinear(6, 4, unit=False) if kind == "linear" else BcosConv2d(3, 4, 3, unit=False)
    x = torch.randn(2, 6) if kind == "linear" else torch.randn(2, 3, 5, 5)
    before = layer(x)
    with torch.no_grad():
        layer.weight *= 7
    torch.testing.assert_close(layer(x), 7 * before)


@pytest.mark.parametrize("unit_weights", [True, False])
@pytest.mark.parametrize("progress", [0, 0.4, 1])
@pytest.mark.parametrize(
    "settings", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2}], ids=str
)
def test_dynamic_matrix_and_the_share_of_the_bias(
    settings: dict[str, int], progress: float, unit_weights: bool
) -> None:
    torch.manual_seed(17)
    layer = faded(BcosConv2d(6, 4, **settings, unit=unit_weights, bias=True), progress)
    images = torch.rand(2, 3, 4, 3, dtype=torch.double)
    with explaining() as trace:
        out = layer(encode_colours(images))
        maps = linear_maps(out.flatten(1), trace)
    for n, x in enumerate(torch.cat([images, 1 - images], dim=1)):
        expected = slow_matrix(layer, x)
        torch.testing.assert_close(maps.weights[n].flatten(1), expected, rtol=1e-3, atol=1e-5)
        bias = ((1 - progress) * layer.bias.detach())[:, None, None].expand(out.shape[1:])
        torch.testing.assert_close(maps.constants[n], bias.flatten())
        values = maps.weights[n].flatten(1) @ x.flatten() + maps.constants[n]
        torch.testing.assert_close(values, out[n].detach().flatten(), rtol=1e-11, atol=1e-13)
    assert (maps.constants == 0).all() == (progress == 1)


@pytest.mark.parametrize("progress", [0, 0.4, 1])
def test_dynamic_matrix_of_a_fading_linear_layer(progress: float) -> None:
    torch.manual_seed(18)
    layer = faded(BcosLinear(24, 3, unit=False, bias=True), progress)
    images = torch.rand(2, 3, 2, 2, dtype=torch.double)
    with explaining() as trace:
        maps = linear_maps(layer(encode_colours(images).flatten(1)), trace)
    for n, x in enumerate(torch.cat([images, 1 - images], dim=1).flatten(1)):
        rows = [dynamic_row(x, w, 1 + progress) * w.norm() for w in layer.weight.detach()]
        torch.testing.assert_close(maps.weights[n].flatten(1), torch.stack(rows), rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(maps.constants[n], (1 - progress) * layer.bias.detach())


@pytest.mark.parametrize("progress", [0, 0.5, 1])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_bias_is_trained_as_far_as_it_is_there(kind: str, progress: float) -> None:
    layer: nn.Module = BcosLinear(6, 4, bias=True) if kind == "linear" else BcosConv2d(3, 4, 3, bias=True)
    fade(layer, progress)
    x = torch.randn(2, 6) if kind == "linear" else torch.randn(2, 3, 3, 3)
    layer(x).sum().backward()
    if progress == 1:
        assert layer.bias.grad is None
    else:
        torch.testing.assert_close(layer.bias.grad, torch.full((4,), 2.0 * (1 - progress)))


@pytest.mark.parametrize("layer", [BcosLinear(3, 2), BcosConv2d(3, 2, 1)], ids=["linear", "convolution"])
def test_there_is_no_bias(layer: nn.Module) -> None:
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


@pytest.mark.parametrize("b", [0, 0.5, -2])
def test_b_below_one_is_refused(b: float) -> None:
    with pytest.raises(ValueError, match="B must be at least 1"):
        BcosLinear(3, 2, b)
    with pytest.raises(ValueError, match="B must be at least 1"):
        BcosConv2d(3, 2, 1, b=b)


@pytest.mark.parametrize("b", BS)
@pytest.mark.parametrize("kind", ["linear", "convolution", "grouped convolution"])
def test_bfloat16_is_close_to_float32(b: float, kind: str) -> None:
    torch.manual_seed(9)
    layer: nn.Module
    if kind == "linear":
        layer, x = BcosLinear(48, 8, b), torch.randn(4, 48)
    else:
        layer = BcosConv2d(8, 8, 3, padding=1, groups=2 if "grouped" in kind else 1, b=b)
        x = torch.randn(2, 8, 6, 6)
    expected = layer(x)
    got = layer.bfloat16()(x.bfloat16())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected, rtol=0.05, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("b", BS)
def test_nothing_in_gives_nothing_out_in_half_precision(b: float, dtype: torch.dtype) -> None:
    """1e-12 is zero in float16: norms have to be taken in float32."""
    torch.manual_seed(10)
    for layer, x in (
        (BcosLinear(6, 4, b), torch.zeros(3, 6)),
        (BcosConv2d(6, 4, 3, padding=1, b=b), torch.zeros(1, 6, 4, 4)),
    ):
        out = layer.to(dtype)(x.to(dtype))
        assert out.dtype == dtype
        assert (out == 0).all()


@pytest.mark.parametrize("b", BS)
def test_float16_is_close_to_float32(b: float) -> None:
    """Also where the squares of the input do not fit into float16."""
    torch.manual_seed(11)
    layer, x = BcosLinear(48, 8, b), 300 * torch.randn(4, 48)
    expected = layer(x)
    got = layer.half()(x.half())
    assert got.isfinite().all()
    torch.testing.assert_close(got.float(), expected, rtol=0.02, atol=2)


def network(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        BcosConv2d(6, 4, 3, bias=bias),
        nn.Sequential(GroupNorm(2, 4, bias=bias), nn.ReLU()),
        BcosLinear(4, 4, bias=bias),
        BcosAttention(4, 2, qkv_bias=bias, out_bias=bias),
    )


def test_layers_are_b_cos_unless_told_otherwise() -> None:
    assert {layer.progress for layer in network().modules() if isinstance(layer, Fading)} == {1.0}


def test_fading_reaches_every_layer() -> None:
    net = network()
    fade(net, 0.25)
    assert [layer.progress for layer in net.modules() if isinstance(layer, Fading)] == [0.25] * 5
    assert [layer.progress for layer in network().modules() if isinstance(layer, Fading)] == [1.0] * 5


@pytest.mark.parametrize(("progress", "left"), [(0, 1.0), (0.25, 0.75), (1, 0.0)])
def test_what_is_left_of_a_bias(progress: float, left: float) -> None:
    layer, x, bias = Fading(), torch.randn(3, 5, 4), torch.randn(4)
    layer.progress = progress
    torch.testing.assert_close(layer.with_bias(x, bias), x + left * bias)
    assert layer.with_bias(x, None) is x


def test_nothing_is_left_for_a_constant_at_the_end() -> None:
    x = torch.randn(3, 4)
    assert Fading().with_bias(x, torch.randn(4)) is x


def test_the_weights_of_a_faded_network_fit_one_without_biases() -> None:
    faded, bare = network(), network(bias=False)
    remove_biases(faded)
    bare.load_state_dict(faded.state_dict())
    x = torch.randn(2, 6, 3, 3)
    assert torch.equal(bare[:2](x), faded[:2](x))
    tokens = torch.randn(2, 5, 4)
    assert torch.equal(bare[2:](tokens), faded[2:](tokens))


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


@pytest.mark.parametrize("shape", [(3, 1, 5, 5), (3, 7, 5, 5)])
def test_the_scale_that_keeps_less_for_the_backward_pass(shape: tuple[int, ...]) -> None:
    """The same outputs, bit by bit, and the gradients of the plain formula."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.randn(3, 7, 5, 5, generator=generator, dtype=torch.float64)
    inverse = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    assert torch.equal(scaled(linear.requires_grad_(), inverse, 2), linear * (linear.abs() * inverse))
    inputs = linear.clone().detach().requires_grad_(), inverse.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: scaled(a, b, 2), inputs)
    assert torch.autograd.gradgradcheck(lambda a, b: scaled(a, b, 2), inputs)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()), lambda x: x):
        scaled(*inputs, 2)
    assert sum(kept) == linear.numel() + inverse.numel()


@pytest.mark.parametrize("dims", [1, (0, 2, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_of_squares_in_every_layout(
    dims: int | tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype).contiguous(memory_format=layout)
    got = sum_of_squares(x, dims, keepdim=True)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), (x.double() ** 2).sum(dims, keepdim=True), rtol=1e-6, atol=0)


def test_layers_made_in_inference_mode_are_explained() -> None:
    with torch.inference_mode():
        layer = BcosConv2d(4, 5, 3)
    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    with explaining():
        out = layer(x)
        (weight,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close((weight * x).sum(), out.sum())
