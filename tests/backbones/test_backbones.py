"""Every backbone in every form, one contract; the networks that they come from; the transformer's positions."""

import copy
import gc
import math
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from sic import backbones
from sic.backbones import Backbone, registry
from sic.backbones.networks import positions
from sic.backbones.registry import Body, build
from sic.backbones.weights import Weights
from sic.bcos import BcosConv2d, BcosLinear, Blur, Gate, antialias, explaining, fade, linear_maps, remove_biases
from sic.errors import SicError
from sic.settings import Form
from tests.models import norms_take_the_next_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bcos.models import pretrained

FAST = (
    "resnet_tiny",
    "resnet_small",
    "resnet18",
    "vit_small",
    "vitc_ti",
)
SLOW = (
    "timm/tf_efficientnet_lite0",
    *(name for name in backbones.names() if name not in FAST and not name.startswith("bagnet")),
    "timm/mobilenetv3_small_050",
    "timm/convnext_atto",
    "timm/vit_tiny_patch16_224",
)
ORIGINALS = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
SIBLINGS = (
    *("resnet101", "resnet152", "densenet161", "densenet169", "densenet201"),
    *("convnext_base", "convnext_base_bnu", "vitc_s", "vitc_b", "vitc_l"),
)
"""More or wider layers of a network that is tested in every form. They are compared with the networks they come from,
here and in test_bcos_package.py."""
CASES = [
    pytest.param((name, form), marks=() if name in FAST else pytest.mark.slow, id=f"{name}-{form}")
    for name in (*FAST, *SLOW)
    for form in backbones.FORMS
    if name not in SIBLINGS
]
"""BagNets are of one form only: see tests/methods/test_bagnet.py."""
LARGE = ("convnext_", "vitc_b", "vitc_l", "timm/vit")
"""In single precision, for speed."""
STYLES: tuple[Form, ...] = ("bcos", "bcosified")
STEADY = ("resnet_", "resnet18", "vgg", "convnext", "timm/convnext", "vit", "timm/vit")
"""Without training, the other B-cos networks turn a change in an image's third digit into another direction."""
MAX_POOLING = ("resnet1", "resnet3", "resnet5", "resnext", "densenet", "vgg")
CLOSED_FORM = {
    **{
        name: 3 * 36 * widths[0]
        + 2 * widths[0]
        + sum(9 * (a + b) * b + 4 * b + (a != b) * (a + 2) * b for a, b in pairwise((widths[0], *widths)))
        for name, widths in {"resnet_tiny": (16, 32, 64), "resnet_small": (16, 32, 64, 128)}.items()
    },
    "vit_small": sum(9 * a * b + 3 * b for a, b in pairwise((3, 32, 64, 128)))
    + 4 * (12 * 128**2 + 9 * 128)
    + 128**2
    + 3 * 128,
    "convnext_tiny_bnu": 28_589_128 - 1_000 * 769 - 2 * 768,
}
"""Of those that nobody else has; a batch norm has as many parameters as the layer norm of the published ConvNeXt."""


def photos(number: int, height: int, width: int, seed: int = 1) -> Tensor:
    """Smooth random pictures of different brightness."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(number, 3, 4, 4, generator=generator, dtype=torch.double)
    brightness = torch.rand(number, 1, 1, 1, generator=generator, dtype=torch.double) * 0.8 + 0.2
    return F.interpolate(coarse, (height, width), mode="bilinear") * brightness


def side(name: str) -> int:
    """Of the images; a transformer of timm knows one size only."""
    return 224 if name.startswith("timm/vit") else 32


def precision(name: str) -> torch.dtype:
    return torch.float if name.startswith(LARGE) else torch.double


@torch.no_grad()
def settle(net: nn.Module, images: Tensor) -> None:
    """Make every channel as different as in a trained network, and activations of a useful size; evaluation mode."""
    for name, parameter in net.named_parameters():
        if name.endswith(("layer_scale", "gamma")):
            parameter.uniform_(0.1, 0.5)
        elif name.endswith("bias"):
            parameter.uniform_(-0.2, 0.2)
        elif parameter.dim() == 1:
            parameter.uniform_(0.5, 1.5)
    norms_take_the_next_batch(net)
    net.train()(images)
    net.eval()


def assert_close(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest value; it must be worth comparing."""
    assert got.shape == expected.shape
    assert expected.abs().max() > 1e-9
    assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass
class Explained:
    """The features N×F, and what two random mixtures of them, N×2, are made of."""

    features: Tensor
    mixtures: Tensor
    pixels: Tensor
    constants: Tensor
    size: Tensor
    """The sum of the sizes of all that is to be added up."""


def explain(net: Backbone, images: Tensor) -> Explained:
    with explaining() as trace:
        features = net(images)
        mixing = torch.randn(features.shape[1], 2, generator=torch.Generator().manual_seed(4)).to(features)
        mixtures = features @ mixing
        maps = linear_maps(mixtures, trace)
    assert trace.source is not None
    shares = maps.weights * trace.source.detach()[:, None]
    pixels, sizes = shares.sum(dim=(2, 3, 4)), shares.abs().sum(dim=(2, 3, 4))
    return Explained(features.detach(), mixtures.detach(), pixels, maps.constants, sizes + maps.constants.abs())


def assert_adds_up(explained: Explained, tolerance: float) -> None:
    assert explained.pixels.all()
    residual = explained.pixels + explained.constants - explained.mixtures
    assert (residual.abs() / explained.size).max() <= tolerance


@dataclass
class Case:
    """A backbone in evaluation mode, and two images for it."""

    name: str
    net: Backbone
    images: Tensor

    @property
    def tolerance(self) -> float:
        return 1e-9 if self.images.dtype == torch.double else 1e-4

    @cached_property
    def features(self) -> Tensor:
        with torch.no_grad():
            return self.net(self.images)

    @cached_property
    def explained(self) -> Explained:
        return explain(self.net, self.images)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    name, form = request.param
    torch.manual_seed(0)
    size, dtype = side(name), precision(name)
    net = backbones.create(name, form).to(dtype)
    settle(net, photos(6, size, size, seed=2).to(dtype))
    yield Case(name, net, photos(2, size, size).to(dtype))
    del net
    if name in SLOW:
        gc.collect()


def test_images_become_vectors(case: Case) -> None:
    features = case.features
    assert features.shape == (2, case.net.features)
    assert features.isfinite().all()
    assert (features.std(dim=1) > 0).all()
    assert (features[0] - features[1]).abs().max() > 1e-3 * features.abs().max()


def test_images_need_not_be_square_or_even(case: Case) -> None:
    odd = photos(1, 45, 38).to(case.images)
    if case.name.startswith("timm/vit"):
        with pytest.raises(AssertionError, match="224"):
            case.net(odd)
        return
    with torch.no_grad():
        out = case.net(odd)
    assert out.shape == (1, case.net.features)
    assert out.isfinite().all()


def test_pixels_and_constants_add_up_to_the_features(case: Case) -> None:
    if case.net.form == "conventional":
        with pytest.raises(RuntimeError, match="nothing was encoded"):
            explain(case.net, case.images)
        return
    assert_adds_up(case.explained, case.tolerance)
    assert bool(case.explained.constants.any()) == ("vit" in case.name), "positions, and nothing else, are constants"


def test_anti_aliased_ones_add_up_too(case: Case) -> None:
    blurred = copy.deepcopy(case.net)
    antialias(blurred.network)
    if case.net.form == "conventional":
        with torch.no_grad():
            features, before = blurred(case.images), case.features
    else:
        explained = explain(blurred, case.images)
        assert_adds_up(explained, case.tolerance)
        features, before = explained.features, case.explained.features
    change = (features - before).abs().max() / before.abs().max()
    if any(isinstance(module, Blur) for module in blurred.modules()):
        assert change > 1e-3
    else:
        assert change == 0
        fair = (case.name, case.net.form) == ("vgg11", "bcos")  # it has averages over their own stride only
        assert fair or case.name == "timm/vit_tiny_patch16_224", "patches of 16 px are too wide to blur"


def test_explaining_does_not_change_the_features(case: Case) -> None:
    if case.net.form == "conventional":
        with explaining():
            features = case.net(case.images).detach()
    else:
        features = case.explained.features
    assert_close(features, case.features, case.tolerance)


def test_images_of_a_batch_do_not_meet(case: Case) -> None:
    with torch.no_grad():
        alone = case.net(case.images[1:])
    assert_close(alone, case.features[1:], case.tolerance)


def test_every_parameter_gets_a_finite_gradient(case: Case) -> None:
    images = case.images.clone()
    images[0, :, : images.shape[2] // 2] = 0
    names, parameters = zip(*case.net.named_parameters(), strict=True)
    features = case.net(images)
    direction = torch.randn(features.shape, generator=torch.Generator().manual_seed(3)).to(features)
    grads = torch.autograd.grad(features, parameters, direction)
    assert [name for name, grad in zip(names, grads, strict=True) if not grad.isfinite().all()] == []
    without = [name for name, grad in zip(names, grads, strict=True) if not grad.any()]
    assert [name for name in without if ".se." not in name] == [], "the gates of squeeze-and-excitation may saturate"


def test_half_precision(case: Case) -> None:
    """Each layer alone, then all of them."""
    wrong = []

    def compare(module: nn.Module, inputs: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            with torch.autocast("cpu", torch.bfloat16):
                half = module.forward(*inputs)
            if (half.float() - out).norm() > 0.02 * out.norm():
                wrong.append(module)

    net, images = case.net.float(), case.images.float()
    ours = [module for module in net.modules() if type(module).__module__.startswith("sic.bcos")]
    hooks = [module.register_forward_hook(compare) for module in ours if not isinstance(module, Gate)]
    try:
        with torch.no_grad():
            net(images)
            for hook in hooks:
                hook.remove()
            with torch.autocast("cpu", torch.bfloat16):
                half = net(images).float()
    finally:
        case.net.to(case.images.dtype)
    assert wrong == []
    assert half.isfinite().all()
    if net.form == "conventional" or case.name.startswith(STEADY):
        assert torch.cosine_similarity(half, case.features.float()).min() > (
            0.99 if case.name.startswith(STEADY) else 0.8
        )


def test_only_the_layers_are_exchanged(case: Case) -> None:
    """Squeeze-and-excitation, whose output is but a scale, stays as it is."""
    layers = [module for name, module in case.net.named_modules() if ".se." not in name]
    kinds = {type(layer) for layer in layers}
    activations = {kind for kind in kinds if "activation" in kind.__module__}
    biases = [name for name, _ in case.net.named_parameters() if name.endswith("bias") and ".se." not in name]
    if case.net.form == "conventional":
        assert not [layer for layer in layers if isinstance(layer, BcosConv2d | BcosLinear)]
        assert activations
        assert biases
    else:
        assert not kinds & {nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.MultiheadAttention}
        assert bool(activations) == (case.net.form == "bcosified")
        pools = case.name.startswith(MAX_POOLING) and not case.name.endswith("_smooth")
        assert (nn.MaxPool2d in kinds) == (case.net.form == "bcosified" and pools)
        assert biases == []


def test_parameters_are_those_of_the_original(case: Case) -> None:
    with torch.device("meta"):
        network, head = network_and_head(case.name)
    expected = count(network) - (count(head) if head else 0)
    if case.name in CLOSED_FORM:
        expected = CLOSED_FORM[case.name]
    if case.net.form != "conventional":
        inside = set(network.parameters()) - set(head.parameters() if head else ())
        biases = [
            parameter
            for name, parameter in network.named_parameters()
            if name.endswith("bias") and ".se." not in name and parameter in inside
        ]
        (stem,) = (conv for conv in network.modules() if isinstance(conv, nn.Conv2d) and conv.in_channels == 3)
        expected += stem.weight.numel() - sum(bias.numel() for bias in biases)
    assert count(case.net) == expected


@dataclass
class Original:
    """Somebody else's network in evaluation mode; `features` are what its classifier sees."""

    name: str
    network: nn.Module
    images: Tensor
    features: Tensor

    def backbone(self, form: Form, **options: bool) -> Backbone:
        """Ours, with its weights."""
        state = self.network.state_dict()
        net = backbones.create(self.name, form, load=Weights(state, self.name, converted=form == "bcos"), **options)
        return net.eval().to(self.images.dtype)


def network_and_head(name: str) -> tuple[nn.Module, nn.Module | None]:
    """timm's, torchvision's, that of the B-cos v2 authors, or (for those that only we have) our own."""
    if name.startswith("timm/"):
        return timm.create_model(name.removeprefix("timm/"), num_classes=0), None
    if name.startswith("vitc_"):
        vit = getattr(pretrained, f"standard_{name}_patch1_14")(pretrained=False)
        return vit, vit.linear_head.linear
    if name == "vgg11":
        vgg = models.vgg11_bn(init_weights=False)
        return vgg, vgg.classifier
    if name in models.list_models():
        network = models.get_model(name)
        return network, network.fc if name.startswith("res") else network.classifier
    return build(name).network, None


@pytest.fixture(scope="module", params=ORIGINALS)
def original(request: pytest.FixtureRequest) -> Iterator[Original]:
    name = request.param
    torch.manual_seed(0)
    network, head = network_and_head(name)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if name.startswith("timm/"):
        config = timm.data.resolve_model_data_config(network)
        mean, std = config["mean"], config["std"]
    images = photos(8, side(name), side(name)).to(precision(name))
    normalised = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    settle(network, normalised[2:].float())
    network.to(images.dtype)
    seen: list[Tensor] = []
    hook = (head or nn.Identity()).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        out = network(normalised[:2])
    hook.remove()
    features = seen[0] if seen else out
    if name == "vgg11":  # its classifier sees 7×7 places
        features = features.unflatten(1, (512, 7, 7))
    if features.dim() == 4:
        features = features.mean(dim=(2, 3))
    yield Original(name, network, images[:2], features)
    del network, head
    if name in SLOW:
        gc.collect()


def test_the_conventional_form_is_the_original(original: Original) -> None:
    net = original.backbone("conventional")
    with torch.no_grad():
        assert_close(net(original.images), original.features, 1e-5)


def test_the_bcosified_form_starts_as_the_original(original: Original) -> None:
    net = original.backbone("bcosified", biases=True)
    fade(net, 0)
    features = original.features
    if original.name.endswith("_smooth"):  # these start as the network that strides
        strided = original.backbone("conventional")
        fade(strided, 0)
        features = strided(original.images).detach()
        assert (features - original.features).abs().max() > 0.1 * features.abs().max()
    with torch.no_grad():
        assert_close(net(original.images), features, 1e-4)
    fade(net, 0.1)
    explained = explain(net, original.images)
    assert_adds_up(explained, 1e-4)
    assert explained.constants.all()


@pytest.mark.parametrize("name", ["resnet_tiny", "vit_small", "resnet18"])
def test_the_bcosified_form_ends_without_biases(name: str) -> None:
    state = build(name).network.state_dict()
    state = {key: value.float().uniform_(0.1, 0.3) for key, value in state.items()}
    ended, bare = (
        backbones.create(name, "bcosified", biases=biases, load=Weights(state, name)).eval() for biases in (True, False)
    )
    with torch.no_grad():
        features = ended(photos(2, 32, 32).float())
        assert features.any()
        assert torch.equal(features, bare(photos(2, 32, 32).float()))
    remove_biases(ended)
    bare.load_state_dict(ended.state_dict())


@pytest.mark.parametrize("form", backbones.FORMS)
def test_create_loads_then_blurs(form: Form) -> None:
    plain = backbones.create("resnet_tiny", form)
    blurred = backbones.create("resnet_tiny", form, antialiased=True)
    assert sum(isinstance(module, Blur) for module in blurred.modules()) == 1
    assert not any(isinstance(module, Blur) for module in plain.modules())
    target = backbones.create("resnet_tiny", form).network if form == "bcos" else build("resnet_tiny").network
    state = {name: torch.rand_like(value.float()) for name, value in target.state_dict().items()}
    images = photos(2, 32, 32).float()
    loaded = backbones.create(
        "resnet_tiny", form, antialiased=True, load=Weights(state, "", converted=form == "bcos")
    ).eval()
    expected = backbones.create("resnet_tiny", form, load=Weights(state, "", converted=form == "bcos")).eval()
    antialias(expected.network)
    with torch.no_grad():
        assert torch.equal(loaded(images), expected(images))


@pytest.mark.parametrize("form", STYLES)
@pytest.mark.parametrize("name", ["resnet_tiny", "vit_small", "resnet18"])
def test_b_reaches_every_layer(name: str, form: Form) -> None:
    layers = [module for name, module in backbones.create(name, form, b=1.5).named_modules() if hasattr(module, "b")]
    assert layers
    queries = [
        layer for layer in layers if isinstance(layer, BcosLinear) and layer.out_features == 3 * layer.in_features
    ]
    assert {layer.b for layer in layers if layer not in queries} == {1.5}
    assert {layer.b for layer in queries} <= {1}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SicError) as caught:
        backbones.create("resnet9000")
    assert "'resnet9000'" in str(caught.value)
    assert all(name in str(caught.value) for name in (*backbones.names(), "timm/NAME"))


def test_an_unknown_name_of_timm_is_answered_with_similar_ones() -> None:
    with pytest.raises(
        SicError, match=r"^timm has no model called 'convnext_atom'; similar names: convnext_\w+, .*\.$"
    ):
        backbones.create("timm/convnext_atom")


@pytest.mark.parametrize("name", ["timm/", "timm/nothing"])
def test_a_name_that_is_like_none(name: str) -> None:
    with pytest.raises(SicError, match=f"^timm has no model called '{name.removeprefix('timm/')}'"):
        backbones.create(name)


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        SicError, match=r"^timm/convnext_atto needs timm; install it with: pip install 'sic\[timm\]'\.$"
    ):
        backbones.create("timm/convnext_atto")


@pytest.mark.parametrize("form", STYLES)
@pytest.mark.parametrize(
    ("name", "culprit"),
    [
        pytest.param("swin_tiny_patch4_window7_224", "layers.0.blocks.0.attn (WindowAttention)", id="swin"),
        pytest.param("levit_128s", "stages.0.blocks.0.attn (Attention", id="levit"),
        pytest.param("starnet_s1", "stages.0.1 (Block)", id="product of branches", marks=pytest.mark.slow),
        pytest.param("shvit_s1", "(SHSA", id="attention behind a norm that starts at 0", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_converted_is_named(name: str, culprit: str, form: Form) -> None:
    with pytest.raises(SicError, match=rf"cannot be converted to B-cos: .*{re.escape(culprit)}"):
        backbones.create(f"timm/{name}", form)


def test_a_builder_registers_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @backbones.register
    def handmade() -> Body:
        return Body(nn.Conv2d(3, 5, 2), 5)

    assert "handmade" in backbones.names()
    assert backbones.create("handmade")(photos(2, 8, 8).float()).shape == (2, 5)


@pytest.mark.parametrize(("height", "width", "features"), [(1, 1, 4), (3, 5, 16), (4, 2, 8)])
@pytest.mark.parametrize("dtype", [torch.double, torch.float, torch.bfloat16])
def test_positions_are_what_the_loop_says(height: int, width: int, features: int, dtype: torch.dtype) -> None:
    quarter = features // 4
    expected = torch.zeros(1, height * width, features, dtype=torch.double)
    for row in range(height):
        for column in range(width):
            for i in range(quarter):
                frequency = 10_000 ** -(i / (quarter - 1) if quarter > 1 else 0)
                place = expected[0, row * width + column]
                place[i] = math.sin(column * frequency)
                place[quarter + i] = math.cos(column * frequency)
                place[2 * quarter + i] = math.sin(row * frequency)
                place[3 * quarter + i] = math.cos(row * frequency)
    got = positions(height, width, features, torch.zeros(1, dtype=dtype))
    assert got.dtype == dtype
    single = positions(height, width, features, torch.zeros(1))
    torch.testing.assert_close(single, expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(got, single.to(dtype))


def test_no_two_positions_are_alike() -> None:
    code = positions(12, 9, 32, torch.zeros(1))[0]
    assert torch.cdist(code, code).fill_diagonal_(9).min() > 0.1


def grid(contributions: torch.Tensor) -> float:
    """Energy of a map H×W at the frequencies that strides of 2, 4 and 8 draw, in units of what noise would have."""
    size = len(contributions)
    window = torch.hann_window(size, dtype=contributions.dtype)
    energy = torch.fft.fft2((contributions - contributions.mean()) * window[:, None] * window).abs().square()
    peaks = energy[:: size // 8, :: size // 8]
    return ((peaks.sum() - peaks[0, 0]) / 63 / energy.mean()).item()


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "vitc_ti"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("densenet121", "convnext_tiny")),
    ],
)
def test_blurring_takes_the_grid_out_of_maps(name: str) -> None:
    seen = {}
    for antialiased in (False, True):
        torch.manual_seed(0)
        net = backbones.create(name, antialiased=antialiased).train()
        norms_take_the_next_batch(net)
        images = photos(4, 64, 64).float()
        with torch.no_grad():
            net(images)
        with explaining() as trace:
            maps = linear_maps(net.eval()(images)[:, :3], trace)
        assert trace.source is not None
        contributions = (maps.weights * trace.source.detach()[:, None]).sum(dim=2)
        seen[antialiased] = sum(grid(one) for one in contributions.flatten(0, 1)) / 12
    assert seen[False] > 1.2 and seen[True] < seen[False] / 4, seen
