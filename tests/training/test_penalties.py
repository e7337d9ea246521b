"""The penalties of SIC's fits, by hand and in a training step."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sic.backbones import create
from sic.methods import SIC
from sic.settings import RECIPES, RecipeName, SupportSource
from sic.training.base import binary_loss
from sic.training.batches import Batch
from sic.training.penalties import (
    ALIKE,
    CHOSEN_FOR,
    IN_A_GRID,
    base_rate_loss,
    competition_scale,
    misplaced_evidence,
    misplaced_share,
    penalty_scale,
    query_grids,
    random_grids,
    sameness,
)
from sic.training.sic import SICTraining, SupportBank
from tests.models import small_settings


def test_sameness_of_the_images_of_a_class_by_hand() -> None:
    one, other, between = [3.0, 0.0], [0.0, 2.0], [1.0, 1.0]
    latents, classes = torch.tensor([one, one, other, between, one, other]), torch.tensor([4, 4, 4, 1, 1, 1])
    # Likeness 1, 0, 0 in the first class, 0.5, 0.5, 0 in the second.
    assert float(sameness(latents, classes, 2)) == pytest.approx((1 - ALIKE) / 6)
    assert float(sameness(latents, classes, 1)) == pytest.approx((1 - ALIKE + 2 * max(0.5**0.5 - ALIKE, 0)) / 6)
    assert float(sameness(latents[[0, 3]], classes[[0, 3]], 2)) == 0


@pytest.mark.parametrize("classes", [2, 12, 200])
def test_penalties_shrink_with_the_loss_of_an_answer_that_knows_nothing(classes: int) -> None:
    targets = torch.eye(classes)
    knows_nothing = torch.full_like(targets, -math.log(classes - 1))  # 1/C for every class
    assert base_rate_loss(classes) == pytest.approx(float(binary_loss(knows_nothing, targets)), rel=1e-5)
    expected = 1 if classes <= CHOSEN_FOR else base_rate_loss(classes) / base_rate_loss(CHOSEN_FOR)
    assert penalty_scale(classes) == expected


def test_misplaced_evidence_by_hand() -> None:
    # Two images, of the classes 2 and 0. Class 2: 3 on its own image, 1 on the other. Class 0: nothing but negative
    # evidence on the other image.
    evidence = torch.tensor([[[-1.0, 9.0, 3.0], [2.0, 9.0, 1.0]]])
    targets = torch.tensor([[[0.0, 0, 1], [1.0, 0, 0]]])
    assert float(misplaced_share(evidence, targets)) == pytest.approx((1 / 4 + 0) / 2)
    assert float(misplaced_share(-evidence.abs(), targets)) == 1
    assert float(misplaced_share(evidence, torch.zeros_like(targets))) == 0


def test_images_with_several_labels_or_unsure_ones() -> None:
    # Class 0 is on the images 0 and 1, and perhaps on image 2, which counts neither way.
    evidence = torch.tensor([[[2.0], [1.0], [8.0], [1.0]]])
    targets = torch.tensor([[[1.0], [1.0], [math.nan], [0.0]]])
    assert float(misplaced_share(evidence, targets)) == pytest.approx(1 / 4)


@pytest.mark.parametrize("classes", [2, 12])
def test_grids_show_images_of_different_classes(classes: int) -> None:
    members = [np.arange(20 * label, 20 * label + 1 + label) for label in range(classes)]
    rows = random_grids(members, np.random.default_rng(0), 200)
    assert rows.shape == (200, min(classes, IN_A_GRID))
    assert all(len(set(row)) == len(row) for row in (rows // 20).tolist())
    assert set(rows.flatten().tolist()) == set(np.concatenate(members).tolist())


def test_evidence_counts_for_the_class_of_its_support() -> None:
    """Against the evidence of every support by itself, and with the supports in another order."""
    torch.manual_seed(0)
    classifier = SIC(create("resnet_tiny", "bcosified"), 3, 5, latent=16)
    features, vectors = torch.rand(4, 2, classifier.backbone.features), torch.rand(5, 16)
    classes, targets = torch.tensor([2, 0, 1, 1, 0]), torch.eye(3)[torch.tensor([[0, 1], [2, 0], [1, 2], [0, 0]])]
    evidence = torch.zeros(4, 2, 3)
    for vector, label in zip(vectors, classes.tolist(), strict=True):
        evidence[..., label] += classifier.evidence_by_part(features, vector[None])[..., 0]
    found = misplaced_evidence(classifier, features, targets, vectors, classes)
    assert float(found.detach()) == pytest.approx(float(misplaced_share(evidence, targets).detach()), rel=1e-5)
    order = torch.tensor([3, 0, 4, 2, 1])
    again = misplaced_evidence(classifier, features, targets, vectors[order], classes[order])
    assert float(again.detach()) == pytest.approx(float(found.detach()), rel=1e-5)


@pytest.mark.parametrize(("competing", "sharpened"), [(0.0, True), (2.0, False), (2.0, True)])
def test_the_penalty_grows_in_proportion_to_the_competition(competing: float, sharpened: bool) -> None:
    """From step to step, up to the softmax cross-entropy of an answer that knows nothing."""
    torch.manual_seed(0)
    classes, recipe = 5, RECIPES["frozen"]
    classifier = SIC(create("resnet_tiny", "bcosified"), classes, 2 * classes, latent=16)
    owners = torch.arange(classes).repeat_interleave(2)
    module = SICTraining(
        classifier, small_settings(recipe="frozen"), {label: [label] for label in range(classes)}, False
    )
    module.competing, module.sharpened = competing, sharpened
    parts, targets = torch.rand(20, classifier.backbone.features), torch.eye(classes)[torch.arange(20) % classes]
    vectors = torch.rand(2 * classes, 16)
    members = [np.flatnonzero(np.arange(20) % classes == label) for label in range(classes)]
    rows = random_grids(members, np.random.default_rng(0))
    elsewhere = float(misplaced_evidence(classifier, parts[rows], targets[rows], vectors, owners).detach())
    alike = recipe.apart * float(sameness(vectors, owners, classifier.b))
    nothing_known = float(torch.nn.functional.cross_entropy(torch.zeros(1, classes), torch.tensor([0])))
    assert competition_scale(classes) * base_rate_loss(CHOSEN_FOR) == pytest.approx(nothing_known)
    for done, share in ((0.0, 0.0), (0.25, 0.25), (1.0, 1.0)):
        found = float(
            module.penalty(
                parts, targets, query_grids(targets, False, np.random.default_rng(0)), vectors, owners, done
            ).detach()
        )
        extra = competing * share * nothing_known / base_rate_loss(CHOSEN_FOR) if sharpened else 0.0
        assert found == pytest.approx(alike + recipe.misplaced * (1 + extra) * elsewhere, rel=1e-4)


@pytest.mark.parametrize("recipe", ["tuned", "scratch"])
@pytest.mark.parametrize("weight", [None, 0.0, 0.7])
def test_the_weight_of_the_penalty_can_be_said(recipe: RecipeName, weight: float | None) -> None:
    torch.manual_seed(0)
    classifier = SIC(create("resnet_tiny", "bcosified"), 3, 6, latent=16)
    settings = small_settings(recipe=recipe, misplaced=weight)
    module = SICTraining(classifier, settings, {label: [label] for label in range(3)}, False)
    parts, targets = torch.rand(12, classifier.backbone.features), torch.eye(3)[torch.arange(12) % 3]
    vectors, owners = torch.rand(6, 16), torch.arange(3).repeat_interleave(2)
    grids = query_grids(targets, False, np.random.default_rng(0))
    elsewhere = float(misplaced_evidence(classifier, parts[grids], targets[grids], vectors, owners).detach())
    alike = RECIPES[recipe].apart * float(sameness(vectors, owners, classifier.b))
    used = RECIPES[recipe].misplaced if weight is None else weight
    found = float(module.penalty(parts, targets, grids, vectors, owners, 0).detach())
    assert found == pytest.approx(alike + used * elsewhere, rel=1e-4) and elsewhere > 0.1


def test_classes_that_a_step_leaves_out_make_no_difference() -> None:
    """As with `--support-source n-way`: their targets are unknown, and they have no supports."""
    torch.manual_seed(0)
    classifier = SIC(create("resnet_tiny", "bcosified"), 5, 6, latent=16)
    module = SICTraining(classifier, small_settings(recipe="tuned"), {label: [label] for label in range(5)}, False)
    known = torch.eye(5)[2 + torch.arange(18) % 3]
    unknown = known.clone()
    unknown[:, :2] = torch.nan
    parts, vectors, owners = torch.rand(18, classifier.backbone.features), torch.rand(6, 16), torch.arange(6) % 3 + 2
    grids = query_grids(known, False, np.random.default_rng(0))
    found, expected = (
        float(module.penalty(parts, targets, grids, vectors, owners, 0).detach()) for targets in (unknown, known)
    )
    assert found == pytest.approx(expected)
    assert found > RECIPES["tuned"].apart * float(sameness(vectors, owners, classifier.b))


@pytest.mark.parametrize("source", ["exact", "bank"])
def test_a_training_step_lowers_both_penalties(source: SupportSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with nothing but the penalties; the network learns, too."""
    monkeypatch.setitem(RECIPES, "tuned", replace(RECIPES["tuned"], misplaced=1.0, apart=1.0))
    torch.manual_seed(0)
    settings = small_settings(recipe="tuned", support_source=source, supports_per_class=2)
    classifier = SIC(create("resnet_tiny", "bcosified"), 3, 6, latent=16)
    labels = torch.arange(24) % 3
    pixels, targets = torch.randint(0, 256, (24, 3, 32, 32), dtype=torch.uint8), torch.eye(3)[labels]
    pixels[:12] //= 2
    candidates = {label: (labels == label).nonzero()[:, 0].tolist() for label in range(3)}
    module = SICTraining(classifier, settings, candidates, False)
    module.steps_per_epoch = 12
    monkeypatch.setattr(module, "loss", lambda logits, targets: logits.sum() * 0)
    supports = torch.tensor([18, 21, 19, 22, 20, 23] if source == "exact" else [], dtype=torch.long)
    if source == "bank":
        module.bank = SupportBank(torch.rand(24, 16), candidates, 2, 0)
    batch = Batch(
        pixels[:18], None, torch.arange(18), targets[:18], pixels[supports], supports, targets[supports],
        labels[supports], query_grids(targets[:18], False, np.random.default_rng(0)),
    )  # fmt: skip
    if module.bank is not None:  # every vector is the latent of an image of the class that it comes with
        stored = module.bank.latents.clone()
        stored[:18] = latents = torch.rand(18, 16)
        vectors, classes = module.recalled(latents, batch)[1]
        module.bank.latents.copy_(stored)
        places = [(stored == vector).all(dim=1).nonzero()[:, 0].tolist() for vector in vectors]
        assert all([labels[row] for row in rows] == [label] for rows, label in zip(places, classes, strict=True))
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3)
    before = [weight.detach().clone() for weight in classifier.backbone.parameters()]
    losses = []
    for step in range(12):
        optimiser.zero_grad()
        loss = module.training_step(batch, step)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert not any(map(torch.equal, before, classifier.backbone.parameters()))
