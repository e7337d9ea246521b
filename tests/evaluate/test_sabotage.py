"""Wrong explanations are caught, by name; right ones of every family of backbones raise no alarm."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import Bottleneck, ResNet

from sic import backbones
from sic.evaluate.axioms import as_json
from sic.evaluate.verification import measure
from sic.methods import SIC, Answered, Bcos, Classifier, Contributions
from sic.methods.sic import AnsweredSIC
from sic.settings import Form
from tests.models import norms_take_the_next_batch

LABELS = [0, 0, 1, 2]
Change = Callable[[Contributions, Classifier, Tensor, Tensor], Contributions]
"""The right explanation, the model, images and targets → a wrong explanation."""


def photos(number: int) -> Tensor:
    coarse = torch.rand(number, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return F.interpolate(coarse, (32, 32), mode="bilinear")


def build(
    method: type[Classifier], backbone: str = "resnet_tiny", form: Form = "bcos", local: bool = False
) -> Classifier:
    """In evaluation mode, with norms that have seen a batch and supports that are real latents."""
    torch.manual_seed(0)
    body = backbones.create(backbone, form)
    if method is SIC:
        model: Classifier = SIC(body, 3, len(LABELS), latent=16, temperature=0.5, local_units=local)
    else:
        model = Bcos(body, 3, temperature=0.1)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train()(photos(8))
        model.eval()
        if isinstance(model, SIC):
            model.set_supports(model.encoder(photos(12)[-4:]), torch.tensor(LABELS))
    return model


def failed(model: Classifier, images: Tensor, probes: int = 3) -> list[str]:
    names: list[str] = as_json(measure(model, copy.deepcopy(model), images, probes=probes, compiled=False))["failed"]
    return names


def sabotaged(model: Classifier, change: Change) -> Classifier:
    """A copy of the model that changes every explanation before it returns it."""
    kind: type[Classifier] = type(model)

    class Sabotaged(kind):  # type: ignore[misc, valid-type]
        def answered(self, images: Tensor) -> Answered:
            answered: Answered = super().answered(images)
            explain = answered.explain

            def changed(targets: Tensor, weights: bool = True) -> Contributions:
                return change(explain(targets), self, images, targets)

            answered.explain = changed  # type: ignore[method-assign]
            return answered

        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            return self.answered(images).explain(targets)

    twin = copy.deepcopy(model)
    twin.__class__ = Sabotaged
    return twin


def encoded(images: Tensor, like: Tensor) -> Tensor:
    """`[x, 1 - x]` with as many dimensions as the weights."""
    both = torch.cat([images, 1 - images], dim=1)
    return both if like.dim() == both.dim() else both[:, None]


def consistent(exact: Contributions, weights: Tensor, images: Tensor) -> Contributions:
    """Other weights, with the maps that belong to them and a constant that makes the sum right."""
    maps = (weights * encoded(images, weights)).sum(dim=-3)
    return replace(exact, weights=weights, maps=maps, constant=exact.value - maps.sum(dim=(-2, -1)))


def scaled(exact: Contributions, factor: float) -> Contributions:
    maps = factor * exact.maps
    constant = exact.value - maps.sum(dim=(-2, -1))
    return replace(exact, maps=maps, weights=factor * exact.weights, constant=constant)


def uniform(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.mean(dim=(-2, -1), keepdim=True).expand_as(exact.maps))


def uniform_weights(exact: Contributions, _: object, images: Tensor, __: object) -> Contributions:
    """A uniform map with weights to match: its channels share each pixel's contribution alike."""
    x = encoded(images, exact.weights)
    flat = uniform(exact).maps
    return replace(exact, maps=flat, weights=flat.unsqueeze(-3) * x / x.square().sum(dim=-3, keepdim=True))


def mirrored(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.flip(-1), weights=exact.weights.flip(-1))


def shifted(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.roll(1, -1), weights=exact.weights.roll(1, -1))


def mirrored_maps_only(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.flip(-1))


def shifted_maps_only(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.roll(1, -1))


def louder(exact: Contributions, *_: object) -> Contributions:
    return scaled(exact, 1.5)


def half_in_the_constant(exact: Contributions, *_: object) -> Contributions:
    return scaled(exact, 0.5)


def other_colours(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, weights=-2 * exact.weights)


def gradient_times_input(exact: Contributions, model: Classifier, images: Tensor, targets: Tensor) -> Contributions:
    """As training sees the network, with no scale held constant; adds up nearly, because the network is homogeneous."""
    x = torch.cat([images, 1 - images], dim=1).requires_grad_()
    columns = targets if targets.dim() == 2 else targets[:, None]
    with torch.enable_grad():
        pooled = model.backbone.pooled(x)
        if isinstance(model, SIC):
            logits = model.logits(model.evidence(model.encoder.project(pooled)))
        else:
            assert isinstance(model, Bcos)
            logits = model.logits(pooled)
        each = [torch.autograd.grad(k.sum(), x, retain_graph=True)[0] for k in logits.gather(1, columns).T]
    weights = torch.stack(each, 1).view_as(exact.weights)
    return consistent(exact, weights, images)


def transposed(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.mT, weights=exact.weights.mT)


def another_class(exact: Contributions, model: Classifier, images: Tensor, targets: Tensor) -> Contributions:
    """Right in all but the question; the constant hides the difference."""
    others = type(model).__mro__[1].answered(model, images).explain((targets + 1) % model.classes)  # type: ignore[attr-defined]
    return replace(others, value=exact.value, constant=exact.value - others.maps.sum(dim=(-2, -1)))


def another_image(exact: Contributions, _: object, images: Tensor, __: object) -> Contributions:
    return consistent(exact, exact.weights.roll(1, 0).flip(-1), images)


def absolute(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=exact.maps.abs(), constant=exact.value - exact.maps.abs().sum(dim=(-2, -1)))


def smoothed(exact: Contributions, *_: object) -> Contributions:
    def blur(x: Tensor) -> Tensor:
        return F.avg_pool2d(x.flatten(0, -3)[:, None], 3, 1, 1, count_include_pad=False).view_as(x)

    maps = blur(exact.maps)
    return replace(exact, maps=maps, weights=blur(exact.weights), constant=exact.value - maps.sum(dim=(-2, -1)))


def another_value(exact: Contributions, *_: object) -> Contributions:
    """Explains a score that the model did not give."""
    twice = replace(exact, maps=2 * exact.maps, weights=2 * exact.weights)
    return replace(twice, value=twice.maps.sum(dim=(-2, -1)) + twice.constant)


def centred(exact: Contributions, *_: object) -> Contributions:
    """A bonus for the middle of the picture, paid by the border."""
    ramp = torch.linspace(-1, 1, exact.maps.shape[-1], dtype=exact.maps.dtype).cos()
    return replace(exact, maps=exact.maps + 1e-3 * (ramp - ramp.mean()))


SABOTAGES: dict[Change, set[str]] = {
    uniform: {"weights times input", "dummy", "equivariance"},
    uniform_weights: {"weights", "dummy", "equivariance"},
    mirrored: {"weights times input", "weights", "dummy", "equivariance"},
    mirrored_maps_only: {"weights times input", "dummy", "equivariance"},
    shifted: {"weights times input", "weights", "dummy", "equivariance"},
    shifted_maps_only: {"weights times input", "dummy", "equivariance"},
    louder: {"weights", "constant"},
    half_in_the_constant: {"weights", "constant"},
    other_colours: {"weights times input", "weights"},
    gradient_times_input: {"weights"},
    transposed: {"weights times input", "weights", "dummy", "equivariance"},
    another_class: {"weights", "constant"},
    another_image: {"weights", "constant"},
    absolute: {"weights times input", "constant"},
    smoothed: {"weights times input", "weights", "constant", "dummy"},
    another_value: {"completeness", "weights"},
    centred: {"weights times input", "dummy"},
}
"""And the checks that catch each, at least. Deletion needs a network that reacts: see `test_deletion.py`."""


@pytest.mark.slow
@pytest.mark.parametrize("method", [SIC, Bcos])
@pytest.mark.parametrize("change", SABOTAGES)
def test_a_wrong_explanation_is_caught(change: Change, method: type[Classifier]) -> None:
    model = build(method)
    assert SABOTAGES[change] <= set(failed(sabotaged(model, change), photos(4), probes=2))


@pytest.mark.parametrize("change", SABOTAGES)
@pytest.mark.slow
def test_a_wrong_explanation_of_a_transformer_is_caught(change: Change) -> None:
    """Its constant differs from image to image, so that the sum alone says even less."""
    model = build(SIC, "vit_small")
    assert SABOTAGES[change] <= set(failed(sabotaged(model, change), photos(4), probes=2))


def test_the_wrapper_alone_raises_no_alarm() -> None:
    assert failed(sabotaged(build(SIC), lambda exact, *_: exact), photos(16)) == []


class UnfrozenSimilarity(SIC):
    """Its similarity is differentiated as in training: maps still add up."""

    def evidence(self, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
        with mock.patch("sic.bcos.layers.frozen", lambda scale: scale):
            return super().evidence(latents, vectors)


def test_an_unfrozen_similarity_is_caught() -> None:
    model = build(SIC)
    model.__class__ = UnfrozenSimilarity
    assert failed(model, photos(16)) == ["weights"]


def test_a_sabotage_of_one_of_two_ways_is_caught() -> None:
    """`Model.explain` asks `answered`; whoever asks the classifier itself must get the same."""

    class Aside(SIC):
        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            return mirrored(super().explain(images, targets))

    model = build(SIC)
    model.__class__ = Aside
    assert failed(model, photos(16)) == ["implementation invariance"]


def test_a_sabotage_of_maps_without_weights_is_caught() -> None:
    """`Model.contributions` asks for no weights."""

    class Hasty(SIC):
        def answered(self, images: Tensor) -> AnsweredSIC:
            answered = super().answered(images)
            explain = answered.explain

            def changed(targets: Tensor, weights: bool = True) -> Contributions:
                found = explain(targets, weights)
                return found if weights else mirrored_maps_only(found)

            answered.explain = changed  # type: ignore[method-assign]
            return answered

    model = build(SIC)
    model.__class__ = Hasty
    assert failed(model, photos(16)) == ["implementation invariance"]


def test_a_sabotage_in_single_precision_is_caught() -> None:
    """The precision that users get."""

    def change(exact: Contributions, *_: object) -> Contributions:
        return mirrored(exact) if exact.maps.dtype == torch.float32 else exact

    assert "implementation invariance" in failed(sabotaged(build(SIC), change), photos(16))


SMALL = ("resnet_tiny", "resnet_small", "vit_small")
WAYS: dict[str, tuple[type[Classifier], Form, torch.dtype]] = {
    "sic-float32": (SIC, "bcos", torch.float32),
    "bcos-float64": (Bcos, "bcosified", torch.float64),
    "sic-float64": (SIC, "bcosified", torch.float64),
    "bcos-float32": (Bcos, "bcos", torch.float32),
}
LARGE = {
    "resnet18": "sic-float32",
    "resnet18_smooth": "bcos-float64",
    "resnext50_32x4d": "sic-float32",
    "densenet121": "bcos-float64",
    "convnext_tiny": "bcos-float64",
    "convnext_tiny_bnu": "sic-float32",
    "vgg11": "sic-float32",
    "vitc_ti": "bcos-float64",
}
"""In one way each: the small ones have all ways, and both forms of a layer are in one or another of these."""
SHORT = {
    "resnext50_32x4d": lambda: ResNet(Bottleneck, [1, 1, 1, 1], groups=32, width_per_group=4),
    "convnext_tiny": lambda: ConvNeXt([CNBlockConfig(96, 192, 1), CNBlockConfig(192, None, 1)]),
}
"""Of few blocks, because grouped convolutions in double precision are slow. DenseNet is as deep as it always is."""
FAST = {("resnet_tiny", "sic-float32"), ("resnet_tiny", "bcos-float64"), ("vit_small", "sic-float32")}
CASES = [
    pytest.param(name, way, id=f"{name}-{way}", marks=() if (name, way) in FAST else pytest.mark.slow)
    for names in (itertools.product(SMALL, WAYS), LARGE.items())
    for name, way in names
]
"""Checks are made in both precisions whatever the model's own is."""


def test_every_family_is_among_them() -> None:
    def family(name: str) -> str:
        return name.split("_")[0].rstrip("0123456789")

    conventional_only = {"bagnet"}
    assert {family(name) for name in backbones.names()} - conventional_only == {
        family(name) for name in (*SMALL, *LARGE)
    }


@pytest.mark.parametrize(("backbone", "way"), CASES)
def test_no_false_alarm(backbone: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, short in SHORT.items():
        monkeypatch.setattr(models, name, short)
    method, form, dtype = WAYS[way]
    model = build(method, backbone, form).to(dtype)
    assert failed(model, photos(4).to(dtype), probes=2) == []


@pytest.mark.parametrize("form", ["bcos", "bcosified"])
def test_no_false_alarm_with_local_units(form: Form) -> None:
    assert failed(build(SIC, form=form, local=True), photos(4), probes=2) == []


@pytest.mark.parametrize("change", [uniform, shifted, half_in_the_constant, another_class])
def test_local_units_hide_no_sabotage(change: Change) -> None:
    found = failed(sabotaged(build(SIC, local=True), change), photos(4), probes=2)
    assert SABOTAGES[change] & set(found)
