"""The NW-Head against its formula, written out in NumPy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sic import backbones
from sic.methods import NWHead
from tests.models import settle

LABELS = [0, 0, 1, 2, 2, 2]
SIZE = 24


def images(number: int) -> Tensor:
    return torch.rand(number, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(number), dtype=torch.double)


def build(neighbours: int | None = None) -> NWHead:
    torch.manual_seed(0)
    model = NWHead(
        backbones.create("resnet_tiny", "conventional"), 3, len(LABELS), latent=8, neighbours=neighbours
    ).double()
    settle(model, images(8))
    with torch.no_grad():
        model.set_supports(model.encoder(images(6)), torch.tensor(LABELS))
    return model


def by_hand(model: NWHead, latents: Tensor, neighbours: int | None = None) -> np.ndarray:
    """p(c) = Σ_{k of c} exp(-‖f - v_k‖²) / Σ exp(-‖f - v‖²), over the nearest where only these count."""
    vectors, result = model.support_vectors.numpy(), []
    for latent in latents.numpy():
        distances = np.array([((latent - vector) ** 2).sum() for vector in vectors])
        weights = np.exp(-distances)
        if neighbours is not None:
            weights[np.argsort(distances)[neighbours:]] = 0
        result.append([weights[np.array(LABELS) == label].sum() / weights.sum() for label in range(3)])
    return np.array(result)


@pytest.mark.parametrize("neighbours", [None, 1, 4, 100])
@torch.no_grad()
def test_probabilities_are_what_the_formula_says(neighbours: int | None) -> None:
    model = build(neighbours)
    latents = model.support_vectors + 0.02 * torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).double()
    expected = by_hand(model, latents, neighbours)
    assert expected.std(axis=0).min() > 1e-3
    logits = model.logits(model.log_weights(latents))
    np.testing.assert_allclose(logits.exp().numpy(), expected, atol=1e-12)
    torch.testing.assert_close(logits.exp().sum(dim=1), torch.ones(6, dtype=torch.double))
    torch.testing.assert_close(model.probabilities(logits), logits.exp())
    assert logits.isfinite().all()
    torch.testing.assert_close(model(images(5)), model.logits(model.log_weights(model.encoder(images(5)))))


@torch.no_grad()
def test_far_away_from_every_support_nothing_overflows() -> None:
    model = build()
    for far in (1e2, 1e4):
        logits = model.logits(model.log_weights(torch.full((1, 8), far, dtype=torch.double)))
        assert logits.isfinite().all() and logits.exp().sum().item() == pytest.approx(1)
    assert logits.min() < -1e3  # where an exponential is 0, a log-probability still says how far


@torch.no_grad()
def test_a_class_without_supports_has_no_probability() -> None:
    logits = build().logits(torch.tensor([[-0.5, -1.0]]).double().log_softmax(dim=1), torch.tensor([0, 2]))
    assert logits.isfinite().all() and logits[0, 1].exp() == 0


@torch.no_grad()
def test_evidence_is_the_weight_of_each_support() -> None:
    model, queries = build(), images(4)
    logits, weights = model.answer(queries)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(4, dtype=torch.double))
    for label in range(3):
        own = weights[:, [i for i, other in enumerate(LABELS) if other == label]].sum(dim=1)
        torch.testing.assert_close(own, logits[:, label].exp())


def test_supports_of_a_batch_get_gradients_and_all_of_them_count() -> None:
    model, latents = build(neighbours=1), torch.randn(6, 8, dtype=torch.double, requires_grad=True)
    logits = model.logits(model.log_weights(latents[:2], latents[2:]), torch.tensor([2, 0, 1, 0]))
    logits[:, 0].sum().backward()
    assert latents.grad is not None and (latents.grad != 0).all()


def test_maps_are_input_times_gradient() -> None:
    model, queries = build(), images(2)
    targets = torch.tensor([[0, 2], [1, 1]])
    explained = model.explain(queries, targets)
    prepared = model.backbone.prepared(queries).requires_grad_()
    logits = model.logits(model.log_weights(model.encoder.project(model.backbone.pooled(prepared))))
    for k in range(2):
        gradient = torch.autograd.grad(logits.gather(1, targets)[:, k].sum(), prepared, retain_graph=True)[0]
        torch.testing.assert_close(explained.maps[:, k], (gradient * prepared).sum(dim=1).detach())
    torch.testing.assert_close(explained.value, logits.gather(1, targets).detach())
    weights = model.explain_evidence(queries, torch.tensor([3, 5]))
    assert weights.maps.shape == (2, SIZE, SIZE)
    torch.testing.assert_close(weights.value, model.answer(queries)[1][[0, 1], [3, 5]].detach())
