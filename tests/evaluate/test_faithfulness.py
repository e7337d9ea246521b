import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn
from torchmetrics.functional.image import structural_similarity_index_measure

from sic import backbones
from sic.evaluate.faithfulness import (
    STEPS,
    blurred,
    cell_order,
    deletion_insertion,
    frame,
    randomisation,
    randomised,
    rank_correlations,
    stability,
    structural_similarities,
)
from sic.methods import SIC, Classifier, Contributions
from tests.evaluate.test_axioms import photos
from tests.models import settle


class Corner(Classifier):
    """Looks at the red of the upper left quarter alone, through one weight."""

    loss = "bce"

    def __init__(self, sign: float = 1.0) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.tensor([8.0, -8.0]))
        self.sign = sign

    def quarter(self, images: Tensor) -> Tensor:
        mask = torch.zeros(images.shape[2:])
        mask[: images.shape[2] // 2, : images.shape[3] // 2] = 1
        return images[:, 0] * mask / mask.sum()

    def forward(self, images: Tensor) -> Tensor:
        return self.quarter(images).sum((1, 2))[:, None] * self.weight - 2

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        maps = (self.sign * self.quarter(images) * self.weight[targets][:, None, None]).detach()
        weights = torch.zeros(len(maps), 0, *maps.shape[1:])
        value = self(images).gather(1, targets[:, None])[:, 0].detach()
        return Contributions(maps, weights, value, torch.full((len(maps),), -2.0))


class Edges(Corner):
    """An explanation that has nothing to do with the weights."""

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        found = super().explain(images, targets)
        grey = images.mean(1)
        found.maps = F.pad((grey[:, 1:, 1:] - grey[:, :-1, :-1]).abs(), (1, 0, 1, 0))
        return found


def reds(count: int = 3, size: int = 32) -> Tensor:
    """Red in the quarter that counts, dark elsewhere."""
    images = 0.1 * torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    images[:, 0, : size // 2, : size // 2] += 0.8
    return images


@pytest.mark.parametrize(("height", "width", "cell"), [(6, 8, 2), (7, 5, 3), (4, 4, 1)])
def test_the_order_of_cells_against_a_loop(height: int, width: int, cell: int) -> None:
    maps = torch.randn(2, height, width, generator=torch.Generator().manual_seed(1))
    found = cell_order(maps, cell).numpy()
    for n in range(2):
        cells = {(y // cell, x // cell) for y, x in np.ndindex(height, width)}
        sums = {
            place: maps[n, place[0] * cell : (place[0] + 1) * cell, place[1] * cell : (place[1] + 1) * cell]
            .sum()
            .item()
            for place in cells
        }
        ranked = sorted(cells, key=lambda place: -sums[place])
        for y, x in np.ndindex(height, width):
            assert found[n, y, x] == pytest.approx(ranked.index((y // cell, x // cell)) / len(cells))


def test_curves_of_a_model_that_is_known() -> None:
    """A quarter of the image decides, and the map names it: after a quarter of the deletion nothing is left to lose."""
    images = reds()
    found = deletion_insertion(Corner(), images, torch.zeros(3, dtype=torch.long))
    start = Corner()(images)[:, 0].sigmoid().mean().item()
    gone = Corner()(images.mean((2, 3), keepdim=True).expand_as(images))[:, 0].sigmoid().mean().item()
    deletion, insertion, quarter = found["deletion"], found["insertion"], STEPS // 4
    curve = deletion["probability_curve"]
    assert curve[0] == pytest.approx(start, abs=1e-6) and len(curve) == STEPS + 1
    assert curve[quarter:] == pytest.approx([gone] * (STEPS + 1 - quarter), abs=1e-4)
    assert deletion["probability_area"] == pytest.approx(np.trapezoid(curve, dx=1 / STEPS))
    assert deletion["probability_area"] < deletion["random_probability_area"]
    curve = insertion["probability_curve"]
    assert curve[quarter:] == pytest.approx([start] * (STEPS + 1 - quarter), abs=1e-4)
    assert curve[-1] == insertion["random_probability_curve"][-1] == pytest.approx(start, abs=1e-6)
    assert insertion["probability_area"] > insertion["random_probability_area"]


def test_when_the_answer_changes() -> None:
    """Red above the mean of 0.2 … 0.3 in a quarter is class 0: it goes with about half of that quarter."""

    class Above(Corner):
        def forward(self, images: Tensor) -> Tensor:
            return (self.quarter(images).sum((1, 2))[:, None] - 0.6) * self.weight

    images = reds()
    found = deletion_insertion(Above(), images, torch.zeros(3, dtype=torch.long))
    mean = images[:, 0].mean().item()
    share = (0.85 - 0.6) / (0.85 - mean) / 4  # of all pixels
    curve = found["deletion"]["curve"]
    assert curve[0] == 1 and curve[-1] == 0 and set(curve) <= {0, 1}
    assert curve.index(0) == pytest.approx(share * STEPS, abs=1)
    assert found["deletion"]["random_curve"].index(0) == pytest.approx(4 * share * STEPS, abs=1)
    assert found["deletion"]["beats_random"] == 1 and found["deletion"]["area"] < found["deletion"]["random_area"]
    worse = deletion_insertion(Above(-1), images, torch.zeros(3, dtype=torch.long))
    assert worse["deletion"]["beats_random"] == worse["insertion"]["beats_random"] == 0
    assert worse["deletion"]["area"] > worse["deletion"]["random_area"]


def test_blurred_keeps_the_mean_and_loses_details() -> None:
    images = torch.rand(2, 3, 32, 32)
    soft = blurred(images)
    assert soft.shape == images.shape and soft.std() < 0.2 * images.std()
    torch.testing.assert_close(blurred(torch.full((1, 3, 16, 16), 0.3)), torch.full((1, 3, 16, 16), 0.3))


def test_rank_correlation_against_scipy() -> None:
    one, other = torch.randn(2, 5, 8, 9, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    expected = [spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(one, other, strict=True)]
    assert rank_correlations(one, other).tolist() == pytest.approx(expected)
    assert rank_correlations(one, 3 * one + 1).tolist() == pytest.approx([1] * 5)
    assert rank_correlations(one, torch.zeros_like(one)).tolist() == [0] * 5


def test_ssim_does_not_mind_the_scale() -> None:
    one, other = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    assert structural_similarities(one, 1e-6 * one).tolist() == pytest.approx([1] * 3, abs=1e-5)
    assert structural_similarities(one, torch.zeros_like(one)).tolist() == [0] * 3
    a, b = (m[0] / m[0].abs().max() for m in (one, other))
    expected = structural_similarity_index_measure(a[None, None], b[None, None], data_range=2.0)
    assert structural_similarities(one, 7 * other)[0] == pytest.approx(expected.item(), abs=1e-6)


def test_a_linear_map_is_as_stable_as_its_input() -> None:
    images = 0.1 + 0.8 * torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    targets = torch.zeros(3, dtype=torch.long)
    found = stability(Corner(), images, targets)
    red = images[:, 0, :16, :16].flatten(1)
    expected = (0.01 * 16 / red.norm(dim=1)).mean().item()
    assert found["relative_change"] == pytest.approx(expected, rel=0.1)
    assert found["worst"] <= found["rank_correlation"] and found["rank_correlation"] > 0.95
    assert 0 < found["logit_change"] < 0.02


def test_a_map_that_jumps_is_not_stable() -> None:
    class Jumps(Corner):
        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            found = super().explain(images, targets)
            found.maps = ((1e5 * images[:, 0]).long() % 97).float()
            return found

    found = stability(Jumps(), reds(), torch.zeros(3, dtype=torch.long))
    assert abs(found["rank_correlation"]) < 0.1 and found["relative_change"] > 0.5


def test_what_is_randomised() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(50, 60), nn.Linear(60, 70))
    half, whole = randomised(network, 0.5), randomised(network, 1.0)
    assert torch.equal(half[0].weight, network[0].weight) and not torch.equal(half[1].weight, network[1].weight)
    for fresh, value in zip(whole.parameters(), network.parameters(), strict=True):
        assert not torch.equal(fresh, value)
        assert fresh.std().item() == pytest.approx(value.std().item(), rel=0.3)


def test_an_edge_detector_survives_and_fails() -> None:
    found = randomisation(Edges(), photos(3), torch.zeros(3, dtype=torch.long))
    assert not found["passed"]
    for stage in found["stages"]:
        assert stage["rank_correlation"] == pytest.approx(1) and stage["ssim"] == pytest.approx(1, abs=1e-5)


def test_the_maps_of_sic_do_not_survive() -> None:
    torch.manual_seed(0)
    model = SIC(backbones.create("resnet_tiny"), 3, 3, latent=32, temperature=0.5).eval()
    settle(model.encoder, photos(8))
    with torch.no_grad():
        model.set_supports(model.encoder(photos(3)), torch.arange(3))
    found = randomisation(model, photos(4), model(photos(4)).argmax(1))
    assert found["passed"], found
    assert [stage["randomised"] for stage in found["stages"]] == [0.25, 0.5, 0.75, 1]


class Weighted(nn.Module):
    """The score is a sum of pixels with weights, and so is its map; `distort` adds what the score does not know."""

    def __init__(self, weights: Tensor, distort: Tensor | float = 0) -> None:
        super().__init__()
        self.weights, self.distort = weights, distort

    def forward(self, images: Tensor) -> Tensor:
        return (images.sum(1) * self.weights).sum((1, 2))[:, None].expand(-1, 2)

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        maps = images.sum(1) * self.weights + self.distort
        value = self(images)[:, 0]
        return Contributions(maps, torch.zeros(len(images), 0, *maps.shape[1:]), value, torch.zeros_like(value))


def test_the_frame_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    images, weights = torch.rand(3, 3, 20, 20, generator=generator), torch.randn(20, 20, generator=generator)
    found = frame(Weighted(weights), images, torch.zeros(3, dtype=torch.long))  # type: ignore[arg-type]
    inside = np.zeros((20, 20), bool)
    inside[:2], inside[-2:], inside[:, :2], inside[:, -2:] = True, True, True, True
    mass, changes, swapped = [], [], []
    for number, image in enumerate(images.numpy()):
        map = image.sum(0) * weights.numpy()
        mass.append(np.abs(map[inside]).sum() / np.abs(map).sum())
        gap = (image - image.mean((1, 2), keepdims=True)).sum(0) * weights.numpy()
        changes.append((abs(gap[inside].sum()), abs(gap[~inside].sum())))
        gap = (image - images.numpy()[number - 1]).sum(0) * weights.numpy()
        swapped.append((abs(gap[inside].sum()), abs(gap[~inside].sum())))
    change, rest = np.mean(changes, axis=0)
    inner, outer = np.mean(swapped, axis=0)
    assert found["images"] == 3 and found["area"] == inside.mean() == 1 - 16**2 / 20**2
    assert found["mass"] == pytest.approx(np.mean(mass), rel=1e-5)
    assert found["effect"] == pytest.approx(change / (change + rest), rel=1e-4)
    assert found["effect_of_another"] == pytest.approx(inner / (inner + outer), rel=1e-4)
    assert found["times"] == pytest.approx(found["mass"] / found["effect"])


def test_a_map_of_the_padding_gives_the_frame_too_much() -> None:
    images = torch.rand(4, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    border = 1 - F.pad(torch.ones(16, 16), (2,) * 4)
    weights = 1 - 0.9 * border
    honest, padded = (
        frame(Weighted(weights, distort), images, torch.zeros(4, dtype=torch.long))["times"]  # type: ignore[arg-type]
        for distort in (0.0, 10 * border)
    )
    assert padded > 3 * honest
