"""All checks hold for untrained models, and each axiom is found to fail where it is broken."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sic import backbones
from sic.evaluate import axioms
from sic.evaluate.checks import Check, as_json
from sic.evaluate.probe import Probe
from sic.evaluate.verification import measure
from sic.methods import SIC, Contributions
from sic.methods.sic import AnsweredSIC
from tests.evaluate.test_sabotage import as_model, in_bytes, photos
from tests.models import norms_take_the_next_batch

SIZE = 32
LABELS = [0, 0, 1, 2]
NAMES = [
    *("completeness", "weights times input", "weights", "constant", "sensitivity", "dummy", "symmetry", "equivariance"),
    *("implementation invariance", "deletion", "maps as returned", "cases as returned", "support contributions"),
    *("linearity", "matches", "partners"),
]


WRONG = ("a uniform map", 3.0)


def build(backbone: str = "resnet_tiny", b: float = 2, kind: type[SIC] = SIC) -> SIC:
    """In evaluation mode, with norms that have seen a batch and supports that are real latents."""
    torch.manual_seed(0)
    model = kind(backbones.create(backbone, b=b), 3, len(LABELS), latent=16, temperature=0.5, b=b)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8))
        model.eval().set_supports(model.encoder(in_bytes(photos(12)[-4:]) / 255), torch.tensor(LABELS))
        assert (model.evidence(model.encoder(photos(3))).abs() > 1e-5).float().mean() > 0.8
    return model


def measured(model: SIC, reloaded: SIC | None = None, seed: int = 0) -> dict[str, Check]:
    other = copy.deepcopy(model) if reloaded is None else reloaded
    return {check.name: check for check in measure(as_model(model), as_model(other), photos(3), probes=2, seed=seed)}


def probe(model: SIC) -> Probe:
    return Probe(model, copy.deepcopy(model).double(), photos(1), torch.Generator().manual_seed(0))


def failed(found: dict[str, Check]) -> set[str]:
    return {name for name, axiom in found.items() if not axiom.passed}


class Changed(SIC):
    """Explains by something else than what it computes."""

    def answered(self, images: Tensor) -> AnsweredSIC:
        answered = super().answered(images)
        explain, explain_evidence = answered.explain, answered.explain_evidence

        def changed(targets: Tensor, weights: bool = True) -> Contributions:
            exact = explain(targets, weights)
            exact.maps = self.change(exact.maps, images)
            return exact

        def changed_evidence(supports: Tensor) -> Contributions:
            exact = explain_evidence(supports)
            exact.maps = self.change(exact.maps, images)
            return exact

        answered.explain, answered.explain_evidence = changed, changed_evidence  # type: ignore[method-assign]
        return answered

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        return self.answered(images).explain(targets)

    def change(self, maps: Tensor, images: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("backbone", "b"),
    [
        pytest.param("resnet_tiny", 2, id="resnet"),
        pytest.param("resnet_tiny", 3, id="B=3", marks=pytest.mark.slow),
        pytest.param("vit_small", 2, id="vit", marks=pytest.mark.slow),
    ],
)
def test_untrained_models_pass_every_check(backbone: str, b: float) -> None:
    done: list[tuple[str, int, int]] = []
    model = build(backbone, b)
    other = build(backbone, b)
    result = measure(as_model(model), as_model(other), photos(3), probes=2, watch=lambda *at: done.append(at))
    assert [axiom.name for axiom in result] == NAMES
    assert failed({axiom.name: axiom for axiom in result}) == set()
    checks = {axiom.name: axiom.checks for axiom in result}
    assert checks["completeness"] == 3 * 3 and checks["linearity"] == 2 * 3 and checks["symmetry"] == 2
    assert checks["implementation invariance"] == 2 * 6
    assert 12 <= checks["sensitivity"] <= 2 * 12  # of 12 rounds with 2 images each
    assert 0.05 < checks["dummy"] / (2 * SIZE * SIZE) < 0.15
    assert done == [("all checks", 1, 2), ("all checks", 2, 2), ("completeness", 1, 1)]
    assert next(model.parameters()).dtype == torch.float32


def test_the_seed_decides_what_is_looked_at() -> None:
    model = build()
    first, again, other = (measured(model, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_completeness_looks_at_every_image() -> None:
    """In batches; the one image that is not explained comes last."""
    images, done = F.interpolate(photos(40), (8, 8)), []
    images[-1] = 0

    class Blind(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return torch.where((images == 0).all(dim=(1, 2, 3), keepdim=True), 2 * maps, maps)

    model = build(kind=Blind)
    double = copy.deepcopy(model).double()
    found = axioms.completeness(model, double, images, lambda *at: done.append(at))
    assert not found.passed and found.checks == 40 * 3
    assert len(done) > 1 and done[-1] == (40, 40)
    found = axioms.completeness(model, double, images[:-1])
    assert found.passed and set(found.details) == {
        "residual_float32",
        "residual_float64",
        "mean_evidence",
        "input_independent_share",
    }


def test_completeness_does_not_depend_on_the_scale_of_the_scores() -> None:
    """Residuals in double precision grow with what is added up."""
    model = build()
    model.temperature = 1e-9
    double = copy.deepcopy(model).double()
    exact = double.answered(photos(3).double()).explain(torch.zeros(3, dtype=torch.long))
    assert exact.residual.abs().max() > axioms.FLOAT64
    assert axioms.completeness(model, double, photos(3)).passed


def test_completeness_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 16 classes of each image, the predicted one among them; no dense weights."""
    torch.manual_seed(0)
    model = SIC(backbones.create("resnet_tiny"), 40, 40, latent=16, temperature=0.5).eval()
    model.set_supports(torch.rand(40, 16), torch.arange(40))
    asked: list[Tensor] = []
    explain = AnsweredSIC.explain

    def recorded(self: AnsweredSIC, targets: Tensor, weights: bool = True) -> Contributions:
        asked.append(targets)
        found = explain(self, targets, weights)
        assert found.weights.shape[-3] == 0
        return found

    monkeypatch.setattr(AnsweredSIC, "explain", recorded)
    found = axioms.completeness(model, copy.deepcopy(model).double(), photos(3))
    assert found.passed and found.checks == 3 * 16
    best = model(photos(3)).argmax(dim=1)
    assert all(targets[:, 0].equal(best) and all(len({*row}) == 16 for row in targets.tolist()) for targets in asked)


def test_completeness_fails_for_a_constant_that_is_not_registered() -> None:
    model = build()
    model.encoder.backbone.register_forward_hook(lambda _, __, output: output + 0.01)
    found = measured(model)
    assert {"completeness", "weights", "maps as returned"} <= failed(found)
    assert found["completeness"].details["residual_float64"] > 1e-4


def test_completeness_fails_where_norms_are_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer norm does not change with the length of its input: gradient times input is about zero."""
    model = build("vit_small")
    monkeypatch.setattr("sic.bcos.norms.frozen", lambda scale: scale)
    found = measured(model)["completeness"]
    assert not found.passed and found.details["residual_float64"] > 0.1


def test_completeness_fails_where_similarities_are_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-cos units grow with the length of their input, so gradient times input misses by their epsilon only."""
    model = build(b=3)
    monkeypatch.setattr("sic.bcos.layers.frozen", lambda scale: scale)
    found = measured(model)["completeness"]
    assert not found.passed and found.details["residual_float64"] > 1e-9


def test_completeness_is_held_to_double_precision() -> None:
    class Rounded(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return maps.float().to(maps)

    found = axioms.completeness(build(), build(kind=Rounded).double(), photos(2))
    assert not found.passed and 1e-10 < found.details["residual_float64"] < 1e-5
    assert found.details["residual_float32"] < 1e-4


def test_sensitivity_fails_where_pixels_are_left_out() -> None:
    """Half of the pixels get nothing; what they would have got goes to the others, so that the sum is right."""

    class Half(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            pairs = maps.unflatten(-1, (SIZE // 2, 2))
            return torch.stack([pairs.sum(dim=-1), torch.zeros_like(pairs[..., 0])], dim=-1).flatten(-2)

    found = measured(build(kind=Half))
    assert "sensitivity" in failed(found) and "completeness" not in failed(found)
    assert 0.2 < found["sensitivity"].worst < 0.8


def test_sensitivity_is_not_shown_by_a_model_that_sees_nothing() -> None:
    model = build()
    with torch.no_grad():
        model.support_vectors.zero_()
    found = measured(model)["sensitivity"]
    assert found.checks == 0 and found.verdict == "undecided"


def test_implementation_invariance_fails_for_other_weights() -> None:
    model, other = build(), build()
    with torch.no_grad():
        other.encoder.projection.weight[:, 0] += 0.05
    found = measured(model, other)
    assert failed(found) == {"implementation invariance"}
    details = found["implementation invariance"].details
    assert details["reloaded"] > 1e-3 > details["channels-last"]


def test_implementation_invariance_fails_for_a_model_that_minds_the_memory_layout() -> None:
    class Layout(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            weight = self.encoder.backbone.network[0].weight
            return maps if weight.is_contiguous() else 2 * maps

    details = measured(build(kind=Layout))["implementation invariance"].details
    assert details["channels-last"] == pytest.approx(1, abs=1e-3) and details["reloaded"] < 1e-3


def test_implementation_invariance_fails_for_a_model_that_minds_the_layout_of_images() -> None:
    class Layout(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return 2 * maps if self.backbone.prepared(images).is_contiguous() else maps

    details = measured(build(kind=Layout))["implementation invariance"].details
    assert details["contiguous"] == pytest.approx(1, abs=1e-3) and details["reloaded"] < 1e-3


def test_linearity_fails_where_evidence_is_explained_otherwise() -> None:
    class Louder(SIC):
        def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
            exact = super().explain_evidence(images, supports)
            exact.maps = 1.001 * exact.maps
            return exact

    found = measured(build(kind=Louder))
    assert failed(found) == {"linearity", "cases as returned"}
    assert found["linearity"].worst == pytest.approx(1e-3, rel=1e-3)


def test_linearity_fails_where_each_map_is_scaled_to_one() -> None:
    class Normalised(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return maps / maps.abs().amax(dim=(-2, -1), keepdim=True)

    assert "linearity" in failed(measured(build(kind=Normalised)))


def test_dummy_fails_where_maps_are_smoothed() -> None:
    """What hidden pixels get then comes from their neighbours."""

    class Smoothed(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return F.avg_pool2d(maps.flatten(0, -3)[:, None], 3, 1, 1).view_as(maps)

    found = measured(build(kind=Smoothed))
    assert {"dummy", "symmetry"} <= failed(found)
    assert found["dummy"].worst > 1e-6


def test_dummy_fails_for_a_model_that_sees_hidden_pixels() -> None:
    """The model gets at the image past what it is given; its map does not show it, its answer does."""
    seen: list[Tensor] = []
    model, generator = build(), torch.Generator().manual_seed(0)
    assert axioms.dummy(probe(model), generator).passed
    backbone = model.encoder.backbone
    prepared = backbone.prepared

    def spying(images: Tensor) -> Tensor:
        encoded = prepared(images)
        seen.insert(0, encoded.detach())
        return encoded

    backbone.prepared = spying  # type: ignore[method-assign]
    backbone.network.register_forward_hook(lambda _, __, output: 10 * output * seen[0][:, :1].mean())
    found = axioms.dummy(probe(model), generator)
    assert not found.passed and found.worst > 1e-3


def test_symmetry_fails_where_places_are_weighted() -> None:
    class Weighted(Changed):
        def change(self, maps: Tensor, images: Tensor) -> Tensor:
            return maps * torch.linspace(1, 2, SIZE).to(maps)

    found = measured(build(kind=Weighted))
    assert "symmetry" in failed(found) and "dummy" not in failed(found)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_the_share_that_no_pixel_has(backbone: str) -> None:
    """By subtraction, from the class with the highest score: 0 without positions."""
    model, few = build(backbone).double(), photos(3).double()
    shares = []
    for image in few.split(1):
        logits = model(image)[0].detach()
        exact = model.explain(image, logits.argmax()[None])
        shares.append(1 - exact.maps.sum().item() / (logits.max().item() - model.bias))
    found = axioms.completeness(model.float(), copy.deepcopy(model).double(), few.float())
    assert found.details["input_independent_share"] == pytest.approx(sum(shares) / 3, abs=1e-5)
    assert (abs(sum(shares)) > 1e-3) == (backbone == "vit_small")


@pytest.mark.parametrize(
    ("worst", "checks", "passed"),
    [(0.5, 3, True), (1.0, 3, True), (1.1, 3, False), (0.0, 0, True), (float("nan"), 3, False)],
)
def test_when_an_axiom_passes(worst: float, checks: int, passed: bool) -> None:
    assert Check("a", "b", worst, 1.0, checks, WRONG).passed == passed
    assert (Check("a", "b", worst, 1.0, checks, WRONG).verdict == "undecided") == (checks == 0)
    assert Check("a", "b", worst, 1.0, checks, WRONG, decided=False).verdict == "undecided"


def test_the_keys_of_the_json() -> None:
    found = as_json(list(measured(build()).values()))
    assert found["passed"] is True
    assert set(found) == {"passed", "failed", "undecided", "axioms"}
    assert list(found["axioms"]) == [name.replace(" ", "_") for name in NAMES]
    common = {"passed", "worst", "limit", "checks", "wrong_explanation", "wrong_value", "verdict"}
    more = {
        "completeness": {"residual_float32", "residual_float64", "mean_evidence", "input_independent_share"},
        "implementation_invariance": {
            *("reloaded", "channels-last", "contiguous", "explained alone", "float64", "without weights"),
        },
        "constant": {"bias_only"},
        "equivariance": {"mirrored", "shuffled"},
        "weights_times_input": {"float32", "float64"},
        "maps_as_returned": {
            "one image, its answer",
            "one image, one class",
            "one image, several classes",
            "several images, one class",
            "several images, several classes",
            "specific to a class",
            "without weights",
        },
        "cases_as_returned": {"cases of the first class", "cases of another class", "asked of the classifier"},
        "support_contributions": {"support contributions", "in explanations"},
        "matches": {"numbers", "regions", "image", "shares", "picture of the case", "all cases", "contrast"},
        "partners": {"fit", "interval"},
        "deletion": {"drop_beyond_random", "interval", "uniform_map", "uniform_interval", "lag", "lag_interval"},
    }
    for name, axiom in found["axioms"].items():
        assert set(axiom) == common | more.get(name, set())
    assert json.loads(json.dumps(found)) == found
    one_fails = [Check("a b", "", 0.0, 1.0, 1, WRONG), Check("c", "", 2.0, 1.0, 1, WRONG)]
    assert as_json(one_fails)["passed"] is False and as_json(one_fails)["failed"] == ["c"]
    assert as_json(one_fails)["axioms"]["a_b"]["passed"] is True
