"""The learning rate and the losses that all fits share."""

import math

import pytest
import torch

from sic.backbones import create
from sic.methods import BlackBox
from sic.training.base import (
    LARGEST_WEIGHT,
    Training,
    Validity,
    binary_loss,
    learning_rate_factor,
    positive_weights,
    softmax_loss,
)
from tests.models import small_settings


def reference(steps_per_epoch: int, epochs: int) -> list[float]:
    """From the words: linear from 10 % over two epochs, constant to half of all steps, halved there and every 10 %."""
    total = steps_per_epoch * epochs
    factors = []
    for step in range(total):
        factor = 1.0
        if step < 2 * steps_per_epoch:
            factor = 0.1 + (1 - 0.1) * step / (2 * steps_per_epoch)
        for percent in (50, 60, 70, 80, 90):
            if 100 * step >= percent * total:
                factor /= 2
        factors.append(factor)
    return factors


@pytest.mark.parametrize(
    ("steps_per_epoch", "epochs"), [(1, 10), (1, 100), (7, 13), (10, 20), (3, 33), (250, 4), (5, 3)]
)
def test_against_the_words(steps_per_epoch: int, epochs: int) -> None:
    total = steps_per_epoch * epochs
    factors = [learning_rate_factor(step, steps_per_epoch, total) for step in range(total)]
    assert factors == pytest.approx(reference(steps_per_epoch, epochs), rel=1e-12)


def test_levels_of_a_long_run() -> None:
    factors = [learning_rate_factor(step, 10, 1000) for step in range(1000)]
    assert factors[0] == 0.1 and factors[10] == pytest.approx(0.55)
    assert factors[:20] == sorted(factors[:20]) and factors[20:500] == [1.0] * 480
    for level, start in enumerate(range(500, 1000, 100), 1):
        assert factors[start : start + 100] == [0.5**level] * 100


NAN = math.nan
LOGITS = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7], [-2.0, 0.1, 0.4]])
TARGETS = torch.tensor([[1.0, 0.0, NAN], [0.0, 1.0, 1.0], [NAN, 0.0, 1.0]])


@pytest.mark.parametrize("weights", [None, torch.tensor([3.0, 0.5, 7.0])])
def test_binary_loss_against_a_loop(weights: torch.Tensor | None) -> None:
    total, number = 0.0, 0
    for row in range(3):
        for label in range(3):
            target = TARGETS[row, label].item()
            if not math.isnan(target):
                p = 1 / (1 + math.exp(-LOGITS[row, label].item()))
                weight = 1.0 if weights is None else weights[label].item()
                total -= weight * math.log(p) if target else math.log(1 - p)
                number += 1
    assert binary_loss(LOGITS, TARGETS, weights).item() == pytest.approx(total / number, rel=1e-6)


def test_binary_loss_is_the_usual_one_where_all_is_sure() -> None:
    sure = TARGETS.nan_to_num(0)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(LOGITS, sure)
    assert binary_loss(LOGITS, sure).item() == pytest.approx(expected.item(), rel=1e-6)


def test_softmax_loss_is_that_without_the_classes_that_do_not_count() -> None:
    total = 0.0
    for row in range(3):
        known = ~TARGETS[row].isnan()
        truth, logits = TARGETS[row][known], LOGITS[row][known]
        total -= (truth / truth.sum() * logits.log_softmax(0)).sum().item()
    assert softmax_loss(LOGITS, TARGETS).item() == pytest.approx(total / 3, rel=1e-6)


@pytest.mark.parametrize("loss", [binary_loss, softmax_loss])
def test_what_does_not_count_gets_no_gradient(loss: object) -> None:
    logits = LOGITS.clone().requires_grad_()
    loss(logits, TARGETS).backward()  # type: ignore[operator]
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert torch.equal(logits.grad == 0, TARGETS.isnan())


def test_images_without_a_label_do_not_break_the_losses() -> None:
    nothing = torch.tensor([[0.0, NAN, 0.0]] * 3)
    assert softmax_loss(LOGITS, nothing).item() == 0
    assert binary_loss(LOGITS, nothing).isfinite()
    assert binary_loss(LOGITS, torch.full((3, 3), NAN)).item() == 0


def test_balanced_positives_weigh_as_much_as_negatives() -> None:
    targets = (
        torch.rand(500, 4, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.5, 0.2, 0.05, 0])
    ).float()
    targets[:40, 0] = NAN
    weights = positive_weights(targets)
    for label in range(3):
        positives, negatives = ((targets[:, label] == value).sum().item() for value in (1, 0))
        assert weights[label].item() * positives == pytest.approx(negatives, rel=1e-5)
    assert weights[3] == LARGEST_WEIGHT  # no image at all
    assert positive_weights(torch.eye(500)[:, :2]).tolist() == [LARGEST_WEIGHT] * 2


def test_an_epoch_is_chosen_by_score_and_then_by_loss() -> None:
    """In the precision that Lightning compares them in."""
    for images in (5, 54, 1000):
        worst = torch.tensor([Validity(k / images, 100.0, images).rank for k in range(images + 1)], dtype=torch.float32)
        best = torch.tensor([Validity(k / images, 0.0, images).rank for k in range(images + 1)], dtype=torch.float32)
        assert (worst[1:] > best[:-1]).all()
        losses = torch.tensor([Validity(0.9, loss, images).rank for loss in (3.0, 1.2, 1.1, 0.5, 0.4, 0.39)])
        assert (losses.diff() > 0).all()


@pytest.mark.parametrize("head_lr", [None, 0.5])
def test_the_head_can_learn_at_a_rate_of_its_own(head_lr: float | None) -> None:
    classifier = BlackBox(create("resnet_tiny", "conventional"), 3)
    module = Training(classifier, small_settings(lr=0.01, head_lr=head_lr), {}, False)
    module.steps_per_epoch = 10
    groups = module.configure_optimizers()["optimizer"].param_groups
    rates = {id(each): group["initial_lr"] for group in groups for each in group["params"]}
    assert len(rates) == len(list(module.parameters()))
    assert {rates[id(each)] for each in classifier.backbone.parameters()} == {0.01}
    assert {rates[id(each)] for each in classifier.head.parameters()} == {0.01 if head_lr is None else 0.5}
