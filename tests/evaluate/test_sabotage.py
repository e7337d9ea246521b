"""`sic verify` catches wrong explanations, by name."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic import backbones, model
from sic.data.images import Preprocessing
from sic.directory import Config
from sic.explain import explanation
from sic.methods import SIC, Answered, Bcos, Classifier, Contributions
from sic.methods.sic import AnsweredSIC
from sic.model import Model
from sic.settings import Form
from sic.supports import Support
from tests.cli.conftest import Sic, here
from tests.models import norms_take_the_next_batch

LABELS = [0, 0, 1, 2]
Change = Callable[[Contributions, Classifier, Tensor, Tensor], Contributions]
"""The right explanation, the model, images and targets → a wrong explanation."""


def photos(number: int, side: int = 32) -> Tensor:
    coarse = torch.rand(number, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return F.interpolate(coarse, (side, side), mode="bilinear")


def build(
    method: type[Classifier],
    backbone: str = "resnet_tiny",
    form: Form = "bcos",
    local: bool = False,
    b: float = 2,
    side: int = 32,
    **more: Any,
) -> Classifier:
    """In evaluation mode, with norms that have seen a batch and supports that are real latents. `more`: settings of the
    backbone."""
    torch.manual_seed(0)
    body = backbones.create(backbone, form, b=b, **more)
    if method is SIC:
        classifier: Classifier = SIC(body, 3, len(LABELS), latent=16, temperature=0.5, b=b, local_units=local)
    else:
        classifier = Bcos(body, 3, temperature=0.1, b=b)
    norms_take_the_next_batch(classifier)
    with torch.no_grad():
        classifier.train()(photos(8, side))
        classifier.eval()
        if isinstance(classifier, SIC):
            classifier.set_supports(
                classifier.encoder(in_bytes(photos(12, side)[-4:]).float() / 255), torch.tensor(LABELS)
            )
    return classifier


def in_bytes(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def as_model(classifier: Classifier, backbone: str = "resnet_tiny", side: int = 32) -> Model:
    """With the pictures of its cases."""
    pictures = in_bytes(photos(12, side)[-4:]).permute(0, 2, 3, 1).numpy()
    settings: dict[str, Any] = {"latent": 16, "method": classifier.name, "form": classifier.backbone.form}
    view, temperature = Preprocessing(side, side, "squash"), 0.5 if classifier.with_supports else 0.1
    config = Config(backbone, list("abc"), "single", view, 2, temperature, **settings)
    supports = [Support(n, f"{i}.png", pictures[i]) for i, n in enumerate(LABELS)] if classifier.with_supports else []
    return Model(classifier, config, supports)


def verified(folder: Path, images: Path, code: int, *more: object) -> set[str]:
    """The names of the checks that `sic verify` says have failed."""
    done = Sic(here)("verify", folder, images, "--device", "cpu", "--limit", 2, *more, code=code)
    if code == 0:
        assert "agree with its scores" in " ".join(done.stdout.split()) and " fail: " not in done.stderr
        return set()
    return set(" ".join(done.stderr.split()).rpartition(" fail: ")[2].rstrip(".").split(", "))


Sabotage = Callable[[pytest.MonkeyPatch], None]


def loading(change: Callable[[Classifier], Classifier]) -> Sabotage:
    """Whatever is loaded has another classifier."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        load = model.load

        def loaded(*arguments: Any) -> Model:
            found = load(*arguments)
            found.classifier = change(found.classifier)
            return found

        monkeypatch.setattr(model, "load", loaded)

    return patch


def lying(change: "Change") -> Sabotage:
    return loading(lambda classifier: sabotaged(classifier, change))


def of_kind(kind: type[Classifier]) -> Sabotage:
    def changed(classifier: Classifier) -> Classifier:
        classifier.__class__ = kind
        return classifier

    return loading(changed)


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


TRANSFORMED = (mirrored, half_in_the_constant, gradient_times_input, another_class, absolute)
"""For a transformer. Its constant differs from image to image, so that the sum alone says even less."""
CASES = [
    *((kind, change) for kind in ("SIC", "Bcos") for change in SABOTAGES),
    *(("transformer", change) for change in TRANSFORMED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "change"), CASES)
def test_a_wrong_explanation_is_caught(
    kind: str, change: Change, to_verify: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(change)(monkeypatch)
    assert SABOTAGES[change] <= verified(to_verify / kind, to_verify / "images", 1)


@pytest.mark.parametrize("kind", ["SIC", "Bcos", "transformer"])
def test_the_wrapper_alone_raises_no_alarm(kind: str, to_verify: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(lambda exact, *_: exact)(monkeypatch)
    verified(to_verify / kind, to_verify / "images", 0)


def only(condition: Callable[[Contributions], bool], change: Change) -> Change:
    return lambda exact, *more: change(exact, *more) if condition(exact) else exact


def single_precision(exact: Contributions) -> bool:
    """That users get."""
    return exact.maps.dtype == torch.float32


def several_images(classes: int) -> Callable[[Contributions], bool]:
    """`classes`: 1, or 2 for several."""
    return lambda exact: exact.maps.dim() == 4 and len(exact.maps) > 1 and min(exact.maps.shape[1], 2) == classes


def noisy(exact: Contributions, *_: object) -> Contributions:
    """Noise of 0.9 % of the largest contribution that adds up to zero."""
    noise = torch.randn(exact.maps.shape, generator=torch.Generator().manual_seed(0)).to(exact.maps)
    noise = noise - noise.mean(dim=(-2, -1), keepdim=True)
    noise = noise / noise.abs().amax(dim=(-2, -1), keepdim=True)
    return replace(exact, maps=exact.maps + 0.009 * noise * exact.maps.abs().amax(dim=(-2, -1), keepdim=True))


def in_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an `Explanation` holds of several contributions."""
    at = Contributions.at
    monkeypatch.setattr(Contributions, "at", lambda self, place: mirrored_maps_only(at(self, place)))


def of_supports(change: Change) -> Sabotage:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = explanation.support_contributions
        monkeypatch.setattr(explanation, "support_contributions", lambda *given: change(right(*given), *given))

    return patch


def of_cases(change: Change) -> Sabotage:
    """Of the evidence of cases, whoever is asked."""

    class Liar(SIC):
        def answered(self, images: Tensor) -> AnsweredSIC:
            answered = super().answered(images)
            right = answered.explain_evidence
            answered.explain_evidence = lambda supports: change(right(supports), self, images, supports)  # type: ignore[method-assign]
            return answered

        def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
            return self.answered(images).explain_evidence(supports)

    return of_kind(Liar)


def exchanged(exact: Contributions, classifier: Classifier, images: Tensor, supports: Tensor) -> Contributions:
    """The maps of classes that are not predicted."""
    assert isinstance(classifier, SIC)
    owners = classifier.support_classes
    others = (owners[supports] != classifier(images).argmax(dim=1)[:, None])[..., None, None]
    return replace(exact, maps=torch.where(others, exact.maps.roll(1, 1), exact.maps))


class UnfrozenSimilarity(SIC):
    """Its similarity is differentiated as in training: maps still add up."""

    def evidence(self, latents: Tensor, vectors: Tensor | None = None) -> Tensor:
        with mock.patch("sic.bcos.layers.frozen", lambda scale: scale):
            return super().evidence(latents, vectors)


class Aside(SIC):
    """`Model.explain` asks `answered`; whoever asks the classifier itself must get the same."""

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        return mirrored(super().explain(images, targets))


class Hasty(SIC):
    """Wrong without weights, which `Model.contributions` does not ask for."""

    def answered(self, images: Tensor) -> AnsweredSIC:
        answered = super().answered(images)
        explain = answered.explain

        def changed(targets: Tensor, weights: bool = True) -> Contributions:
            found = explain(targets, weights)
            return found if weights else mirrored_maps_only(found)

        answered.explain = changed  # type: ignore[method-assign]
        return answered


class Unspecific(SIC):
    """Explains the logit where its part above the mean of all classes is asked for."""

    def answered(self, images: Tensor) -> AnsweredSIC:
        answered = super().answered(images)
        answered.explain_specific = lambda targets: answered.explain(targets)  # type: ignore[method-assign]
        return answered


def biased(classifier: Classifier) -> Classifier:
    """With a bias in a layer that has not faded; explanations list it among the constants."""
    assert isinstance(classifier, SIC)
    projection = classifier.encoder.projection
    projection.bias, projection.progress = nn.Parameter(torch.full((16,), 0.01)), 0.9
    return classifier


ELSEWHERE: dict[str, tuple[Sabotage, set[str]]] = {
    "weights in single precision": (
        lying(only(single_precision, other_colours)),
        {"weights times input", "maps as returned"},
    ),
    "several images, one class": (lying(only(several_images(1), mirrored)), {"maps as returned"}),
    "several images, several classes": (lying(only(several_images(2), mirrored)), {"maps as returned"}),
    "in the figure": (in_the_figure, {"maps as returned"}),
    "mirrored support contributions": (of_supports(mirrored), {"support contributions"}),
    "scaled support contributions": (of_supports(lambda exact, *_: scaled(exact, -2)), {"support contributions"}),
    "cases in single precision": (of_cases(only(single_precision, mirrored_maps_only)), {"cases as returned"}),
    "cases of other classes": (of_cases(exchanged), {"cases as returned"}),
    "noise": (lying(noisy), {"weights times input", "maps as returned"}),
    "maps in single precision": (
        lying(only(single_precision, mirrored)),
        {"implementation invariance", "maps as returned"},
    ),
    "unfrozen similarity": (of_kind(UnfrozenSimilarity), {"weights", "maps as returned", "cases as returned"}),
    "one of two ways": (of_kind(Aside), {"implementation invariance"}),
    "without weights": (of_kind(Hasty), {"implementation invariance", "maps as returned"}),
    "specific maps": (of_kind(Unspecific), {"maps as returned"}),
    "a bias in a layer": (loading(biased), {"constant"}),
}
"""Wrong in one way of asking only, or somewhere else than in the explanation of a score."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_sabotage_of_one_way_is_caught(name: str, to_verify: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage, expected = ELSEWHERE[name]
    sabotage(monkeypatch)
    assert expected <= verified(to_verify / "SIC", to_verify / "images", 1)
