"""What the compiler gets to see of a network in training: what costs time on a GPU shows in its graphs on a CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from sic import backbones
from sic.backbones.compiled import KEEP, blocks, compiled, compiled_by_blocks, is_sequence
from sic.backbones.registry import build
from sic.bcos import fade
from sic.settings import Form


def convolutions(graph: fx.GraphModule) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op == "call_function" and "convolution" in str(node.target)]


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Give `torch.compile` another backend."""
    original = torch.compile

    def use(backend: Any) -> None:
        monkeypatch.setattr(torch, "compile", lambda function, **_: original(function, dynamic=False, backend=backend))

    yield use
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "convnext_tiny", "resnet_small"])
def test_the_blocks_of_a_network_are_the_network(name: str) -> None:
    """In order, each layer once, and more than one block."""
    network, x = build(name).network.eval(), torch.rand(1, 3, 64, 64)
    assert is_sequence(network)
    with torch.no_grad():
        expected, parts = network(x), blocks(network)
        for part in parts:
            x = part(x)
    assert len(parts) > 2 and torch.equal(x, expected)
    layers = [id(each) for part in parts for each in part.modules() if not list(each.children())]
    assert len(layers) == len(set(layers))


def test_a_sequence_that_does_more_is_no_sequence() -> None:
    class Doubled(torch.nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(2 * x)

    inner = Doubled(torch.nn.ReLU())
    assert not is_sequence(inner) and blocks(torch.nn.Sequential(inner)) == [inner]


def test_torch_has_the_setting_that_keeps_compiled_code(compile_with: Callable[[Any], None]) -> None:
    compile_with("eager")
    compiled(torch.relu, None)
    assert getattr(torch._functorch.config, KEEP) is True


@pytest.mark.parametrize("maps", [False, True])
def test_a_compiled_backbone_computes_what_it_computes_uncompiled(
    maps: bool, compile_with: Callable[[Any], None]
) -> None:
    """Outputs and gradients, in training; in evaluation nothing is compiled."""
    traced: list[int] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        traced.append(len(graph.graph.nodes))
        return graph.forward

    compile_with(backend)
    backbone = backbones.create("resnet_tiny").double().train()
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    found = []
    for backbone.compiled in (False, True):
        backbone.zero_grad()
        out = backbone.feature_maps(backbone.prepared(images)) if maps else backbone(images)
        out.square().sum().backward()
        found.append([out.detach(), *(value.grad.clone() for value in backbone.parameters() if value.grad is not None)])
    assert len(traced) > 2
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain)
    before = len(traced)
    backbone.eval()(images)
    assert len(traced) == before


@pytest.mark.parametrize("by_blocks", [False, True])
@pytest.mark.parametrize(
    ("name", "form", "progress"),
    [
        ("resnet_tiny", "bcos", 1.0),
        pytest.param("resnet_tiny", "bcosified", torch.tensor(0.5), marks=pytest.mark.slow),
        pytest.param("resnet_tiny", "bcosified", 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_step_convolves_once_a_layer_and_copies_nothing(
    name: str, form: Form, progress: float | Tensor, by_blocks: bool, compile_with: Callable[[Any], None]
) -> None:
    """No convolution but the layers' own, and every gradient arrives in the layout that they work in."""
    network = backbones.create(name, form, biases=isinstance(progress, Tensor), measure=False).train()
    network = network.to(memory_format=torch.channels_last)
    fade(network, progress)
    layers = sum(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    seen: dict[str, list[bool]] = {"forward": [], "backward": []}

    def look(which: str) -> Any:
        def compiler(graph: fx.GraphModule, _: Any) -> Any:
            found = [node.args[0].meta["val"] for node in convolutions(graph)]
            seen[which] += [value.is_contiguous(memory_format=torch.channels_last) for value in found]
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(fw_compiler=look("forward"), bw_compiler=look("backward"))
    compile_with(backend)
    run = compiled_by_blocks(network.network, None) if by_blocks else torch.compile(network.network)
    images = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        loss = network._pooled(run(network.prepared(images))).float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen == {"forward": [True] * layers, "backward": [True] * layers}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters() if p.requires_grad)
