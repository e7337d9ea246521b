"""SIC against loops over its supports, and its contributions against networks frozen by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic import backbones
from sic.bcos import BatchNormUncentred2d, BcosConv2d, BcosLinear, explaining
from sic.methods import SIC, Contributions
from tests.models import norms_take_the_next_batch

SIZE = 24
LABELS = [0, 0, 1, 2, 2, 2]  # classes with two, one and three supports


def photos(number: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(number, 3, 6, 6, generator=generator, dtype=torch.double)
    return F.interpolate(coarse, (SIZE, SIZE), mode="bilinear").to(dtype)


def build(
    backbone: str = "resnet_tiny",
    labels: list[int] = LABELS,
    classes: int = 3,
    temperature: float = 0.5,
    b: float = 2,
    dtype: torch.dtype = torch.double,
    local_units: bool = False,
) -> SIC:
    """In evaluation mode, with norms that have seen a batch and supports that are real latents."""
    torch.manual_seed(0)
    net = backbones.create(backbone, b=b)
    model = SIC(net, classes, len(labels), latent=16, temperature=temperature, b=b, local_units=local_units).to(dtype)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8, dtype))
        model.eval().set_supports(model.encoder(photos(20, dtype)[-len(labels) :]), torch.tensor(labels))
    assert (model.support_vectors.norm(dim=1) > 1e-4).all()
    return model


def slow_logits(model: SIC, latents: Tensor) -> list[list[float]]:
    """`b + Σ_i ‖f‖ |cos|^B sgn(cos) / T` over the supports of each class."""
    result = []
    for f in latents:
        logits = [-math.log(max(model.classes - 1, 2))] * model.classes
        for v, label in zip(model.support_vectors, model.support_classes.tolist(), strict=True):
            if f.norm() > 0 and v.norm() > 0:
                cosine = (f @ v / f.norm() / v.norm()).item()
                sign = (cosine > 0) - (cosine < 0)
                logits[label] += f.norm().item() * abs(cosine) ** model.b * sign / model.temperature
        result.append(logits)
    return result


@pytest.mark.parametrize("b", [1, 1.5, 2, 3])
def test_logits_are_what_the_loop_says(b: float) -> None:
    model, images = build(b=b), photos(4, torch.double)
    with torch.no_grad():
        latents = model.encoder(images)
        expected = torch.tensor(slow_logits(model, latents), dtype=torch.double)
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-6)
    assert (expected.std(dim=0) > 0).all()


def test_latents_are_never_negative() -> None:
    latents = build().encoder(photos(4, torch.double))
    assert latents.shape == (4, 16)
    assert (latents >= 0).all()
    assert (latents == 0).any()


@pytest.mark.parametrize(("classes", "bias"), [(2, -math.log(2)), (3, -math.log(2)), (10, -math.log(9))])
def test_the_bias_is_fixed_by_the_number_of_classes(classes: int, bias: float) -> None:
    model = SIC(
        backbones.create("resnet_tiny"), classes, classes, latent=8
    ).eval()  # supports are still zero: similar to nothing
    logits = model(photos(2))
    torch.testing.assert_close(logits, torch.full((2, classes), bias))
    assert "bias" not in dict(model.named_parameters())
    torch.testing.assert_close(
        model.explain(photos(2), torch.tensor([0, classes - 1])).constant, torch.full((2,), bias)
    )


def test_one_support_per_class_is_enough() -> None:
    model, images = build(labels=[0, 1, 2]), photos(2, torch.double)
    expected = torch.tensor(slow_logits(model, model.encoder(images).detach()), dtype=torch.double)
    torch.testing.assert_close(model(images), expected)
    explained = model.explain(images, torch.tensor([0, 2]))
    torch.testing.assert_close(explained.maps, model.explain_evidence(images, torch.tensor([0, 2])).maps)


def test_supports_may_come_in_any_order() -> None:
    model, images = build(), photos(2, torch.double)
    before, order = model(images), torch.tensor([4, 0, 2, 5, 1, 3])
    model.set_supports(model.support_vectors[order].clone(), model.support_classes[order].clone())
    torch.testing.assert_close(model(images), before)


def test_a_batch_of_other_supports_can_be_given() -> None:
    """As in training: latents of the same pass, with gradients through both sides."""
    model, images = build(), photos(5, torch.double)
    latents = model.encoder(images)
    queries, vectors, classes = latents[:2], latents[2:], torch.tensor([2, 0, 1])
    logits = model.logits(model.evidence(queries, vectors), classes)
    other = build(labels=[2, 0, 1])
    other.set_supports(vectors.detach(), classes)
    torch.testing.assert_close(logits.detach(), torch.tensor(slow_logits(other, queries.detach())).double())
    grads = torch.autograd.grad(logits.sum(), latents)[0]
    assert (grads[2:] != 0).any()


def test_a_zero_support_adds_nothing() -> None:
    model, images = build(), photos(2, torch.double)
    without = model.logits(model.evidence(model.encoder(images))[:, 1:], model.support_classes[1:])
    vectors = model.support_vectors.clone()
    vectors[0] = 0
    model.set_supports(vectors, model.support_classes)
    torch.testing.assert_close(model(images), without)
    explained = model.explain_evidence(images, torch.tensor([0, 0]))
    assert (explained.maps == 0).all()
    assert (explained.value == 0).all()


def test_a_zero_latent_is_similar_to_nothing() -> None:
    model, images = build(), photos(2, torch.double)
    with torch.no_grad():
        model.encoder.projection.weight.zero_()
    logits = model(images)
    torch.testing.assert_close(logits, torch.full_like(logits, model.bias))
    explained = model.explain(images, torch.tensor([0, 1]))
    assert (explained.maps == 0).all()
    assert (explained.residual == 0).all()
    logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backbone", ["resnet_tiny", "resnet_small", "vit_small"])
def test_parts_add_up_to_the_logit(backbone: str, dtype: torch.dtype) -> None:
    model, images = build(backbone, dtype=dtype, temperature=0.05), photos(3, dtype)
    targets = torch.arange(3).expand(3, 3)
    explained = model.explain(images, targets)
    torch.testing.assert_close(explained.value, model(images).detach())
    torch.testing.assert_close(explained.maps, (explained.weights * six_channels(images)[:, None]).sum(dim=2))
    mass = explained.maps.abs().sum(dim=(-2, -1))
    gap = explained.value - (explained.maps.double().sum(dim=(-2, -1)) + explained.constant)
    # Rounding grows with all that is added up: the constant of a transformer is several times its pixels.
    tolerance = (1e-6 if dtype == torch.float32 else 1e-14) * (mass + explained.constant.abs())
    assert (mass > 0.01).all()
    assert (gap.abs() < tolerance).all()
    assert (explained.residual.abs() < 2 * tolerance).all()
    if backbone == "vit_small":
        assert ((explained.constant - model.bias).abs() > 1e-3).all()
    else:
        torch.testing.assert_close(explained.constant, torch.full_like(explained.constant, model.bias))


@pytest.mark.parametrize("b", [1.5, 2])
def test_evidence_by_part_is_that_of_the_network_frozen_by_hand(b: float) -> None:
    model = build(b=b)
    parts = model.encoder.features(photos(12, torch.double)).detach().view(3, 4, -1) - 0.2
    vectors = model.support_vectors
    found = model.evidence_by_part(parts, vectors)
    with torch.no_grad():
        whole = model.encoder.project(parts.mean(dim=1))
        torch.testing.assert_close(found.sum(dim=1), model.evidence(whole))
    for image in range(3):
        leaf = parts[image].clone().requires_grad_()
        with explaining():
            evidence = model.evidence(model.encoder.project(leaf.mean(dim=0, keepdim=True)))[0]
        for support, value in enumerate(evidence):
            [gradient] = torch.autograd.grad(value, leaf, retain_graph=True)
            torch.testing.assert_close(found[image, :, support], (gradient * leaf).sum(dim=1))


@pytest.mark.parametrize("b", [1.5, 2])
def test_local_units_project_every_place_by_itself(b: float) -> None:
    model, images = build(b=b, local_units=True), photos(3, torch.double)
    backbone, projection = model.backbone, model.encoder.projection
    with torch.no_grad():
        maps = backbone.feature_maps(backbone.prepared(images))
        assert maps.shape[2] * maps.shape[3] > 4
        places = [[projection(row).relu() for row in image.flatten(1).T] for image in maps]
        expected = torch.stack([torch.stack(image).mean(dim=0) for image in places])
        torch.testing.assert_close(model.encoder(images), expected)
    assert not torch.allclose(expected, build(b=b).encoder(images))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contributions_of_local_units_add_up(dtype: torch.dtype) -> None:
    model, images = build(dtype=dtype, local_units=True), photos(3, dtype)
    explained = model.explain(images, torch.tensor([[0, 1, 2]] * 3))
    gap = explained.value - explained.maps.double().sum(dim=(-2, -1)) - model.bias
    assert (explained.value - model.bias > 0.1).all()
    assert (gap.abs() < (1e-5 if dtype == torch.float32 else 1e-12)).all()
    with torch.no_grad():
        torch.testing.assert_close(explained.value, model(images))


def test_one_half_of_an_image_cannot_turn_off_local_units_of_the_other() -> None:
    """The latents of an image are the mean of those of its parts, none of which is negative."""
    model = build(local_units=True)
    halves = model.encoder.features(photos(2, torch.double))
    together = model.encoder.project(torch.cat([*halves])[None])[0]
    torch.testing.assert_close(together, model.encoder.project(halves).mean(dim=0))
    pooled = build()
    halves = pooled.encoder.features(photos(2, torch.double)) * torch.tensor([[1.0], [-1.0]])
    assert (pooled.encoder.project(halves.mean(dim=0)) < pooled.encoder.project(halves).mean(dim=0)).any()


def test_evidence_by_part_of_local_units_is_the_evidence_of_its_places() -> None:
    model = build(local_units=True)
    features = model.encoder.features(photos(4, torch.double)).detach()
    parts = model.encoder.additive(features, model.encoder.project(features))
    found = model.evidence_by_part(parts[None], model.support_vectors)[0]
    leaf = features.clone().requires_grad_()
    with explaining():
        evidence = model.evidence(model.encoder.project(leaf.flatten(0, 1)[None]))[0]
    torch.testing.assert_close(found.sum(dim=0), evidence)
    for support, value in enumerate(evidence):
        [gradient] = torch.autograd.grad(value, leaf, retain_graph=True)
        torch.testing.assert_close(found[:, support], (gradient * leaf).sum(dim=(1, 2)))


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_one_target_or_several(backbone: str) -> None:
    model, images = build(backbone), photos(3, torch.double)
    several = model.explain(images, torch.tensor([[2, 0], [1, 1], [0, 2]]))
    assert several.maps.shape == (3, 2, SIZE, SIZE)
    assert several.weights.shape == (3, 2, 6, SIZE, SIZE)
    assert several.value.shape == several.constant.shape == several.residual.shape == (3, 2)
    for k, targets in enumerate(([2, 1, 0], [0, 1, 2])):
        one = model.explain(images, torch.tensor(targets))
        assert one.maps.shape == (3, SIZE, SIZE)
        for got, expected in (
            (several.maps[:, k], one.maps),
            (several.weights[:, k], one.weights),
            (several.value[:, k], one.value),
            (several.constant[:, k], one.constant),
        ):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)


def test_images_are_explained_alone_as_in_a_batch() -> None:
    model, images = build("vit_small"), photos(3, torch.double)
    together = model.explain(images, torch.tensor([0, 1, 2]))
    for i in range(3):
        alone = model.explain(images[i : i + 1], torch.tensor([i]))
        torch.testing.assert_close(alone.maps[0], together.maps[i], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_maps_of_the_evidence_add_up_to_the_map_of_the_logit(backbone: str) -> None:
    model, images = build(backbone), photos(2, torch.double)
    evidence = model.explain_evidence(images, torch.arange(len(LABELS)).expand(2, -1))
    torch.testing.assert_close(evidence.value, model.evidence(model.encoder(images)).detach())
    logits = model.explain(images, torch.arange(3).expand(2, 3))
    for label in range(3):
        own = [i for i, other in enumerate(LABELS) if other == label]
        for part in ("maps", "weights"):
            total = getattr(evidence, part)[:, own].sum(dim=1)
            torch.testing.assert_close(total, getattr(logits, part)[:, label], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(evidence.constant[:, own].sum(dim=1) + model.bias, logits.constant[:, label])
        torch.testing.assert_close(evidence.value[:, own].sum(dim=1) + model.bias, logits.value[:, label])


def test_the_residual_is_what_the_parts_leave_over() -> None:
    maps = torch.tensor([[[1.0, -2.0], [0.5, 0.0]]])
    contributions = Contributions(maps, torch.zeros(1, 6, 2, 2), torch.tensor([4.0]), torch.tensor([1.0]))
    assert contributions.residual.tolist() == [3.5]
    assert contributions.reshape((1, 1)).residual.tolist() == [[3.5]]


def six_channels(images: Tensor) -> Tensor:
    return torch.cat([images, 1 - images], dim=1)


def plain_gradient(model: SIC, encoded: Tensor, targets: Tensor) -> Tensor:
    """Ordinary autograd, outside explanation mode, from the targets' logits to the encoded image."""
    encoded = encoded.clone().requires_grad_()
    logits = model.logits(model.evidence(model.encoder.project(model.encoder.backbone.pooled(encoded))))
    return torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), encoded)[0]


def test_a_linear_network_is_explained_by_its_gradient() -> None:
    model, images, targets = build(b=1), photos(2, torch.double), torch.tensor([0, 2])
    explained, encoded = model.explain(images, targets), six_channels(images)
    gradient = plain_gradient(model, encoded, targets)
    torch.testing.assert_close(explained.weights, gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(explained.maps, (gradient * encoded).sum(dim=1), rtol=1e-9, atol=1e-12)
    curved = build(b=2)
    gradient = plain_gradient(curved, encoded, targets)
    assert not torch.allclose(curved.explain(images, targets).weights, gradient, rtol=0.1, atol=1e-6)


def unscaled(layer: nn.Module, x: Tensor) -> Tensor:
    """`ŵᵀx`, the linear part of a B-cos layer."""
    weight = layer.weight.detach()
    unit = weight / weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))
    if isinstance(layer, BcosConv2d):
        return F.conv2d(x, unit, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    return x @ unit.T


def test_contributions_are_those_of_the_network_frozen_by_hand() -> None:
    """Every B-cos scale is recorded in one pass and put in as a number in the next; then plain autograd."""
    model, images = build(), photos(1, torch.double)
    layers = [module for module in model.encoder.modules() if isinstance(module, BcosConv2d | BcosLinear)]
    scales: dict[nn.Module, Tensor] = {}

    def record(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        linear = unscaled(layer, inputs[0])
        scales[layer] = torch.where(linear == 0, 0, output / linear).detach()

    def replay(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return unscaled(layer, inputs[0]) * scales[layer]

    handles = [layer.register_forward_hook(record) for layer in layers]
    with torch.no_grad():
        latent = model.encoder(images)[0]
    for handle in handles:
        handle.remove()
    assert len(scales) == len(layers) > 5

    directions = model.support_vectors / model.support_vectors.norm(dim=1, keepdim=True)
    cosines = directions @ latent / latent.norm()
    handles = [layer.register_forward_hook(replay) for layer in layers]
    encoded = six_channels(images).requires_grad_()
    frozen_latent = model.encoder.project(model.encoder.backbone.pooled(encoded))[0]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(frozen_latent.detach(), latent)
    for label in range(3):
        own = [i for i, other in enumerate(LABELS) if other == label]
        logit = (cosines[own].abs() * (directions[own] @ frozen_latent) / model.temperature).sum()
        expected = torch.autograd.grad(logit, encoded, retain_graph=True)[0]
        explained = model.explain(images, torch.tensor([label]))
        torch.testing.assert_close(explained.weights, expected, rtol=1e-7, atol=1e-10)


def test_explaining_needs_evaluation_mode() -> None:
    model, images = build().train(), photos(1, torch.double)
    with pytest.raises(RuntimeError, match=r"\.eval\(\)"):
        model.explain(images, torch.tensor([0]))
    with pytest.raises(RuntimeError, match=r"\.eval\(\)"):
        model.explain_evidence(images, torch.tensor([0]))


def test_explaining_needs_every_part_in_evaluation_mode() -> None:
    model, images = build(), photos(1, torch.double)
    norm = next(module for module in model.modules() if isinstance(module, BatchNormUncentred2d)).train()
    assert not model.training
    with pytest.raises(RuntimeError, match=r"\.eval\(\)"):
        model.explain(images, torch.tensor([0]))
    norm.eval()
    model.explain(images, torch.tensor([0]))


@pytest.mark.parametrize("shape", [(5, 16), (7, 16), (6, 15), (1, 16), (16,), ()])
def test_supports_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """Also those that could be broadcast: one vector for all would be no error to PyTorch."""
    model = build()
    before = model.support_vectors.clone()
    with pytest.raises(ValueError, match=r"vectors for \(6, 16\) supports"):
        model.set_supports(torch.rand(shape).double(), torch.tensor(LABELS))
    assert torch.equal(model.support_vectors, before)


def test_supports_carry_no_gradient() -> None:
    model, images = build(), photos(6, torch.double)
    latents = model.encoder(images)
    assert latents.requires_grad
    model.set_supports(latents, torch.tensor(LABELS))
    assert not model.support_vectors.requires_grad
    assert torch.equal(model.support_vectors, latents.detach())


def test_explaining_a_second_time_gives_the_same() -> None:
    model, images, targets = build("vit_small", dtype=torch.float32), photos(2), torch.tensor([0, 2])
    first, second = model.explain(images, targets), model.explain(images, targets)
    assert torch.equal(first.maps, second.maps)
    assert torch.equal(first.weights, second.weights)
    assert not first.maps.requires_grad
    assert not first.value.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_predictions_made_in_inference_mode_can_be_explained_there() -> None:
    model, images = build(), photos(2, torch.double)
    with torch.inference_mode():
        targets = model(images).argmax(dim=1)
        explained = model.explain(images, targets)
        supports = model.evidence(model.encoder(images)).argmax(dim=1)
        evidence = model.explain_evidence(images, supports)
    assert torch.equal(explained.maps, model.explain(images, targets.clone()).maps)
    assert torch.equal(evidence.maps, model.explain_evidence(images, supports.clone()).maps)


def test_supports_travel_with_the_weights() -> None:
    model, images = build(), photos(2, torch.double)
    other = SIC(backbones.create("resnet_tiny"), 3, len(LABELS), latent=16, temperature=0.5).double().eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))
    assert other.support_classes.tolist() == LABELS
