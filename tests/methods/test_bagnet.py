"""BagNets: what they see, and that votes on pixels add up."""

import pytest
import torch
from torch import Tensor

from sic import backbones
from sic.errors import SicError
from sic.methods import BagNet
from tests.models import settle

PATCHES = {"bagnet9": 9, "bagnet17": 17, "bagnet33": 33}


def images(number: int = 2, height: int = 57, width: int = 49) -> Tensor:
    return torch.rand(number, 3, height, width, generator=torch.Generator().manual_seed(2), dtype=torch.double)


@pytest.fixture(scope="module", params=PATCHES)
def model(request: pytest.FixtureRequest) -> BagNet:
    torch.manual_seed(0)
    classifier = BagNet(backbones.create(request.param, "conventional"), 3).double()
    settle(classifier, images(4))
    with torch.no_grad():
        classifier.head.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    return classifier


@torch.no_grad()
def test_a_feature_sees_its_patch_and_nothing_else(model: BagNet) -> None:
    """Exactly: noise around the patch changes nothing, and every row and column of the patch counts."""
    before = model.features(images(1))
    patch = PATCHES[f"bagnet{model.patch}"]
    assert before.shape[2:] == ((57 - patch) // 8 + 1, (49 - patch) // 8 + 1)
    row, column = before.shape[2] - 1, min(1, before.shape[3] - 1)
    top, left = 8 * row, 8 * column
    inside = torch.zeros(57, 49, dtype=torch.bool)
    inside[top : top + patch, left : left + patch] = True
    outside = torch.where(inside, images(1), 1 - images(1))
    torch.testing.assert_close(model.features(outside)[0, :, row, column], before[0, :, row, column], rtol=0, atol=0)
    for y, x in ((top, left), (top, left + patch - 1), (top + patch - 1, left), (top + patch - 1, left + patch - 1)):
        changed = images(1).clone()
        changed[0, :, y, x] = 1 - changed[0, :, y, x]
        assert (model.features(changed)[0, :, row, column] != before[0, :, row, column]).any(), (y, x)


@torch.no_grad()
def test_the_logit_is_the_mean_vote(model: BagNet) -> None:
    patch = PATCHES[f"bagnet{model.patch}"]
    cut = images(1)[0].unfold(1, patch, 8).unfold(2, patch, 8).permute(1, 2, 0, 3, 4).flatten(0, 1)
    torch.testing.assert_close(model(images(1))[0], model(cut).mean(dim=0))


def test_votes_on_pixels_add_up_to_the_logit(model: BagNet) -> None:
    targets = torch.tensor([[0, 2], [1, 0]])
    explained = model.explain(images(), targets)
    assert explained.maps.shape == (2, 2, 57, 49) and explained.weights.shape == (2, 2, 0, 57, 49)
    torch.testing.assert_close(explained.value, model(images()).detach().gather(1, targets))
    torch.testing.assert_close(explained.constant, torch.tensor([[0.5, 2.0], [-1.0, 0.5]], dtype=torch.double))
    assert explained.residual.abs().max() < 1e-12 and explained.maps.abs().sum() > 0.1
    one = model.explain(images(), torch.tensor([2, 0]))
    torch.testing.assert_close(one.maps, explained.maps[:, 1])


@torch.no_grad()
def test_a_pixel_has_its_share_of_every_patch_that_it_lies_in(model: BagNet) -> None:
    """Against loops over patches."""
    patch, expected = PATCHES[f"bagnet{model.patch}"], torch.zeros(57, 49, dtype=torch.double)
    corners = [(y, x) for y in range(0, 57 - patch + 1, 8) for x in range(0, 49 - patch + 1, 8)]
    cut = torch.cat([images(1)[:, :, top : top + patch, left : left + patch] for top, left in corners])
    for (top, left), vote in zip(corners, model(cut)[:, 1] - model.head.bias[1], strict=True):
        expected[top : top + patch, left : left + patch] += vote / len(corners) / patch**2
    torch.testing.assert_close(model.explain(images(1), torch.tensor([1])).maps[0], expected)


def test_other_backbones_and_tiny_images_are_refused(model: BagNet) -> None:
    with pytest.raises(SicError, match="--backbone bagnet17"):
        BagNet(backbones.create("resnet_tiny", "conventional"), 3)
    with pytest.raises(SicError, match=f"smaller than a patch of {model.patch} px"):
        model(images(1, model.patch - 1, 40))
    with pytest.raises(SicError, match="--form bcos"):
        backbones.create(f"bagnet{model.patch}", "bcos")
