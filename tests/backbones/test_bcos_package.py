"""Our converted architectures against the authors' own implementation, the `bcos` package, with its weights copied."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sic import backbones
from sic.backbones.weights import Weights
from sic.bcos import encode_colours, explaining

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bcos.models import pretrained
    from bcos.modules import LogitLayer

THEIRS = {
    "resnet18": "resnet18",
    "vitc_ti": "vitc_ti_patch1_14",
}
LARGE = {
    "densenet121": "densenet121",
    "convnext_tiny": "convnext_tiny",
    "convnext_tiny_bnu": "convnext_tiny_bnu",
    "resnext50_32x4d": "resnext50_32x4d",
    "vgg11": "vgg11_bnu",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "densenet161": "densenet161",
    "densenet169": "densenet169",
    "densenet201": "densenet201",
    "convnext_base": "convnext_base",
    "convnext_base_bnu": "convnext_base_bnu",
    "vitc_s": "vitc_s_patch1_14",
    "vitc_b": "vitc_b_patch1_14",
    "vitc_l": "vitc_l_patch1_14",
}


def their_model(name: str) -> Any:
    """With weights and running variances as different from each other as those of a trained network.

    Without the bias of its logits, which would hide differences between small ones.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(pretrained, name)(pretrained=False).eval()
    for module in model.modules():
        if isinstance(module, LogitLayer):
            module.logit_bias = None
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1
        model.train()(encode_colours(torch.rand(4, 3, 64, 64)))
        for key, value in model.eval().state_dict().items():
            if key.endswith("running_var"):
                value.mul_(torch.rand_like(value) * 0.4 + 0.8)
            elif value.dim() == 1 and key.endswith("weight"):
                value.uniform_(0.4, 0.8)
            elif key.endswith("layer_scale"):
                value.uniform_(0.1, 0.5)
    return model


def their_head(model: Any) -> Callable[[Tensor], Tensor]:
    """From what our backbones compute (maps N×F×h×w, or N×F of a transformer) to logits."""
    if hasattr(model, "get_classifier"):
        return lambda maps: model.logit_layer(model.get_classifier()(maps).mean(dim=(2, 3)))
    return lambda features: model[1](model[0].linear_head.linear(features))


def compare(ours: str, theirs: str, dtype: torch.dtype, tolerance: float, size: int = 64) -> None:
    model = their_model(theirs).to(dtype)
    network = backbones.create(ours, load=Weights(model.state_dict(), theirs, converted=True)).eval().to(dtype).network
    head = their_head(model)
    generator = torch.Generator().manual_seed(1)
    encoded = encode_colours(torch.rand(2, 3, size, size, generator=generator, dtype=torch.float64).to(dtype))
    classes = torch.tensor([[3, 700], [3, 700]])
    their_input = encoded.clone().requires_grad_()
    with model.explanation_mode():
        logits = model(their_input)
        (their_weights,) = torch.autograd.grad(logits.gather(1, classes).sum(), their_input)
        with explaining():
            our_input = encoded.clone().requires_grad_()
            our_logits = head(network(our_input))
            (our_weights,) = torch.autograd.grad(our_logits.gather(1, classes).sum(), our_input)
    close(our_logits, logits, tolerance)
    close(our_weights, their_weights, tolerance)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Relative to the largest value; it must be worth comparing."""
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize("name", THEIRS)
def test_logits_and_dynamic_weights(name: str) -> None:
    compare(name, THEIRS[name], torch.float32, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_logits_and_dynamic_weights_of_large_ones(name: str) -> None:
    compare(name, LARGE[name], torch.float32, 1e-4)


@pytest.mark.parametrize("name", ["resnet18", "vitc_ti"])
def test_in_double_precision(name: str) -> None:
    compare(name, THEIRS[name], torch.float64, 1e-8)


@pytest.mark.parametrize(
    ("name", "head", "millions"),
    [
        ("densenet121", 1024, 7.95),
        pytest.param("resnet50", 2048, 25.5, marks=pytest.mark.slow),
        pytest.param("vitc_b", 768, 81.3, marks=pytest.mark.slow),
    ],
)
def test_published_parameter_counts(name: str, head: int, millions: float) -> None:
    """With a classifier of 1,000 classes, which ours are without."""
    number = sum(p.numel() for p in backbones.create(name).parameters()) + 1000 * head
    assert abs(number / 1e6 - millions) < 0.05
