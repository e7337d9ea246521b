import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from sic.data.birds import PARTS, sample_scene, species
from sic.data.dataset import Sample
from sic.data.drawing import LABELS, render
from sic.data.images import Preprocessing
from sic.evaluate.interventions import COLOURS, baselines, colour_numbers, importance, part_masks, part_removal
from sic.methods import Contributions

SIZE, SIDE = 40, 6
# The part with the number p is a bright square whose corner is here; squares stay apart after a dilation by 2.
CORNERS = [(2, 2), (2, 16), (20, 32), (20, 2), (20, 22)]


def square(part: int) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), bool)
    top, left = CORNERS[part]
    mask[top : top + SIDE, left : left + SIDE] = True
    return mask


def picture(kept: set[str]) -> np.ndarray:
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    for number, part in enumerate(PARTS):
        if part in kept:
            pixels[square(number)] = 51 * (number + 1)
    return pixels


def value(part: int) -> float:
    """What the square adds to the sum of an image's pixels in [0, 1]."""
    return SIDE * SIDE * 3 * (part + 1) / 5


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """A FunnyBirds-like test set by hand: four images of each of five classes, class c to be known by part c."""
    root = tmp_path_factory.mktemp("squares")

    def store(name: str, pixels: np.ndarray) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)

    part_map = np.zeros((SIZE, SIZE, 3), np.uint8)
    for number, part in enumerate(PARTS):
        part_map[square(number)] = LABELS[part][-1]
    made = []
    for index in range(20):
        name = f"{index % 5}/{index:06d}"
        store(f"test/{name}.png", picture(set(PARTS)))
        store(f"test_part_map/{name}.png", part_map)
        for count in range(6):
            for kept in itertools.combinations(PARTS, count):
                if count in (4, 5):
                    store(f"test_interventions/{name}/body_{'_'.join(kept)}.png", picture(set(kept)))
        made.append(Sample(f"test/{name}.png", root / f"test/{name}.png", (index % 5,)))
    return made


class SumOfOnePart(nn.Module):
    """Logit c is the sum of the pixels in the square of part c, and its contributions are those pixels."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.masks = torch.from_numpy(np.stack([square(part) for part in range(5)])).float()
        self.sign = sign
        """-1: an explanation that is wrong, it says the opposite."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.einsum("nchw,khw->nk", images, self.masks)

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        maps = images.sum(1) * self.masks[targets]
        if self.sign < 0:
            maps = images.sum(1) * (1 - self.masks[targets]) - maps
        logits = self(images).gather(1, targets[:, None])[:, 0]
        return Contributions(maps, torch.zeros(len(images), 6, SIZE, SIZE), logits, torch.zeros(len(images)))


def root(samples: list[Sample]) -> Path:
    return samples[0].path.parents[2]


@pytest.mark.parametrize("seed", range(3))
def test_importance_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    maps, masks = rng.normal(size=(2, 13, 13)), rng.random((2, 3, 13, 13)) < 0.04
    masks[0, 1] = False  # a hidden part
    expected = np.zeros((2, 3))
    found = []
    for n in range(2):
        masks[n, 1] &= ~masks[n, 0]
        masks[n, 2] &= ~masks[n, :2].any(0)  # a pixel belongs to one part
        picture = np.zeros((13, 13, 3), np.uint8)
        for p, part in enumerate(("beak", "tail", "wing")):
            picture[masks[n, p]] = LABELS[part][0]
        view = part_masks(Image.fromarray(picture), 0, Preprocessing(13, 13, "squash"))
        found.append(importance(torch.from_numpy(maps[n])[None, None], view[None])[0][0, 0])
    for n, p, y, x in np.ndindex(2, 3, 13, 13):
        if masks[n, p, max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].any():
            expected[n, p] += maps[n, y, x]
    sums = torch.stack(found)[:, [PARTS.index(part) for part in ("beak", "tail", "wing")]]
    assert sums.dtype == torch.float64 and sums[0, 1] == 0
    np.testing.assert_allclose(sums.numpy(), expected, atol=1e-12)


def test_importance_is_not_normalised() -> None:
    picture = np.zeros((20, 20, 3), np.uint8)
    picture[10, 10] = LABELS["beak"][0]
    masks = part_masks(Image.fromarray(picture), 0, Preprocessing(20, 20, "squash"))
    assert importance(torch.full((1, 1, 20, 20), -2.0), masks[None])[0][0, 0].tolist() == [-2 * 25, 0, 0, 0, 0]


def test_what_lies_between_a_pair_counts_twice() -> None:
    picture = np.zeros((20, 20, 3), np.uint8)
    picture[4, 6], picture[4, 9] = LABELS["eye"]
    picture[4, 16] = (204, 204, 204 + 3)
    masks = part_masks(Image.fromarray(picture), 5, Preprocessing(20, 20, "squash"))
    parts, objects = importance(torch.ones(1, 1, 20, 20), masks[None])
    assert parts[0, 0].tolist() == [0, 50, 0, 0, 0]
    assert objects[0, 0].tolist() == [0, 0, 0, 25, 0]


def test_colours_that_are_none() -> None:
    picture = np.array(
        [[(204, 204, 253), (204, 204, 254), (204, 204, 203), (255, 255, 252), (203, 204, 204)]], np.uint8
    )
    assert colour_numbers(picture).tolist() == [[58, 0, 0, 0, 0]]


def test_importance_does_not_depend_on_the_size_of_the_view() -> None:
    """The same map at 256 and at 64 px: shares of parts agree. Dilated in the view they would not."""
    rng = np.random.default_rng(0)
    scene = sample_scene(0, species(1, 0)[0], rng)
    picture = Image.fromarray(render(scene, 256).part_map)
    coarse = torch.from_numpy(rng.random((1, 1, 32, 32))) ** 3
    shares, dilated = {}, {}
    for size in (256, 64):
        maps = coarse.repeat_interleave(size // 32, 2).repeat_interleave(size // 32, 3)
        view = Preprocessing(size, size, "squash")
        parts, _ = importance(maps, part_masks(picture, 0, view)[None])
        shares[size] = (parts / maps.sum())[0, 0].numpy()
        numbers = torch.from_numpy(colour_numbers(view(picture, Image.Resampling.NEAREST)))
        colours = torch.arange(1, 1 + len(COLOURS))[:, None, None]
        wide = F.max_pool2d((numbers == colours).float(), 5, 1, 2)
        dilated[size] = ((maps[0] * wide).sum((1, 2)) / maps.sum()).numpy()
    assert shares[256].sum() > 0.05
    np.testing.assert_allclose(shares[64], shares[256], rtol=2e-3)
    assert (dilated[64] > 1.2 * dilated[256]).sum() >= 4


def test_baselines_ask_no_model() -> None:
    images = torch.zeros(1, 3, 16, 16)
    images[..., 8:] = 1  # one vertical edge
    masks = torch.zeros(1, len(COLOURS) + 1, 16, 16, dtype=torch.uint8)
    masks[0, 2, 3, 4], masks[0, 8, 0, 0] = 255, 255  # a part and an object
    found = {name: maps[0, 0] for name, maps in baselines(images, masks).items()}
    assert found["part mask"].nonzero().tolist() == [[3, 4]] and found["part mask"].sum() == 1
    assert found["edge filter"].sum(0).nonzero().flatten().tolist() == [7, 8]
    blob = found["centred blob"]
    assert torch.equal(blob, blob.flip(0)) and torch.equal(blob, blob.T) and blob.argmax() == 16 * 7 + 7


def test_removing_the_part_that_decides_always_lowers_the_logit(samples: list[Sample]) -> None:
    result = part_removal(SumOfOnePart(), root(samples), samples, Preprocessing(SIZE, SIZE, "squash"))
    assert result.images == 20 and result.lowered == 1
    assert result.mean_drop == pytest.approx(np.mean([value(part) for part in range(5)]), rel=1e-5)
    assert 0 <= result.random_lowered < 0.6 and result.random_mean_drop < result.mean_drop


def test_a_wrong_explanation_never_does(samples: list[Sample]) -> None:
    result = part_removal(SumOfOnePart(-1), root(samples), samples, Preprocessing(SIZE, SIZE, "squash"))
    assert result.lowered == 0 and result.mean_drop == pytest.approx(0, abs=1e-5)


def test_a_random_part_is_drawn_by_the_seed(samples: list[Sample]) -> None:
    """Images of one class: the drop is the class's part or nothing, so the mean drop is the share times that."""
    chosen = [sample for sample in samples if sample.labels == (2,)] * 10
    shares = []
    for seed in (0, 0, 1, 2):
        result = part_removal(SumOfOnePart(), root(samples), chosen, Preprocessing(SIZE, SIZE, "squash"), seed)
        assert result.random_mean_drop == pytest.approx(result.random_lowered * value(2), rel=1e-5)
        shares.append(result.random_lowered)
    assert shares[0] == shares[1] and all(0 < share < 0.5 for share in shares)


@pytest.mark.parametrize("resize", [SIZE, 100])
def test_masks_lie_on_the_parts_of_the_view(samples: list[Sample], resize: int) -> None:
    """An explanation whose whole mass is where the view shows part 4: that part must be the one removed."""
    preprocessing = Preprocessing(SIZE, resize, "squash")

    class Brightest(SumOfOnePart):
        """Part 4 is the only one as bright as 1.0."""

        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            contributions = super().explain(images, targets)
            contributions.maps = (images[:, 0] > 0.99).float()
            return contributions

        def __call__(self, images: Tensor) -> Tensor:
            return (images[:, 0] > 0.99).float().sum((1, 2))[:, None].expand(-1, 5)

    chosen = [sample for sample in samples if sample.labels == (4,)]
    assert part_removal(Brightest(), root(samples), chosen, preprocessing).lowered == 1
