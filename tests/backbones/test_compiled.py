"""What the compiler gets to see of a network in training: what costs time on a GPU shows in its graphs on a CPU."""

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from sic import backbones
from sic.bcos import fade
from sic.settings import Form


def convolutions(graph: fx.GraphModule) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op == "call_function" and "convolution" in str(node.target)]


@pytest.mark.parametrize(
    ("name", "form", "progress"),
    [
        ("resnet_tiny", "bcos", 1.0),
        pytest.param("resnet_tiny", "bcosified", torch.tensor(0.5), marks=pytest.mark.slow),
        pytest.param("resnet_tiny", "bcosified", 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_step_convolves_once_a_layer_and_copies_nothing(
    name: str, form: Form, progress: float | Tensor
) -> None:
    """No convolution but the layers' own, and every gradient arrives in the layout that they work in."""
    network = backbones.create(name, form, biases=isinstance(progress, Tensor), measure=False).train()
    network = network.to(memory_format=torch.channels_last)
    fade(network, progress)
    layers = sum(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    seen: dict[str, list[bool]] = {}

    def look(which: str) -> Any:
        def compiler(graph: fx.GraphModule, _: Any) -> Any:
            found = [node.args[0].meta["val"] for node in convolutions(graph)]
            seen[which] = [value.is_contiguous(memory_format=torch.channels_last) for value in found]
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(fw_compiler=look("forward"), bw_compiler=look("backward"))
    step = torch.compile(network._forward, dynamic=False, fullgraph=True, backend=backend)
    images = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        loss = step(images).float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen == {"forward": [True] * layers, "backward": [True] * layers}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters() if p.requires_grad)
    torch.compiler.reset()
