import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.drawing import LABELS
from sic.data.images import Preprocessing
from sic.evaluate.parts import part_importance, part_removal
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


class SumOfOnePart:
    """Logit c is the sum of the pixels in the square of part c, and its contributions are those pixels."""

    def __init__(self, sign: float = 1.0) -> None:
        self.masks = torch.from_numpy(np.stack([square(part) for part in range(5)])).float()
        self.sign = sign
        """-1: an explanation that is wrong, it says the opposite."""

    def __call__(self, images: Tensor) -> Tensor:
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
    maps, masks = rng.normal(size=(2, 11, 13)), rng.random((2, 3, 11, 13)) < 0.04
    masks[0, 1] = False  # a hidden part
    expected = np.zeros((2, 3))
    for n, p, y, x in np.ndindex(2, 3, 11, 13):
        if masks[n, p, max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].any():
            expected[n, p] += maps[n, y, x]
    found = part_importance(torch.from_numpy(maps), torch.from_numpy(masks))
    assert found.dtype == torch.float64 and found[0, 1] == 0
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_importance_is_not_normalised() -> None:
    masks = torch.zeros(1, 1, 20, 20, dtype=torch.bool)
    masks[0, 0, 10, 10] = True
    assert part_importance(torch.full((1, 20, 20), -2.0), masks).item() == -2 * 25


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
