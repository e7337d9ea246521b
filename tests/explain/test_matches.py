"""Matches against a slow reference that traces every latent unit by itself, and the regions that correspond."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sic import backbones
from sic.explain.correspondence import GROUPS, corresponding
from sic.explain.matches import ALIKE, Matches, Region, find_matches, unit_evidence
from sic.explain.regions import centre, core, outlines
from sic.methods import SIC
from sic.methods.contract import Traced
from sic.supports import Support
from tests.models import norms_take_the_next_batch

SIZE = 32
LABELS = [0, 0, 1, 2]
LARGE = ("resnet18", "resnet18_smooth", "densenet121", "vgg11", "convnext_tiny", "vitc_ti")
WIDE = 96
"""The size of pictures of which deep networks have feature maps with several places."""
FAMILIES = [
    ("resnet_tiny", SIZE, {}),
    ("resnet_tiny", SIZE, {"local_units": True}),
    ("resnet_tiny", SIZE, {"relu": False}),
    ("vit_small", SIZE, {}),
    *(pytest.param(name, WIDE, {}, marks=pytest.mark.slow) for name in LARGE),
    pytest.param("resnext50_32x4d", 128, {}, marks=pytest.mark.slow),
    pytest.param("resnet18", WIDE, {"local_units": True}, marks=pytest.mark.slow),
    pytest.param("timm/mobilenetv3_small_050", WIDE, {}, marks=pytest.mark.slow),
]


def photos(number: int, dtype: torch.dtype = torch.float32, size: int = SIZE) -> Tensor:
    """Pictures that survive being stored in 8 bits."""
    coarse = torch.rand(number, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return (F.interpolate(coarse, (size, size), mode="bilinear") * 255).round().to(dtype) / 255


def stored(images: Tensor, keep: bool = True) -> list[Support]:
    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Support(label, f"{i}.png", pixels[i] if keep else None) for i, label in enumerate(LABELS)]


def build(
    backbone: str = "resnet_tiny", b: float = 2, form: str = "bcos", latent: int = 12, size: int = SIZE, **options: Any
) -> SIC:
    torch.manual_seed(0)
    network = backbones.create(backbone, form, b=b)  # type: ignore[arg-type]
    model = SIC(network, 3, len(LABELS), latent=latent, temperature=1.0, b=b, **options)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8, size=size))
        model.eval().set_supports(model.encoder(photos(4, size=size)), torch.tensor(LABELS))
        model.temperature *= model.evidence(model.encoder(photos(8, size=size)[4:])).mean().item()
    return model


def found(model: SIC, images: Tensor, cases: list[list[int]]) -> list[dict[int, Matches]]:
    return find_matches(model.answered(images), stored(photos(4)), cases)


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
@pytest.mark.parametrize(("backbone", "size", "options"), FAMILIES, ids=str)
def test_every_sum_against_single_units(
    backbone: str, size: int, options: dict[str, bool], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sic.explain.matches.ALIKE", -1.0)  # to untrained networks, no two places are alike
    monkeypatch.setattr("sic.explain.correspondence.ONE_SIDED", 0.0)
    if backbone.startswith("timm/"):
        pytest.importorskip("timm")
    model = build(backbone, size=size, **options).to(dtype)
    images, supports = photos(8, dtype, size)[4:6], photos(4, dtype, size)
    if dtype == torch.float64:  # the vectors of the supports in the same precision as everything else
        with torch.no_grad():
            model.set_supports(model.encoder(supports), torch.tensor(LABELS))
    answered = model.answered(images)
    cases = [[0, 2], [3]]
    result = find_matches(answered, stored(supports), cases)
    error = 1e-5 if dtype == torch.float32 else 1e-10
    for n, wanted in enumerate(cases):
        assert sorted(result[n]) == wanted
        for case in wanted:
            parts = result[n][case].parts
            evidence = answered.evidence[n, case].item()
            slow = slow_unit_evidence(model, answered.traced.features[n], case)
            assert evidence > 0
            assert abs(slow.sum().item() - evidence) <= error * max(1.0, evidence)
            for part in parts:
                assert part.share == pytest.approx(part.evidence / evidence, rel=1e-3)
                assert part.evidence == pytest.approx(part.image.value, abs=error * max(1.0, evidence))
            check_side(model, images[n], slow, [part.image for part in parts], error)
            check_side(model, supports[case], slow, [part.support for part in parts], error)
    groups = [len(each.groups) for row in result for each in row.values()]
    assert max(groups) > 1, "sums of one part are no test"


def check_side(model: SIC, picture: Tensor, evidence: Tensor, regions: Sequence[Region | None], error: float) -> None:
    """The regions of one picture add up to the evidence, and their maps to the sum of the maps of single units."""
    parts = [region for region in regions if region is not None]
    maps = torch.stack([part.map for part in parts])
    size = max(1.0, maps.abs().sum().item())
    assert len(parts) == len(regions)
    assert ((maps != 0).sum(dim=0) <= 1).all()  # a pixel belongs to one region
    assert abs(sum(part.value for part in parts) - evidence.sum().item()) <= error * size
    with torch.no_grad():
        latents = model.encoder(picture[None])[0]
    expected, constant = torch.zeros_like(maps[0]), 0.0
    for unit in evidence.nonzero()[:, 0].tolist():
        single, share = slow_unit_map(model, picture, unit)
        factor = (evidence[unit] / latents[unit]).item()
        expected, constant = expected + factor * single, constant + factor * share
    # An untrained deep network magnifies the rounding that differs between one picture and a batch of them.
    assert (maps.sum(dim=0) - expected).abs().max().item() <= 100 * error * max(expected.abs().max().item(), 1e-3)
    assert abs(sum(part.constant for part in parts) - constant) <= 100 * error * max(1.0, abs(constant))


@pytest.mark.parametrize(("b", "form"), [(1, "bcos"), (1.5, "bcos"), (2.5, "bcos"), (2, "bcosified")])
def test_any_exponent_and_form(b: float, form: str) -> None:
    model = build("resnet_tiny", b, form).double()
    answered = model.answered(photos(8, torch.double)[4:5])
    parts = find_matches(answered, stored(photos(4)), [[1]])[0][1].parts
    evidence = answered.evidence[0, 1].item()
    assert sum(part.evidence for part in parts) == pytest.approx(evidence, rel=1e-9)
    assert sum(part.support.value for part in parts if part.support) == pytest.approx(evidence, rel=1e-9)
    features = answered.traced.features
    split = unit_evidence(features, model.support_vectors[1:2], answered.evidence[:, 1])[0]
    slow = slow_unit_evidence(model, features[0], 1)  # the formula has no epsilon, the network has
    torch.testing.assert_close(split, slow, rtol=1e-4, atol=1e-9)


def test_the_maps_of_all_parts_are_those_of_the_evidence() -> None:
    model, images = build().double(), photos(8, torch.double)[4:6]
    supports = torch.tensor([[0, 1, 2, 3]] * 2)
    result = found(model, images, supports.tolist())
    whole = model.explain_evidence(images, supports)
    for n in range(2):
        for case in range(4):
            maps = torch.stack([part.image.map for part in result[n][case].parts]).sum(dim=0)
            torch.testing.assert_close(maps, whole.maps[n, case], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_a_batch_gives_the_same_as_single_images(backbone: str) -> None:
    model, images = build(backbone).double(), photos(8, torch.double)[4:7]
    cases = [[0, 1, 2], [], [2, 0]]
    together = found(model, images, cases)
    assert together[1] == {}
    for n in (0, 2):
        alone = found(model, images[n : n + 1], [cases[n]])[0]
        for case in cases[n]:
            for one, other in zip(alone[case].parts, together[n][case].parts, strict=True):
                assert one.number == other.number
                torch.testing.assert_close(one.image.map, other.image.map, rtol=1e-8, atol=1e-12)
                assert one.support is not None and other.support is not None
                torch.testing.assert_close(one.support.map, other.support.map, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_no_more_backward_passes_than_latents(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build(backbone, latent=3), photos(8)[4:6]
    passes = 0
    gradient = torch.autograd.grad

    def counted(outputs: Tensor, inputs: list[Tensor] | Tensor, **options: Any) -> Any:
        nonlocal passes
        passes += isinstance(inputs, list)  # down to the pixels
        return gradient(outputs, inputs, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    find_matches(model.answered(images), stored(photos(4)), [[0, 1, 2, 3]] * 2)
    sides = 2 if backbone == "resnet_tiny" else 4  # a transformer also needs the maps of its units
    assert 0 < passes <= sides * 3


def test_cases_without_images_and_without_evidence() -> None:
    model, images = build(), photos(8)[4:5]
    vectors = model.support_vectors.clone()
    vectors[0] = 0
    model.set_supports(vectors, model.support_classes)
    answered = model.answered(images)
    for keep in (True, False):
        result = find_matches(answered, stored(photos(4), keep), [[0, 1]])[0]
        assert result[0].groups == [] and result[0].rest.evidence == result[0].rest.share == 0
        assert (result[0].rest.image.map == 0).all()
    assert result[1].groups == [] and result[1].rest.support is None
    assert result[1].rest.evidence == pytest.approx(answered.evidence[0, 1].item(), rel=1e-5)
    assert find_matches(answered, [], [[]]) == [{}]


def test_units_that_a_picture_lacks_have_no_place_in_it() -> None:
    """A support vector need not be the latent of its image (--inference-supports centroid)."""
    model, images = build().double(), photos(8, torch.double)[4:5]
    with torch.no_grad():
        own, latents = model.encoder(photos(4, torch.double)), model.encoder(images)[0]
    lacking = next(k for k in range(12) if own[0, k] == 0 and latents[k] > 0)
    vectors = own.clone()
    vectors[0, lacking] = own[0].max()
    model.set_supports(vectors, model.support_classes)
    rest = found(model, images, [[0]])[0][0].rest
    expected = slow_unit_evidence(model, latents, 0)[lacking].item()
    assert expected > 0 and rest.support is not None
    assert rest.support.constant == pytest.approx(expected)
    assert rest.image.constant == pytest.approx(0, abs=1e-12)


def test_matches_do_not_change_the_model_and_work_in_inference_mode() -> None:
    model, images = build(), photos(8)[4:5]
    before = copy.deepcopy(model.state_dict())
    expected = found(model, images, [[0]])[0][0]
    with torch.inference_mode():
        got = found(model, images, [[0]])[0][0]
    assert [part.evidence for part in got.parts] == [part.evidence for part in expected.parts]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_cases_share_the_numbers_and_the_regions_of_the_image() -> None:
    model, images = build(latent=64), photos(8)[4:8]
    for result in found(model, images, [[0, 1, 2, 3]] * 4):
        masks: dict[int, Tensor] = {}
        for matches in result.values():
            assert len(matches.groups) <= GROUPS and matches.rest.number == 0
            assert [match.number for match in matches.groups] == sorted({match.number for match in matches.groups})
            for match in matches.groups:
                assert match.support is not None and min(match.share, match.support.value / match.evidence) > 0
                assert ((match.image.map != 0) == masks.setdefault(match.number, match.image.map != 0)).all()
        assert sorted(masks) == list(range(1, len(masks) + 1))


def checkered(*numbers: int) -> Tensor:
    """Descriptors 8×4×4 of a picture whose quarters show these things."""
    quarters = F.one_hot(torch.tensor(numbers), 8).float().view(2, 2, 8)
    return quarters.repeat_interleave(2, 0).repeat_interleave(2, 1).permute(2, 0, 1)


def test_similar_places_are_one_region_wherever_they_are() -> None:
    flat = torch.ones(SIZE, SIZE)
    places = torch.stack([checkered(0, 1, 2, 3), 5 * checkered(3, 0, 4, 1)])
    areas, alike = (each[0] for each in corresponding(places[None], torch.stack([flat, flat])[None]))
    one, other = areas
    middle = [4, SIZE - 5]
    ours, theirs = ([each[row, column].item() for row in middle for column in middle] for each in (one, other))
    assert len(set(ours)) == 4
    assert theirs[0] == ours[3] and theirs[1] == ours[0] and theirs[3] == ours[1]
    assert all(alike[1, ours[quarter]] > ALIKE for quarter in (0, 1, 3))
    assert theirs[2] == ours[2] == GROUPS or alike[1, ours[2]] < ALIKE, "they show different things"


def slow_areas(places: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """The regions of one set of pictures, place by place: M×F×h×w and M×H×W → M×H×W and M×`GROUPS`."""
    counting = [m for m in range(len(maps)) if maps[m].max() > 0]
    places = F.normalize(places, dim=1)
    cells = maps.shape[-1] // places.shape[-1]
    masses = F.avg_pool2d(maps.clamp(min=0), cells)
    means = [each.mean(dim=(1, 2)) for each in places]
    for m in counting:
        means[m] = (means[m] + (places[m] * masses[m] / masses[m].sum()).sum(dim=(1, 2))) / 2
    places = torch.stack([each - mean[:, None, None] for each, mean in zip(places, means, strict=True)])
    points, weights, first = [], [], []
    for m in counting:
        total = maps[m].clamp(min=0).sum().item()
        for row in range(places.shape[-2]):
            for column in range(places.shape[-1]):
                part = maps[m, row * cells : (row + 1) * cells, column * cells : (column + 1) * cells]
                mass = part.clamp(min=0).sum().item() / total
                weights.append(mass)
                first.append(m == 0)
                points.append((places[m, :, row, column] / places[m, :, row, column].norm()).numpy())
    centres = [points[int(np.argmax(weights))]]
    while len(centres) < GROUPS:
        far = [w * (1 - max(float(p @ c) for c in centres)) for p, w in zip(points, weights, strict=True)]
        centres.append(points[int(np.argmax(far))])
    for step in range(40):
        own = [int(np.argmax([p @ c for c in centres])) for p in points]
        amounts = np.zeros((2, GROUPS))
        for w, group, image in zip(weights, own, first, strict=True):
            amounts[int(image), group] += w / (1 if image else len(counting) - 1)
        if step >= 20 and step % 5 == 0:
            left = [group for group in range(GROUPS) if np.any(centres[group])]
            least = min(left, key=lambda group: amounts[:, group].min())
            if amounts[:, least].min() < 0.05:
                centres[least] = np.zeros_like(points[0])
        own = [int(np.argmax([p @ c for c in centres])) for p in points]
        for group in range(GROUPS):
            total = np.zeros_like(points[0])
            for image in (True, False):
                mine = [(o, f) == (group, image) for o, f in zip(own, first, strict=True)]
                side = sum(
                    (w * p for p, w, m in zip(points, weights, mine, strict=True) if m), np.zeros_like(points[0])
                )
                total += side / np.linalg.norm(side) if np.any(side) else 0
            if np.any(total) and np.any(centres[group]):
                centres[group] = total / np.linalg.norm(total)
    left = [group for group in range(GROUPS) if np.any(centres[group])]
    similar = torch.full((len(places), GROUPS + 1, *places.shape[-2:]), -1.0, dtype=torch.double)
    similar[:, GROUPS] = 0
    chosen = torch.tensor(np.array([centres[group] for group in left]))
    similar[:, left] = torch.einsum("gf,mfhw->mghw", chosen, F.normalize(places, dim=1))
    areas = F.interpolate(similar, maps.shape[1:], mode="bilinear", align_corners=False).argmax(dim=1)
    means = np.zeros((len(places), GROUPS, places.shape[1]))
    side = places.shape[-1] ** 2
    for place, (point, weight) in enumerate(zip(points, weights, strict=True)):
        m, row, column = place // side, place % side // places.shape[-1], place % places.shape[-1]
        if (group := int(similar[m, :, row, column].argmax())) < GROUPS:
            means[m, group] += weight * point
    means /= np.maximum(np.linalg.norm(means, axis=2, keepdims=True), 1e-12)
    return areas, torch.tensor((means * means[:1]).sum(axis=2))


def test_regions_of_a_batch_against_single_places() -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(3, 4, 6, 4, 4, generator=generator, dtype=torch.double)
    maps = torch.randn(3, 4, 16, 16, generator=generator, dtype=torch.double)
    maps[1, 3] = 0  # one case less than the others
    found, alike = corresponding(places, maps)
    for n, number in enumerate((4, 3, 4)):
        assert len(found[n].unique()) > 3
        areas, similar = slow_areas(places[n, :number], maps[n, :number])
        torch.testing.assert_close(found[n, :number], areas)
        torch.testing.assert_close(alike[n, :number], similar)


def test_a_part_is_the_same_in_a_picture_of_another_colour() -> None:
    """Three parts in both pictures; all places of the second one also have a feature that the first one lacks."""
    parts = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2], [2, 2, 2, 2]])
    places = F.one_hot(torch.stack([parts, parts.flip(1)]), 4).movedim(-1, 1).double()
    places[1, 3] = 3.0
    found = corresponding(places[None], torch.ones(1, 2, 16, 16, dtype=torch.double))[0][0, :, 2::4, 2::4]
    for part in range(3):
        first, second = (found[m][each == part].unique().tolist() for m, each in enumerate((parts, parts.flip(1))))
        assert first == second and len(first) == 1
    assert len(found.unique()) == 3


def test_a_part_is_the_same_on_another_background() -> None:
    """Three parts, each picture with a background of its own, which shows at its parts, too."""
    parts = torch.tensor([[-1, -1, -1, -1], [-1, 0, 1, -1], [-1, 2, 2, -1], [-1, -1, -1, -1]])
    both = torch.stack([parts, parts.roll(1, dims=1)])
    places = F.one_hot(both + 1, 6).movedim(-1, 1).double()[:, 1:]
    for picture, background in enumerate((3, 4)):
        places[picture, background] = torch.where(both[picture] < 0, 3.0, 0.5)
    evidence = F.interpolate((both >= 0).double()[None], (16, 16))
    areas, alike = corresponding(places[None], evidence)
    found = areas[0, :, 2::4, 2::4]
    numbers = [[found[m][each == part].unique().tolist() for part in range(3)] for m, each in enumerate(both)]
    assert numbers[0] == numbers[1] and len({tuple(each) for each in numbers[0]}) == 3
    assert all(alike[0, 1, number] > ALIKE for (number,) in numbers[0])


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


def test_outlines_have_no_points_on_straight_lines() -> None:
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[4:20, 6:26] = True
    (border,) = outlines(mask)
    assert len(border) == 9 and border[0] == border[-1], "eight corners, because each corner of a pixel is cut"
    assert {x for x, _ in border} == {6.0, 6.5, 25.5, 26.0} and {y for _, y in border} == {4.0, 4.5, 19.5, 20.0}
