"""ProtoPNet against loops: distances, costs, where prototypes land, and what its pictures add up to."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic import backbones
from sic.errors import SicError
from sic.methods import LOSSES, ProtoPNet
from sic.settings import Loss
from sic.training.batches import Batch
from sic.training.protopnet import ProtoPNetTraining, prototype_costs
from tests.models import settle, small_settings

SIZE, CLASSES, PER_CLASS = 24, 3, 2
ROUNDS = {10: [10], 4: [4], 30: [10, 10, 10], 25: [15, 10]}


def pixels(number: int) -> Tensor:
    return torch.randint(0, 256, (number, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(4)).to(torch.uint8)


def build(attribution: str = "enlarged", loss: Loss = "ce") -> ProtoPNet:
    torch.manual_seed(0)
    net = backbones.create("resnet_tiny", "conventional")
    model = ProtoPNet(net, CLASSES, CLASSES * PER_CLASS, latent=8, loss=loss, attribution=attribution)
    settle(model, pixels(8) / 255)
    with torch.no_grad():  # prototypes like what there is to find
        patches = model.patches(pixels(8) / 255)
        model.prototypes.copy_(patches[:6, :, 1, 2] + 0.02 * torch.randn(6, 8))
        model.last.weight += 0.1 * torch.randn(CLASSES, 6)
    return model


def similarity(distance: float) -> float:
    return math.log((distance + 1) / (distance + 1e-4))


@torch.no_grad()
def test_logits_are_what_the_loop_says() -> None:
    model, images = build(), pixels(3) / 255
    patches = model.patches(images)
    assert patches.min() > 0 and patches.max() < 1
    for n in range(3):
        similarities = []
        for prototype in model.prototypes:
            squares = [((patch - prototype) ** 2).sum().item() for patch in patches[n].flatten(1).T]
            similarities.append(similarity(min(squares)))
        expected = model.last.weight @ torch.tensor(similarities)
        torch.testing.assert_close(model(images)[n], expected, rtol=1e-3, atol=1e-3)
        own = [similarities[j] * model.last.weight[j // PER_CLASS, j].item() for j in range(6)]
        torch.testing.assert_close(model.answer(images)[1][n], torch.tensor(own), rtol=1e-3, atol=1e-3)


def published_costs(distances: Tensor, targets: Tensor) -> tuple[float, float]:
    """As in the authors' `_train_or_test`: maxima of inverted distances, image by image; several labels are one set."""
    largest = 10.0
    cluster, separation = [], []
    for row, labels in zip(distances, targets, strict=True):
        own = torch.tensor([labels[j // PER_CLASS] == 1 for j in range(len(row))]).float()
        other = torch.tensor([labels[j // PER_CLASS] == 0 for j in range(len(row))]).float()
        if own.any():
            cluster.append(largest - ((largest - row) * own).max().item())
        if other.any():
            separation.append(largest - ((largest - row) * other).max().item())
    return sum(cluster) / len(cluster), sum(separation) / len(separation)


def test_costs_are_the_published_ones() -> None:
    """Several labels, unknown ones, all of them (a bird without parts may be any), and none."""
    distances = torch.rand(6, CLASSES * PER_CLASS, generator=torch.Generator().manual_seed(0))
    nan = math.nan
    targets = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, nan, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    found = prototype_costs(distances, targets)
    assert [cost.item() for cost in found] == pytest.approx(published_costs(distances, targets), rel=1e-5)
    # An image with many labels counts as much as one with a single label.
    alone = prototype_costs(distances[4:5], targets[4:5])
    assert alone[0].item() == pytest.approx(distances[4].min().item()) and alone[1].item() == 0


@pytest.mark.parametrize(
    ("epochs", "epoch", "share"),
    [(30, 0, 0.0), (30, 5, 0.0), (30, 6, 0.2), (30, 7, 0.4), (30, 12, 1.0), (30, 9, None)]
    + [(10, 4, 0.0), (10, 5, 0.5), (10, 6, 1.0), (10, 7, 1.0), (2, 0, 0.0), (2, 1, None)],
    ids=["warm", "joint", "costs begin", "costs grow", "second round", "last"]
    + ["one round: before costs", "costs grow fast", "all costs", "to the projection", "two epochs", "the second"],
)
def test_the_loss_is_the_published_one(
    monkeypatch: pytest.MonkeyPatch, epochs: int, epoch: int, share: float | None
) -> None:
    """Cross-entropy, with 0.8 · cluster - 0.08 · separation while prototypes learn, of which there is a growing share
    from the middle of the first round on, and all before the projection of a fit of one round. In the last layer's
    epochs these are constants, and 1e-4 · |weights of other classes' prototypes| counts instead."""
    module = training(model := build(), epochs)
    monkeypatch.setattr(ProtoPNetTraining, "current_epoch", epoch)
    monkeypatch.setattr(ProtoPNetTraining, "global_step", 3 * epoch)
    module.steps_per_epoch = 3
    module.on_train_epoch_start()
    model.eval()
    queries, labels = pixels(5), torch.tensor([0, 2, 1, 1, 0])
    targets = F.one_hot(labels, CLASSES).float()
    with torch.no_grad():
        distances = model.distances(model.patches(queries / 255)).amin(dim=(2, 3))
        logits = model(queries / 255)
        entropy = sum((row.exp().sum().log() - row[c]).item() for row, c in zip(logits, labels, strict=True)) / 5
        cluster, separation = published_costs(distances, targets)
        others = sum(abs(model.last.weight[c, j].item()) for c, j in np.ndindex(CLASSES, 6) if j // PER_CLASS != c)
    nothing = torch.zeros(0)
    batch = Batch(queries, None, torch.arange(5), targets, *[nothing] * 5)
    found = module.training_step(batch, 0)
    published = 0.8 * cluster - 0.08 * separation
    extra = 1e-4 * others if share is None else share * published
    assert found.item() == pytest.approx(entropy + extra, abs=1e-4)
    assert min(abs(published), 1e-4 * others) > 5e-4  # so that they cannot be missing


class Batches:
    """A loader of views."""

    def __init__(self, views: Tensor) -> None:
        self.views = views

    def __iter__(self) -> Iterator[tuple[Tensor, None]]:
        return iter([(batch, None) for batch in self.views.split(5)])


def training(model: ProtoPNet, epochs: int = 10) -> ProtoPNetTraining:
    settings = small_settings(size=SIZE, resize=SIZE, epochs=epochs, method="protopnet")
    candidates = {0: [0, 3, 6, 9, 10], 1: [1, 4], 2: [2, 5, 8]}  # 7, 11 and 12 show several
    module = ProtoPNetTraining(model, settings, candidates, False)
    module.embedding = Batches(pixels(13))  # type: ignore[assignment]
    return module


@torch.no_grad()
def test_prototypes_land_on_the_nearest_parts_of_images_of_their_class() -> None:
    model = build()
    module, before = training(model), model.prototypes.clone()
    patches = model.patches(pixels(13) / 255)
    height, width = patches.shape[2:]
    assert height > 1
    module.project()
    cases = module.chosen_supports()
    for j, prototype in enumerate(before):
        label = j // PER_CLASS
        distance, image, y, x = min(
            (((patches[i, :, y, x] - prototype) ** 2).sum().item(), i, y, x)
            for i in module.candidates[label] for y in range(height) for x in range(width)
        )  # fmt: skip
        assert module.sources[j].tolist() == [image, y, x, height, width]
        torch.testing.assert_close(model.prototypes[j], patches[image, :, y, x])
        box = (x * SIZE // width, y * SIZE // height, (x + 1) * SIZE // width, (y + 1) * SIZE // height)
        assert (cases[j].label, cases[j].row, cases[j].box) == (label, image, box)
        # The patch that a prototype is of is now as similar to it as anything can be.
        nearest = model.distances(model.patches(pixels(13)[image : image + 1] / 255))[0, j].min().item()
        assert nearest < 1e-5


@pytest.mark.parametrize(("epochs", "when"), [(10, [8]), (4, [3]), (30, [8, 18, 28]), (25, [12, 23])])
def test_stages(monkeypatch: pytest.MonkeyPatch, epochs: int, when: list[int]) -> None:
    """Projected every 10 epochs; what comes after a projection does not move it, and the last layer learns there."""
    model = build()
    module = training(model, epochs)
    found = []
    projections: list[int] = []
    monkeypatch.setattr(module, "project", lambda: projections.append(module.current_epoch))
    for epoch in range(epochs):
        monkeypatch.setattr(ProtoPNetTraining, "current_epoch", epoch)
        module.on_train_epoch_start()
        parts = (model.backbone.network, model.add_on, model.last)
        free = [all(p.requires_grad for p in part.parameters()) for part in parts]
        assert model.prototypes.requires_grad == free[1] and model.training == free[1]
        found.append((*free, module.presentable))
    warm, joint, last = (False, True, False, False), (True, True, False, False), (False, False, True, True)
    assert projections == when and found[-1] == last
    assert found[: min(5, epochs // 4)] == min(5, epochs // 4) * [warm] and warm not in found[5:]
    assert sum(stage == last for stage in found) == sum(max(1, n // 5) for n in ROUNDS[epochs])
    assert all(stage in (warm, joint, last) for stage in found)
    if epochs == 10:
        assert found == 2 * [warm] + 6 * [joint] + 2 * [last]


@pytest.mark.parametrize(("lr", "head_lr"), [(3e-3, None), (1e-4, 3e-3)])
def test_optimiser_as_published(lr: float, head_lr: float | None) -> None:
    """Adam; weight decay for the network and the new layers, none for prototypes and the last layer."""
    model = build()
    module = training(model)
    module.settings = replace(module.settings, weight_decay=1e-3, lr=lr, head_lr=head_lr, weights="some.pth")
    module.steps_per_epoch = 3
    found = module.configure_optimizers()["optimizer"]
    assert type(found) is torch.optim.Adam and ProtoPNet.defaults["weight_decay"] == 1e-3
    assert [group["weight_decay"] for group in found.param_groups] == [1e-3, 1e-3, 0, 0]
    assert [group["initial_lr"] for group in found.param_groups] == pytest.approx([1e-4, 3e-3, 3e-3, 1e-3])
    assert sum(len(group["params"]) for group in found.param_groups) == len(list(model.parameters()))


def test_one_epoch_is_too_short() -> None:
    model = build()
    with pytest.raises(SicError, match="at least 2 --epochs"):
        training(model, epochs=1)


@pytest.mark.parametrize("attribution", ProtoPNet.attributions)
@pytest.mark.parametrize("loss", LOSSES)
@torch.no_grad()
def test_maps_add_up_to_what_the_classes_own_prototypes_add(attribution: str, loss: Loss) -> None:
    model, images = build(attribution, loss), pixels(3) / 255
    targets = torch.tensor([[0, 2], [1, 1], [2, 0]])
    explained = model.explain(images, targets)
    logits, evidence = model.answer(images)
    torch.testing.assert_close(explained.value, logits.gather(1, targets))
    own = evidence.unflatten(1, (CLASSES, PER_CLASS)).sum(dim=2).gather(1, targets)
    torch.testing.assert_close(explained.maps.sum(dim=(2, 3)), own, rtol=1e-4, atol=1e-4)
    assert explained.constant.unique().tolist() == [-5 if loss == "bce" else 0]
    others = logits.gather(1, targets) - own - explained.constant
    torch.testing.assert_close(explained.residual, others, rtol=1e-4, atol=1e-4)
    single = model.explain_evidence(images, torch.tensor([[0, 1], [2, 3], [4, 5]]))
    torch.testing.assert_close(single.value, evidence[torch.arange(3)[:, None], torch.tensor([[0, 1], [2, 3], [4, 5]])])
    torch.testing.assert_close(single.maps.sum(dim=1), explained.maps[torch.arange(3), [0, 0, 0]])
    assert single.residual.abs().max() < 1e-4


@torch.no_grad()
def test_the_two_pictures_differ_and_boxes_hold_the_top() -> None:
    model, images = build("box"), pixels(2) / 255
    boxes = model.explain_evidence(images, torch.tensor([0, 3])).maps
    model.explain_with("enlarged")
    enlarged = model.explain_evidence(images, torch.tensor([0, 3])).maps
    distances = model.distances(model.patches(images))
    for n, j in enumerate((0, 3)):
        found = torch.tensor([[similarity(d) for d in row] for row in distances[n, j].tolist()])
        upsampled = F.interpolate(found[None, None], (SIZE, SIZE), mode="bilinear")[0, 0]
        torch.testing.assert_close(enlarged[n] / enlarged[n].sum(), upsampled / upsampled.sum(), rtol=1e-3, atol=1e-6)
        rows, columns = (upsampled >= upsampled.flatten().quantile(0.95)).nonzero().T
        expected = torch.zeros(SIZE, SIZE)
        expected[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = 1
        assert torch.equal((boxes[n] != 0).float(), expected)
        inside = boxes[n][expected == 1]
        torch.testing.assert_close(inside, inside[:1].expand_as(inside))
        assert 0 < expected.mean() < 1


def test_new_layers_start_as_published() -> None:
    """Kaiming's normal distribution by the number of outputs, so that patches differ before anything is learnt."""
    model = ProtoPNet(backbones.create("resnet_tiny", "conventional"), 3, 6)
    convolutions = [layer for layer in model.add_on if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 2
    for layer in convolutions:
        assert layer.bias is not None and not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.05)


def test_prototypes_belong_to_classes_evenly_and_start_with_fixed_connections() -> None:
    net = backbones.create("resnet_tiny", "conventional")
    model = ProtoPNet(net, 3, 6)
    assert model.support_labels == [0, 0, 1, 1, 2, 2] and len(model.prototypes[0]) == 128
    expected = torch.full((3, 6), -0.5)
    for j in range(6):
        expected[j // 2, j] = 1
    assert torch.equal(model.last.weight.detach(), expected)
    with pytest.raises(SicError, match="evenly"):
        ProtoPNet(net, 3, 7)


@torch.no_grad()
def test_a_yes_or_no_hears_its_own_prototypes_only_and_starts_from_no() -> None:
    """With several labels an image that shows one class says nothing against another."""
    model = ProtoPNet(backbones.create("resnet_tiny", "conventional"), CLASSES, CLASSES * PER_CLASS, loss="bce")
    distances = torch.full((1, CLASSES * PER_CLASS, 2, 2), 1e6)
    assert model.logits(distances)[0].tolist() == pytest.approx(CLASSES * [-5], abs=1e-3)
    distances[0, :PER_CLASS, 1, 0] = 0.25
    own = -5 + PER_CLASS * similarity(0.25)
    assert model.logits(distances)[0].tolist() == pytest.approx([own, -5, -5], abs=1e-3)
