import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sic.evaluate.unfamiliar import (
    acceptance_threshold,
    best_scores,
    blurred_noise,
    drawn_birds,
    noise,
    refusal,
    unfamiliar,
)
from sic.predictions import Answers
from sic.settings import Loss


class Brightness(nn.Module):
    """Finds class 0 in bright images."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3)) - 0.5
        return 10 * torch.stack([bright, bright - 1], 1)

    def answers(self, images: Tensor, loss: Loss = "bce") -> Answers:
        return Answers(self(images), "single", loss)


def grey(*levels: float) -> Tensor:
    return torch.tensor(levels)[:, None, None, None].expand(-1, 3, 8, 8)


@pytest.mark.parametrize("count", [1, 19, 20, 21, 100])
def test_at_least_95_percent_are_accepted_and_no_threshold_above_does_it(count: int) -> None:
    scores = torch.randn(count, generator=torch.Generator().manual_seed(count))
    threshold = acceptance_threshold(scores)
    assert (scores >= threshold).double().mean() >= 0.95
    higher = scores[scores > threshold]
    assert len(higher) == 0 or (scores >= higher.min()).double().mean() < 0.95


def test_refusal_by_hand() -> None:
    familiar = torch.linspace(1, 2, 100)
    found = refusal(familiar, torch.tensor([0.0, 0.5, 1.04, 1.5]))
    assert found["threshold"] == pytest.approx(familiar[5].item())
    assert found["flagged"] == 0.75
    pairs = [float(a > b) for a in familiar for b in (0.0, 0.5, 1.04, 1.5)]
    assert found["auroc"] == pytest.approx(np.mean(pairs))


def test_dark_images_are_strangers() -> None:
    found = unfamiliar(
        Brightness(), Brightness().answers(grey(0.6, 0.7, 0.8)), {"dark": [grey(0.1, 0.2)], "bright": [grey(0.9)]}
    )
    assert found["familiar"] == {"images": 3, "no_similar_case": 0}
    assert found["dark"]["images"] == 2 and found["dark"]["no_similar_case"] == 1
    for score in ("probability", "logit"):
        assert found["dark"][score]["flagged"] == 1 and found["bright"][score]["flagged"] == 0
    assert found["bright"]["no_similar_case"] == 0


def test_the_score_matters_where_classes_compete() -> None:
    """The two logits are always 10 apart: a softmax says the same of everything."""
    model = Brightness()
    found = unfamiliar(model, model.answers(grey(0.6, 0.7), "ce"), {"dark": [grey(0.1)]})
    assert found["dark"]["logit"]["flagged"] == 1
    scores = best_scores(model.answers(grey(0.6, 0.1), "ce"))
    assert scores["probability"][0] == pytest.approx(scores["probability"][1].item(), abs=1e-6)


@pytest.mark.parametrize("kind", [noise, blurred_noise, drawn_birds])
def test_strangers_are_pictures(kind: object) -> None:
    images = kind(5, 24)  # type: ignore[operator]
    assert images.shape == (5, 3, 24, 24) and images.min() >= 0 and images.max() <= 1
    assert torch.equal(images, kind(5, 24)) and not torch.equal(images, kind(5, 24, seed=1))  # type: ignore[operator]
    assert images.std(dim=(2, 3)).min() > 0.02


def test_blurred_noise_is_smooth() -> None:
    def steps(images: Tensor) -> Tensor:
        return (images[..., 1:] - images[..., :-1]).abs().mean()

    assert steps(blurred_noise(4, 64)) < 0.3 * steps(noise(4, 64))
