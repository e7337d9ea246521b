"""The deletion check: its parts against loops and another library, and when it passes, fails or stays undecided."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

from sic.evaluate.checks import Check
from sic.evaluate.deletion import deletion, interval, linear_contributions, scores_left
from sic.evaluate.unfamiliar import drawn_birds
from sic.methods import SIC, Bcos, Classifier, Contributions
from sic.model import load
from tests.evaluate.test_sabotage import Change, build, photos, sabotaged, uniform
from tests.test_older_model import FOLDER


def checked(model: Classifier, images: Tensor, seed: int = 0) -> Check:
    return deletion(model, images, torch.Generator().manual_seed(seed))


def reversed_order(exact: Contributions, *_: object) -> Contributions:
    return replace(exact, maps=-exact.maps)


def test_the_interval_is_students() -> None:
    values = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.3
    expected = ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((values.mean().item(), expected.low, expected.high))


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("backbone", ["resnet_tiny", "vit_small"])
def test_blocks_add_what_the_map_says(backbone: str, size: int) -> None:
    """Found without `explain`, they are the sums of its map in each block; 32 pixels are no multiple of 5."""
    model = build(SIC, backbone).double()
    image, target = photos(1)[0].double(), torch.tensor(2)
    found = linear_contributions(model, image, target, size)
    exact = model.explain(image[None], target[None]).maps[0]
    for top in range(0, 32, size):
        for left in range(0, 32, size):
            block = slice(top, top + size), slice(left, left + size)
            assert found[block].sum().item() == pytest.approx(exact[block].sum().item(), abs=1e-9)
            assert found[block].std().item() < 1e-12
    assert exact.std() > 1e-5


@torch.no_grad()
def test_the_top_fifth_of_the_blocks_is_removed() -> None:
    model, images, targets = build(SIC), photos(3), torch.tensor([0, 1, 2])
    maps = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = scores_left(model, images, targets, maps, 4)
    for image, target, flat, left in zip(images, targets, maps, found, strict=True):
        sums = {(y, x): flat[y : y + 4, x : x + 4].sum().item() for y in range(0, 32, 4) for x in range(0, 32, 4)}
        changed = image.clone()
        for y, x in sorted(sums, key=lambda place: -sums[place])[:13]:  # of 64
            changed[:, y : y + 4, x : x + 4] = image.mean(dim=(1, 2))[:, None, None]
        assert left.item() == pytest.approx(model(changed[None])[0, target].item(), abs=1e-5)


@pytest.fixture(scope="module")
def trained() -> Classifier:
    """On drawn birds, for a few epochs."""
    return load(FOLDER / "model").classifier


@pytest.mark.parametrize("change", [uniform, reversed_order])
def test_a_wrong_order_fails(change: Change, trained: Classifier) -> None:
    model = sabotaged(trained, change)
    assert [checked(model, drawn_birds(24, 32, 0), seed).verdict for seed in range(3)] == 3 * ["FAIL"]


def test_a_right_map_passes(trained: Classifier) -> None:
    birds = drawn_birds(48, 32, 0)
    assert [checked(trained, birds[16 * part :][:16], part).verdict for part in range(3)] == 3 * ["pass"]
    found = checked(trained, birds)
    low, high = found.details["interval"]
    assert 0 < low < found.details["drop_beyond_random"] < high and found.worst == -low
    low, high = found.details["uniform_interval"]
    assert low < 0 < high and found.wrong[1] == -low


@pytest.mark.parametrize("number", [2, 5, 16])
def test_a_right_map_of_a_network_that_hardly_reacts_does_not_fail(number: int) -> None:
    """Untrained; a right map is never behind the linearised network."""
    found = [checked(build(method), photos(number), seed) for method in (SIC, Bcos) for seed in range(3)]
    open_ended = [check for check in found if check.verdict != "pass"]
    assert open_ended and {check.verdict for check in open_ended} == {"undecided"}
    assert all(check.details["lag"] == 0 and check.details["lag_interval"] == [0, 0] for check in open_ended)


def test_a_right_map_of_a_network_that_reacts_the_other_way_does_not_fail(
    trained: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its score rises where the arithmetic for the whole image says that it falls."""
    monkeypatch.setattr("sic.evaluate.deletion.scores_left", lambda *given: -scores_left(*given))
    found = checked(trained, drawn_birds(16, 32, 0))
    assert found.details["interval"][1] < 0 and found.verdict == "undecided"


def test_one_image_decides_nothing(trained: Classifier) -> None:
    assert checked(trained, drawn_birds(1, 32, 0)).verdict == "undecided"


def test_scores_that_do_not_move_decide_nothing() -> None:
    model = build(SIC)
    assert isinstance(model, SIC)
    model.set_supports(torch.zeros_like(model.support_vectors), model.support_classes)
    for each in (model, sabotaged(model, uniform)):
        assert checked(each, photos(8)).verdict == "undecided"
