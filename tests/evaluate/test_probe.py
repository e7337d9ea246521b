"""What checks of the same image share, and how the results of several images become one."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sic.backbones import create
from sic.evaluate import axioms
from sic.evaluate.checks import Check, pooled, together
from sic.evaluate.linearised import Linearised, encoded_colours
from sic.evaluate.probe import Probe, seen_through
from sic.evaluate.reference import SHAKE, Reference, evidence, score
from sic.evaluate.returned import Pictures, Returned
from sic.evaluate.verification import measure
from sic.methods import SIC, Bcos, Classifier, Contributions
from tests.evaluate.test_sabotage import as_model, build, photos, sabotaged

CHECK = Check("a", "b", 0.5, 1.0, 3, ("a uniform map", 3.0), {"one": 1.0, "two": 2.0})


def test_the_worst_image_counts() -> None:
    other = replace(CHECK, worst=2.0, checks=5, wrong=("a uniform map", 1.0), details={"two": 3.0, "three": 0.0})
    found = together([CHECK, other])
    assert found.worst == 2.0 and not found.passed and found.checks == 8 and found.wrong == ("a uniform map", 3.0)
    assert found.details == {"one": 1.0, "two": 3.0, "three": 0.0}


@pytest.mark.parametrize("first", [True, False])
def test_one_image_that_decides_is_enough_and_no_image_is_left_out(first: bool) -> None:
    undecided = replace(CHECK, worst=2.0, decided=False)
    assert together([undecided, undecided]).verdict == "undecided"
    assert together([CHECK, undecided] if first else [undecided, CHECK]).verdict == "FAIL"


def test_shares_are_those_of_all_checks() -> None:
    found = pooled([replace(CHECK, worst=1.0, checks=1), replace(CHECK, worst=0.0, checks=3, wrong=("c", 1.0))])
    assert found.worst == 0.25 and found.checks == 4 and found.wrong[1] == pytest.approx(1.5)
    assert pooled([replace(CHECK, worst=0.0, checks=0)]).verdict == "undecided"


@pytest.mark.parametrize(("method", "backbone"), [(SIC, "resnet_tiny"), (Bcos, "resnet_tiny"), (SIC, "vit_small")])
def test_one_linearised_network_answers_all_questions(method: type[Classifier], backbone: str) -> None:
    """In any order, and again."""
    model, image = build(method, backbone).double(), photos(1).double()
    linear = Linearised(model, encoded_colours(image))
    exact = model.explain(image, torch.tensor([[2, 0]]))
    for _ in range(2):
        for place, label in enumerate((2, 0)):
            found = linear.traced(score(label)(linear))
            assert torch.allclose(found.maps[0], exact.maps[0, place], atol=1e-12)
            assert torch.allclose(found.weights[0], exact.weights[0, place], atol=1e-12)
            assert found.constant.item() == pytest.approx(exact.constant[0, place].item(), abs=1e-12)
        assert torch.allclose(linear.answer(torch.cat([encoded_colours(image)] * 2)), model(image).expand(2, -1))
    if isinstance(model, SIC):
        found = linear.traced(evidence(3)(linear))
        assert torch.allclose(found.maps[0], model.explain_evidence(image, torch.tensor([3])).maps[0], atol=1e-12)


def test_a_linearised_network_leaves_memory_at_once() -> None:
    """That of a large network holds a gigabyte; the collector of cycles would be too late."""
    reference = Reference(build(SIC).double(), photos(1)[0])
    known = reference.known(score, 0)
    held = weakref.ref(reference.linear)
    gc.disable()
    try:
        reference.release()
        assert held() is None
    finally:
        gc.enable()
    assert reference.known(score, 0) is known
    assert torch.equal(reference.of(score(0)).maps, known[1].maps)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_rounding_moves_contributions_of_every_image(value: float) -> None:
    """Also of a black one, whose pixels are zero."""
    reference = Reference(build(SIC).double(), torch.full((3, 32, 32), value))
    assert 1e-9 < reference.moved(*reference.known(score, 0)) < 1e-4


def test_noise_switches_the_gates_that_rounding_switches() -> None:
    """It moves the features of every place several times as much as rounding does."""
    torch.manual_seed(0)
    backbone = create("resnet18").eval()
    double, image = copy.deepcopy(backbone).double(), photos(1, side=96).double()
    encoded, noise = encoded_colours(image), torch.randn(1, 6, 96, 96, dtype=torch.float64)
    with torch.no_grad():
        right = double.network(encoded)
        rounded = backbone.network(encoded.float()).double() - right
        shaken = double.network(encoded * (1 + SHAKE * noise)) - right
    assert (shaken.norm(dim=1) > 3 * rounded.norm(dim=1)).all()


def test_one_picture_at_a_time_is_linearised() -> None:
    model = as_model(build(SIC))
    double = copy.deepcopy(model.sic).double()
    pictures = Pictures(model, double, [1])
    first, second = pictures.reference(0), pictures.reference(1)
    assert first.linear is first.linear
    assert pictures.reference(0) is first and "linear" not in vars(second)
    pictures.reference(1)
    assert "linear" not in vars(first)


def test_double_precision_counts_beyond_the_probes() -> None:
    """The answer is explained in it."""

    def rounded(exact: Contributions, *_: object) -> Contributions:
        return replace(exact, maps=exact.maps.float().to(exact.maps))

    model = build(SIC)
    double = copy.deepcopy(model).double()
    found = axioms.completeness(model, sabotaged(double, rounded), photos(2), exact=1)
    assert not found.passed and found.details["residual_float32"] < 1e-5
    assert axioms.completeness(model, double, photos(2), exact=1).passed


def test_the_line_of_completeness_says_what_was_looked_at() -> None:
    model = as_model(build(SIC))
    found = {n: measure(model, copy.deepcopy(model), photos(3), probes=n)[0] for n in (1, 3)}
    assert "for 2 of 3 images, in 64 bit to that of the answer only" in found[1].statement
    assert found[3].statement.endswith("add up to the logit")
    assert found[1].checks == found[3].checks == 3 * 3


def test_double_precision_decides_about_pixels_without_an_attribution() -> None:
    """Single precision does not see that they change the score."""

    def weakened(encoded: Tensor) -> Tensor:
        faint = encoded.clone()
        faint[..., ::2] *= 1e-8
        return faint

    def silent(exact: Contributions, *_: object) -> Contributions:
        maps = exact.maps.clone()
        maps[..., ::2] = 0
        return replace(exact, maps=maps)

    model = seen_through(build(SIC), weakened)
    double = sabotaged(copy.deepcopy(model).double(), silent)
    generator = torch.Generator().manual_seed(0)
    found = axioms.sensitivity(Probe(model, double, photos(1), generator), generator)
    assert not found.passed and 0.2 < found.worst < 0.8
    assert axioms.sensitivity(Probe(model, copy.deepcopy(model).double(), photos(1), generator), generator).passed


def test_returned_explanations_are_of_the_next_best_class_and_of_random_ones() -> None:
    model, images = as_model(build(SIC)), photos(8)
    second = model.classifier(images).argsort(dim=1, descending=True)[:, 1].tolist()
    found = []
    for seed in range(4):
        returned = Returned(model, images, torch.Generator().manual_seed(seed))
        explained = [[one.name for one in own[2][1].classes] for own in returned.found]
        assert all(len({*names}) == 2 for names in explained)
        assert [names[1] for names in explained][::2] == [model.classes[label] for label in second][::2]
        found.append([names[1] for names in explained][1::2])
    assert any(each != found[0] for each in found)


def test_a_model_of_one_class_is_verified() -> None:
    classifier = Bcos(build(Bcos).backbone, 1, temperature=0.1).eval()
    model = as_model(classifier)
    model.config = replace(model.config, classes=["a"])
    checks = {check.name: check for check in measure(model, copy.deepcopy(model), photos(3), probes=2)}
    assert all(check.passed for check in checks.values()) and checks["maps as returned"].decided
