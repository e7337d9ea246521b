"""The detector of what is not dynamic-linear: it finds the guilty and leaves the others alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from sic.bcos import convert, encode_colours, fade
from sic.bcos.linearity import culprits
from tests.models import randomise, settle


class Around(nn.Module):
    """A convolutional network around some `middle`, which takes and gives N×L×8."""

    def __init__(self, middle: nn.Module, inplace: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU(inplace=inplace))
        self.middle = middle
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((tokens + self.middle(tokens)).mean(dim=1))


class Softmax(nn.Module):
    """Attention by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (30 * self.query(x) @ x.transpose(1, 2)).softmax(dim=-1) @ self.value(x)


class Sigmoid(nn.Module):
    """A gate by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(5 * self.gate(x))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return 5 * self.left(x) * self.right(x)


class Shift(nn.Module):
    """Adds something that nobody has heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()
        self.term = [torch.randn(8)]

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x) + self.term[0]


class Positions(nn.Module):
    """What a converted network adds and has registered."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, 36, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_embed


class Block(nn.Module):
    """Attention, then something else."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.attention, self.other = nn.MultiheadAttention(8, 2, batch_first=True), other

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x + self.attention(x, x, value=x, need_weights=False)[0])


GUILTY = [Softmax, Sigmoid, Product, Shift]
GOOD: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Around(nn.Sequential(Positions(), Block(nn.Linear(8, 8)))),
    "perceptron": lambda: Around(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))),
    "in place": lambda: Around(nn.Linear(8, 8), inplace=True),
    "vit": lambda: models.VisionTransformer(24, 8, 2, 2, 16, 32, num_classes=5),
    "mobilenet": lambda: models.mobilenet_v3_small(num_classes=5),
}


def encoded() -> Tensor:
    return encode_colours(torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0)))


def converted(net: nn.Module, style: str = "bcosified", biases: bool = False) -> nn.Module:
    """With activations of a useful size: where nothing comes out, nothing is wrong."""
    randomise(net, encoded()[:, :3])
    return settle(convert(net, style, biases=biases), encoded())


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
@pytest.mark.parametrize("kind", GOOD)
def test_good_networks_have_no_culprits(kind: str, style: str) -> None:
    torch.manual_seed(0)
    assert culprits(converted(GOOD[kind](), style), encoded()) == []


@pytest.mark.parametrize("progress", [0, 0.5])
@pytest.mark.parametrize("kind", GOOD)
def test_biases_are_no_crime(kind: str, progress: float) -> None:
    torch.manual_seed(0)
    net = converted(GOOD[kind](), biases=True)
    fade(net, progress)
    assert culprits(net, encoded()) == []


@pytest.mark.parametrize("guilty", GUILTY)
def test_the_guilty_one_is_named(guilty: type[nn.Module]) -> None:
    torch.manual_seed(1)
    assert culprits(converted(Around(guilty())), encoded()) == [f"middle ({guilty.__name__})"]


@pytest.mark.parametrize("guilty", GUILTY)
def test_the_innermost_is_named(guilty: type[nn.Module]) -> None:
    torch.manual_seed(2)
    middle = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.GELU(), guilty()), nn.LayerNorm(8))
    assert culprits(converted(Around(middle)), encoded()) == [f"middle.1.1 ({guilty.__name__})"]


def test_all_of_the_guilty_are_named() -> None:
    torch.manual_seed(3)
    net = converted(Around(nn.Sequential(Softmax(), nn.Linear(8, 8), Sigmoid())))
    assert culprits(net, encoded()) == ["middle.0 (Softmax)", "middle.2 (Sigmoid)"]


def test_a_network_may_be_guilty_itself() -> None:
    class Squared(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    torch.manual_seed(4)
    net = convert(Squared(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), "bcosified")
    assert culprits(net, encoded()) == ["the network (Squared)"]


def test_an_unconverted_activation_is_named() -> None:
    torch.manual_seed(5)
    net = converted(Around(nn.Linear(8, 8)))
    net.middle = nn.GELU()
    assert culprits(net, encoded()) == ["middle (GELU)"]


class Listed(nn.Module):
    """Blocks in a list: the list itself is never called."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("guilty", GUILTY)
def test_the_guilty_one_is_found_in_a_list(guilty: type[nn.Module]) -> None:
    torch.manual_seed(10)
    net = converted(Around(Listed(nn.Linear(8, 8), guilty())))
    assert culprits(net, encoded()) == [f"middle.blocks.1 ({guilty.__name__})"]


@pytest.mark.parametrize("guilty", GUILTY)
def test_the_guilty_one_is_found_beside_layers_that_work_in_place(guilty: type[nn.Module]) -> None:
    torch.manual_seed(6)
    net = converted(Around(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), guilty())))
    assert culprits(net, encoded()) == [f"middle.2 ({guilty.__name__})"]


@pytest.mark.parametrize("guilty", GUILTY)
def test_the_guilty_one_is_found_beside_attention(guilty: type[nn.Module]) -> None:
    torch.manual_seed(7)
    assert culprits(converted(Around(Block(guilty()))), encoded()) == [f"middle.other ({guilty.__name__})"]


@pytest.mark.parametrize("guilty", [Softmax, Sigmoid, Product])
def test_the_guilty_one_is_found_where_little_comes_out(guilty: type[nn.Module]) -> None:
    """A random network with B = 2 that has not settled: that is what `convert` measures."""
    torch.manual_seed(8)
    net = converted(Around(guilty()))
    with torch.no_grad():
        net.head.weight *= 1e-10
    assert culprits(net, encoded()) == [f"middle ({guilty.__name__})"]


def test_looking_leaves_no_trace() -> None:
    torch.manual_seed(9)
    net = converted(Around(Softmax()))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    expected = net(encoded())
    culprits(net, encoded())
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(net(encoded()), expected)
