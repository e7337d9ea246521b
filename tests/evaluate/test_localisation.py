import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import uniform_filter
from torch import Tensor, nn

from sic import backbones
from sic.data.dataset import Box, Sample
from sic.data.images import Preprocessing
from sic.evaluate import localisation
from sic.evaluate.localisation import (
    box_mask,
    box_pointing_game,
    cell_shares,
    composite,
    confident,
    draw_grids,
    grid_pointing_game,
    pointing,
    smoothed,
)
from sic.methods import SIC, Contributions

SIZE = 24
COLOURS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]])
VIEW = Preprocessing(SIZE, SIZE, "squash")


class Colours(nn.Module):
    """Class c is the colour c: its logit is how much of the picture has it, its contributions are these pixels."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size
        """The only size that it works at."""

    def pixels(self, images: Tensor) -> Tensor:
        if self.size not in (None, images.shape[-1]):
            raise RuntimeError(f"{images.shape[-1]} px")
        far = (images[:, None] - COLOURS[:, :, None, None]).abs().sum(2)
        return (far < 0.3).float()

    def forward(self, images: Tensor) -> Tensor:
        return 5 * self.pixels(images).mean((2, 3)) - 0.1

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        columns = targets if targets.dim() == 2 else targets[:, None]
        maps = self.pixels(images)[torch.arange(len(images))[:, None], columns]
        maps = self.change(maps)
        value = self(images).gather(1, columns)
        weights = torch.zeros(*maps.shape[:2], 0, *maps.shape[2:])
        return Contributions(maps, weights, value, torch.zeros_like(value)).reshape(targets.shape)

    def change(self, maps: Tensor) -> Tensor:
        return maps


class Everywhere(Colours):
    def change(self, maps: Tensor) -> Tensor:
        return torch.ones_like(maps)


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Two images of each colour; a box around its patch, which covers a quarter of them."""
    folder = tmp_path_factory.mktemp("patches")
    samples = []
    for number, (label, where) in enumerate(itertools.product(range(5), (0, 12))):
        pixels = np.zeros((24, 24, 3), np.uint8)
        pixels[where : where + 12, 0:12] = 255 * COLOURS[label].byte().numpy()
        path = folder / f"{number}.png"
        Image.fromarray(pixels).save(path)
        samples.append(Sample(path.name, path, (label,), (Box(label, 0, where, 12, where + 12),)))
    return samples


def sure(samples: list[Sample]) -> Tensor:
    """Probabilities of a model that is always right."""
    return torch.eye(5)[[sample.labels[0] for sample in samples]]


@pytest.mark.parametrize(("side", "height", "width"), [(2, 6, 8), (3, 7, 11)])
def test_cells_against_a_loop(side: int, height: int, width: int) -> None:
    maps = torch.randn(2, height, width, generator=torch.Generator().manual_seed(0))
    expected = np.zeros((2, side * side))
    for n, y, x in np.ndindex(2, height, width):
        expected[n, (y * side // height) * side + x * side // width] += max(maps[n, y, x].item(), 0)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(cell_shares(maps, side).numpy(), expected, rtol=1e-5)


def test_a_map_without_positive_contributions_points_nowhere() -> None:
    assert cell_shares(-torch.ones(4, 4), 2).tolist() == [0, 0, 0, 0]


def test_cells_of_a_composite() -> None:
    cells = torch.rand(9, 3, 4, 4)
    image = composite(cells)
    for number, (row, column) in enumerate(itertools.product(range(3), range(3))):
        assert torch.equal(image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4], cells[number])


@pytest.mark.parametrize("size", [None, SIZE])
def test_an_oracle_finds_the_cell(patches: list[Sample], size: int | None) -> None:
    found = grid_pointing_game(Colours(size), patches, VIEW, sure(patches), 2, grids=5)
    assert found is not None
    assert found["share"] == pytest.approx(1) and found["standard_error"] == pytest.approx(0)
    assert found["chance"] == 0.25 and found["pixels"] == (48 if size is None else 24)
    assert found["grids"] == 2  # each of the ten images once, and two are left over
    assert 0.25 < found["smoothed"]["share"] < 1  # a box of 15 pixels spreads the patches over their borders


@pytest.mark.parametrize("together", [1, 2, 8])
def test_grids_that_are_explained_together(
    patches: list[Sample], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = SIC(backbones.create("resnet_tiny", "bcos"), 5, 5, temperature=1).eval()
    network.set_supports(torch.rand(5, 128), torch.arange(5))
    alone, explain = grid_pointing_game(network, patches, VIEW, sure(patches), 2), network.explain
    monkeypatch.setitem(localisation.AT_ONCE, "cpu", together * 4 * SIZE**2)  # as a GPU does
    explained: list[int] = []
    monkeypatch.setattr(
        network, "explain", lambda images, *more: explained.append(len(images)) or explain(images, *more)
    )
    seen: list[tuple[str, int, int]] = []
    found = grid_pointing_game(network, patches, VIEW, sure(patches), 2, watch=lambda *progress: seen.append(progress))
    assert seen == [("grids 2×2", 1, 2), ("grids 2×2", 2, 2)]
    assert explained == ([1, 1] if together == 1 else [2])
    assert alone is not None and found is not None and alone["standard_error"] > 0
    assert found["share"] == pytest.approx(alone["share"]) and found["grids"] == alone["grids"] == 2
    assert found["smoothed"] == pytest.approx(alone["smoothed"])
    assert found["standard_error"] == pytest.approx(alone["standard_error"], rel=1e-4)


def test_a_single_grid_has_no_standard_error(patches: list[Sample]) -> None:
    found = grid_pointing_game(Colours(), patches, VIEW, sure(patches), 2, grids=1)
    assert found is not None and found["grids"] == 1
    assert found["standard_error"] is found["smoothed"]["standard_error"] is None  # JSON has no NaN


def test_a_map_that_is_the_same_everywhere_is_at_chance(patches: list[Sample]) -> None:
    found = grid_pointing_game(Everywhere(), patches, VIEW, sure(patches), 2, grids=3)
    assert found is not None and found["share"] == pytest.approx(0.25)


def test_grids_are_of_distinct_confident_classes(patches: list[Sample]) -> None:
    labels = torch.tensor([sample.labels[0] for sample in patches])
    probabilities = 0.9 * sure(patches)
    probabilities[4, 2] = 0.4  # not sure enough
    probabilities[0] = torch.tensor([0.1, 0.8, 0, 0, 0])  # wrong
    usable = confident(probabilities, labels)
    assert usable.tolist() == [position not in (0, 4) for position in range(10)]
    grids = draw_grids(labels, usable, 2, 50)
    for row in grids:
        assert len({patches[position].labels for position in row}) == 4
    used = [position for row in grids for position in row]
    assert sorted(used) == sorted(set(used)) == [1, 2, 3, 5, 6, 7, 8, 9]  # each once
    assert grids == draw_grids(labels, usable, 2, 50) != draw_grids(labels, usable, 2, 50, seed=1)
    assert draw_grids(labels, usable, 2, 1) == grids[:1] and draw_grids(labels, usable, 3, 5) == []
    assert grid_pointing_game(Colours(), patches, VIEW, probabilities, 3) is None


def test_an_image_with_several_labels_is_in_no_grid(patches: list[Sample]) -> None:
    several = [*patches, Sample("two", patches[0].path, (0, 1))]
    probabilities = torch.cat([sure(patches), torch.tensor([[1.0, 1, 0, 0, 0]])])
    assert grid_pointing_game(Colours(), several, VIEW, probabilities, 2) == grid_pointing_game(
        Colours(), patches, VIEW, sure(patches), 2
    )


@pytest.mark.parametrize("seed", range(3))
def test_as_many_grids_as_possible(seed: int) -> None:
    """Every class in every grid: the smallest one limits their number only if there are n² classes."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 30, (7,), generator=generator)
    labels = torch.arange(7).repeat_interleave(counts)
    grids = draw_grids(labels, torch.ones(len(labels), dtype=torch.bool), 2, 10**6, seed)
    most = max(k for k in range(len(labels)) if sum(min(count, k) for count in counts.tolist()) >= 4 * k)
    assert len(grids) == most
    assert len({position for row in grids for position in row}) == 4 * most


def test_smoothing_against_scipy() -> None:
    maps = torch.randn(2, 3, 30, 41, generator=torch.Generator().manual_seed(0))
    for found, map in zip(smoothed(maps).flatten(0, 1), maps.flatten(0, 1), strict=True):
        np.testing.assert_allclose(found, uniform_filter(map.numpy(), 15, mode="constant"), atol=1e-6)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_networks_see_the_grid_at_full_size(patches: list[Sample], backbone: str) -> None:
    torch.manual_seed(0)
    model = SIC(backbones.create(backbone), 5, 5, latent=8, temperature=0.1).eval()
    model.set_supports(torch.rand(5, 8), torch.arange(5))
    found = grid_pointing_game(model, patches, Preprocessing(32, 32, "squash"), sure(patches), 2, grids=2)
    assert found is not None and found["pixels"] == 64 and 0 <= found["share"] <= 1


def test_pointing_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(6, 5, 7, generator=generator)
    masks = torch.rand(6, 5, 7, generator=generator) < 0.3
    for figures, map, mask in zip(pointing(maps, masks), maps.numpy(), masks.numpy(), strict=True):
        positive = np.maximum(map, 0)
        strongest = np.argsort(-map.ravel())[: mask.sum()]
        expected = [positive[mask].sum() / positive.sum(), mask.ravel()[map.argmax()], mask.ravel()[strongest].mean()]
        np.testing.assert_allclose(figures.numpy(), expected, rtol=1e-5)


def test_an_oracle_points_into_the_box(patches: list[Sample]) -> None:
    probabilities = sure(patches)
    probabilities[3] = 0
    found = box_pointing_game(Colours(), patches, VIEW, probabilities >= 0.5)
    assert found is not None
    soft = found["all"].pop("smoothed")
    assert found["all"] == pytest.approx({"maps": 10, "energy": 1, "hit": 1, "overlap": 1, "area": 0.25})
    assert soft["hit"] == 1 and 0.25 < soft["energy"] < 1 and 0.25 < soft["overlap"] <= 1
    assert found["found"]["maps"] == 9


def test_by_chance_it_is_the_area(patches: list[Sample]) -> None:
    found = box_pointing_game(Everywhere(), patches, VIEW, sure(patches) >= 0.5)
    assert found is not None and found["all"]["energy"] == pytest.approx(0.25)


def test_no_boxes_no_figures(patches: list[Sample]) -> None:
    bare = [Sample(sample.id, sample.path, sample.labels) for sample in patches]
    assert box_pointing_game(Colours(), bare, VIEW, sure(bare)) is None


def test_boxes_follow_the_view() -> None:
    """An image of 40×20 whose central square is enlarged from 20 to 10 pixels."""
    mask = box_mask([Box(0, 10, 0, 20, 10), Box(0, 0, 0, 9, 20)], (40, 20), Preprocessing(10, 10, "crop"))
    expected = torch.zeros(10, 10, dtype=torch.bool)
    expected[:5, :5] = True
    assert torch.equal(mask, expected)


def test_one_map_for_each_class_with_a_box(tmp_path: Path) -> None:
    pixels = np.zeros((12, 12, 3), np.uint8)
    pixels[:6], pixels[6:] = (255, 0, 0), (0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    boxes = (Box(0, 0, 0, 12, 6), Box(2, 0, 6, 12, 12), Box(1, 0, 0, 3, 3, difficult=True))
    sample = Sample("a.png", tmp_path / "a.png", (0, 2, 4), boxes)
    found = box_pointing_game(Colours(), [sample], VIEW, torch.tensor([[True, True, False, False, False]]))
    assert found is not None and found["all"]["maps"] == 2 and found["found"]["maps"] == 1
    assert found["all"]["energy"] == 1 and found["all"]["area"] == 0.5
