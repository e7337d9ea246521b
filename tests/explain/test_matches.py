"""Matches against a slow reference that traces every latent unit by itself, and the grouping of units."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sic import backbones
from sic.explain.matches import GROUPS, Matches, Region, find_matches, grouped, unit_evidence
from sic.explain.regions import centre, core, outlines
from sic.methods import SIC
from sic.methods.contract import Traced
from sic.supports import Support
from tests.models import norms_take_the_next_batch

SIZE = 32
LABELS = [0, 0, 1, 2]
LARGE = ("resnet18", "resnet18_smooth", "densenet121", "vgg11", "resnext50_32x4d", "convnext_tiny")
FAMILIES = ["resnet_tiny", "vit_small", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


def photos(number: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pictures that survive being stored in 8 bits."""
    coarse = torch.rand(number, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return (F.interpolate(coarse, (SIZE, SIZE), mode="bilinear") * 255).round().to(dtype) / 255


def stored(images: Tensor, keep: bool = True) -> list[Support]:
    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Support(label, f"{i}.png", pixels[i] if keep else None) for i, label in enumerate(LABELS)]


def build(backbone: str = "resnet_tiny", b: float = 2, form: str = "bcos", latent: int = 12) -> SIC:
    torch.manual_seed(0)
    network = backbones.create(backbone, form, b=b)  # type: ignore[arg-type]
    model = SIC(network, 3, len(LABELS), latent=latent, temperature=1.0, b=b)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8))
        model.eval().set_supports(model.encoder(photos(4)), torch.tensor(LABELS))
        model.temperature *= model.evidence(model.encoder(photos(8)[4:])).mean().item()
    return model


def found(model: SIC, images: Tensor, cases: list[list[int]], **options: int) -> list[dict[int, Matches]]:
    return find_matches(model.answered(images), stored(photos(4)), cases, **options)


def slow_unit_map(model: SIC, image: Tensor, unit: int) -> tuple[Tensor, float]:
    """The map of one unit and its share without pixels, by one backward pass for this unit alone."""
    traced = Traced(lambda: model.encoder(image[None])).contributions(lambda latents: latents[:, unit : unit + 1])
    return traced.maps[0, 0], traced.constant.item()


def slow_unit_evidence(model: SIC, latents: Tensor, case: int) -> Tensor:
    """`e_k = f_k · v_k / ‖v‖ · |cos|^(B - 1) / T`, as the paper's formulas give it."""
    vector = model.support_vectors[case]
    direction = vector / vector.norm()
    cosine = (latents @ direction).abs() / (latents.norm() + 1e-12)  # a latent of zero has no angle
    return latents * direction * cosine ** (model.b - 1) / model.temperature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backbone", FAMILIES)
def test_every_sum_against_single_units(backbone: str, dtype: torch.dtype) -> None:
    model = build(backbone).to(dtype)
    images, supports = photos(8, dtype)[4:6], photos(4, dtype)
    if dtype == torch.float64:  # the vectors of the supports in the same precision as everything else
        with torch.no_grad():
            model.set_supports(model.encoder(supports), torch.tensor(LABELS))
    answered = model.answered(images)
    latents = answered.traced.features
    cases = [[0], [3]]
    result = find_matches(answered, stored(supports), cases)
    error = 1e-5 if dtype == torch.float32 else 1e-10
    for n, wanted in enumerate(cases):
        assert sorted(result[n]) == wanted
        for case in wanted:
            matches = result[n][case]
            evidence = answered.evidence[n, case].item()
            scale = max(1.0, abs(evidence))
            assert evidence > 0
            assert abs(sum(part.evidence for part in matches.parts) - evidence) <= error * scale
            slow = slow_unit_evidence(model, latents[n], case)
            units = sorted(unit for part in matches.parts for unit in part.units)
            assert units == (slow > 0).nonzero()[:, 0].tolist()
            for part in matches.parts:
                assert abs(part.evidence - slow[list(part.units)].sum().item()) <= error * scale
                assert part.share == pytest.approx(part.evidence / evidence)
                assert part.support is not None
                for picture, region in ((images[n], part.image), (supports[case], part.support)):
                    assert abs(region.value - part.evidence) <= error * max(scale, region.map.abs().sum().item())
                    compare(model, picture, part.units, slow, region, error)


def compare(
    model: SIC, picture: Tensor, units: tuple[int, ...], evidence: Tensor, region: Region, error: float
) -> None:
    """A region against the sum of single units."""
    with torch.no_grad():
        latents = model.encoder(picture[None])[0]
    expected, constant = torch.zeros_like(region.map), 0.0
    for unit in units:
        maps, share = slow_unit_map(model, picture, unit)
        factor = (evidence[unit] / latents[unit]).item()
        expected, constant = expected + factor * maps, constant + factor * share
    # An untrained deep network magnifies the rounding that differs between one picture and a batch of them.
    assert (region.map - expected).abs().max().item() <= 100 * error * max(expected.abs().max().item(), 1e-3)
    assert abs(region.constant - constant) <= 100 * error * max(1.0, abs(constant))


@pytest.mark.parametrize(("b", "form"), [(1, "bcos"), (1.5, "bcos"), (2.5, "bcos"), (2, "bcosified")])
def test_any_exponent_and_form(b: float, form: str) -> None:
    model = build("resnet_tiny", b, form).double()
    images = photos(8, torch.double)[4:5]
    answered = model.answered(images)
    matches = find_matches(answered, stored(photos(4)), [[1]])[0][1]
    evidence = answered.evidence[0, 1].item()
    assert sum(part.evidence for part in matches.parts) == pytest.approx(evidence, rel=1e-12)
    assert sum(part.image.value for part in matches.parts) == pytest.approx(evidence, rel=1e-9)
    single = {unit: slow_unit_evidence(model, answered.traced.features[0], 1)[unit].item() for unit in range(12)}
    for part in matches.parts:  # the formula has no epsilon, the network has
        assert part.evidence == pytest.approx(sum(single[unit] for unit in part.units), rel=1e-4, abs=1e-9)


def test_the_maps_of_all_parts_are_those_of_the_evidence() -> None:
    model, images = build().double(), photos(8, torch.double)[4:6]
    supports = torch.tensor([[0, 1, 2, 3]] * 2)
    result = found(model, images, supports.tolist())
    whole = model.explain_evidence(images, supports)
    for n in range(2):
        for case in range(4):
            maps = sum(part.image.map for part in result[n][case].parts)
            torch.testing.assert_close(maps, whole.maps[n, case], rtol=1e-8, atol=1e-12)


def test_a_batch_gives_the_same_as_single_images() -> None:
    model, images = build("vit_small").double(), photos(8, torch.double)[4:7]
    cases = [[0, 1, 2], [3], [2, 0]]
    together = found(model, images, cases)
    for n, wanted in enumerate(cases):
        alone = found(model, images[n : n + 1], [wanted])[0]
        for case in wanted:
            assert [p.units for p in alone[case].parts] == [p.units for p in together[n][case].parts]
            for one, other in zip(alone[case].parts, together[n][case].parts, strict=True):
                torch.testing.assert_close(one.image.map, other.image.map, rtol=1e-8, atol=1e-12)
                assert one.support is not None and other.support is not None
                torch.testing.assert_close(one.support.map, other.support.map, rtol=1e-8, atol=1e-12)


def test_a_cap_leaves_the_weakest_units_to_the_rest() -> None:
    model, images = build().double(), photos(8, torch.double)[4:5]
    everything = found(model, images, [[0]])[0][0]
    capped = found(model, images, [[0]], units=2)[0][0]
    slow = slow_unit_evidence(model, model.answered(images).traced.features[0], 0)
    strongest = slow.argsort(descending=True)[:2].tolist()
    traced = {unit for group in capped.groups for unit in group.units}
    assert traced <= set(strongest)
    weakest = (slow.sum() - slow[strongest].sum()) / slow.sum()
    assert capped.untraced == pytest.approx(weakest.item())
    assert capped.untraced > everything.untraced
    assert sum(part.evidence for part in capped.parts) == pytest.approx(slow.sum().item())
    assert capped.rest.image.value == pytest.approx(capped.rest.evidence)
    assert everything.untraced <= 0.02


def test_no_more_backward_passes_than_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build(latent=4), photos(8)[4:6]
    passes = 0
    gradient = torch.autograd.grad

    def counted(outputs: Tensor, inputs: list[Tensor] | Tensor, **options: object) -> object:
        nonlocal passes
        passes += isinstance(inputs, list)  # down to the pixels
        return gradient(outputs, inputs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "grad", counted)
    find_matches(model.answered(images), stored(photos(4)), [[0, 1, 2, 3]] * 2)
    assert 0 < passes <= 2 * 4  # images and cases


def test_cases_without_images_and_without_evidence() -> None:
    model, images = build(), photos(8)[4:5]
    vectors = model.support_vectors.clone()
    vectors[0] = 0
    model.set_supports(vectors, model.support_classes)
    result = find_matches(model.answered(images), stored(photos(4), keep=False), [[0, 1]])[0]
    assert result[0].groups == [] and result[0].rest.evidence == result[0].rest.share == result[0].untraced == 0
    assert (result[0].rest.image.map == 0).all()
    assert all(part.support is None for case in (0, 1) for part in result[case].parts)
    assert result[1].groups and find_matches(model.answered(images), [], [[]]) == [{}]


def test_what_a_picture_lacks_has_no_place_in_it() -> None:
    """A support vector need not be the latent of its image (--inference-supports centroid)."""
    model, images = build().double(), photos(8, torch.double)[4:5]
    with torch.no_grad():
        own = model.encoder(photos(4, torch.double))
    lacking = next(k for k in range(12) if own[0, k] == 0 and model.encoder(images)[0, k] > 0)
    vectors = own.clone()
    vectors[0, lacking] = own[0].max()
    model.set_supports(vectors, model.support_classes)
    matches = found(model, images, [[0]])[0][0]
    part = next(part for part in matches.parts if lacking in part.units)
    assert part.support is not None
    assert part.support.value == pytest.approx(part.evidence)
    assert part.support.constant > 0
    assert part.image.constant == pytest.approx(0, abs=1e-12)


def test_matches_do_not_change_the_model_and_work_in_inference_mode() -> None:
    model, images = build(), photos(8)[4:5]
    before = copy.deepcopy(model.state_dict())
    expected = found(model, images, [[0]])[0][0]
    with torch.inference_mode():
        got = found(model, images, [[0]])[0][0]
    assert [part.evidence for part in got.parts] == [part.evidence for part in expected.parts]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def blobs(*places: tuple[int, int]) -> Tensor:
    maps = torch.zeros(len(places), SIZE, SIZE)
    for blob, (row, column) in zip(maps, places, strict=True):
        blob[row : row + 8, column : column + 8] = 1
    return maps


def test_units_are_grouped_if_they_agree_in_both_pictures() -> None:
    image = blobs((0, 0), (0, 0), (20, 20), (0, 0))
    support = blobs((0, 20), (0, 20), (20, 0), (20, 20))
    groups = grouped([image, support], [4.0, 3.0, 2.0, 1.0])
    assert sorted(sorted(group) for group in groups) == [[0, 1], [2], [3]]
    assert sorted(sorted(group) for group in grouped([image], [4.0, 3.0, 2.0, 1.0])) == [[0, 1, 3], [2]]


def test_at_most_five_groups_strongest_first() -> None:
    model, images = build("resnet_tiny", latent=64), photos(8)[4:8]
    for result in found(model, images, [[0, 1, 2, 3]] * 4):
        for matches in result.values():
            assert len(matches.groups) <= GROUPS
            evidence = [match.evidence for match in matches.groups]
            assert evidence == sorted(evidence, reverse=True)
            assert [match.number for match in matches.groups] == list(range(1, len(evidence) + 1))
            assert matches.rest.number == 0


def test_unit_evidence_by_hand() -> None:
    split = unit_evidence(torch.tensor([[1.0, 2, 0]]), torch.tensor([[3.0, 1, 5]]), torch.tensor([10.0]))
    torch.testing.assert_close(split, torch.tensor([[6.0, 4, 0]]))
    assert (unit_evidence(torch.zeros(1, 3), torch.ones(1, 3), torch.zeros(1)) == 0).all()


def test_the_core_of_a_map() -> None:
    maps = torch.zeros(64, 64)
    maps[10:30, 40:50] = 3.0
    maps[50:60, 5:15] = 0.1
    maps[0:5, 0:5] = -7.0
    mask = core(maps)
    assert mask[15:25, 43:47].all() and not mask[48:].any() and not mask[:6, :6].any()
    place = centre(mask)
    assert place is not None and place == pytest.approx((45, 20), abs=1)
    (border,) = outlines(mask)
    assert border[0] == border[-1]
    x, y = np.array(border).T
    area = abs(np.dot(x[:-1], y[1:]) - np.dot(x[1:], y[:-1])) / 2
    assert area == pytest.approx(int(mask.sum()), rel=0.1)
    assert not core(-torch.ones(8, 8)).any() and centre(core(torch.zeros(8, 8))) is None
    assert outlines(torch.zeros(8, 8, dtype=torch.bool)) == []
