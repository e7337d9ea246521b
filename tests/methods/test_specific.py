"""What is specific to a class: contributions to how much its logit exceeds the mean logit of all classes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.backbones import create
from sic.methods import METHODS, SIC, Bcos, BlackBox, Classifier

CLASSES = 5
TARGETS = torch.tensor([[0, 3], [4, 1]])


def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make(name: str) -> Classifier:
    torch.manual_seed(0)
    if name.startswith("sic"):
        made: Classifier = SIC(
            create("resnet_tiny"), CLASSES, 2 * CLASSES, latent=8, temperature=0.01, local_units=name == "sic local"
        )
        assert isinstance(made, SIC)
        made.set_supports(torch.rand(2 * CLASSES, 8), torch.arange(CLASSES).repeat_interleave(2))
    elif name == "bcos":
        made = Bcos(create("resnet_tiny"), CLASSES, temperature=0.01)
    else:
        made = BlackBox(create("resnet_tiny", "conventional"), CLASSES, attribution=name)
    return made.eval()


@pytest.mark.parametrize("name", ["sic", "sic local", "bcos", "input-x-gradient", "integrated-gradients"])
def test_it_is_a_logits_own_explanation_minus_the_mean_of_all(name: str) -> None:
    pytest.importorskip("captum")
    classifier = make(name)
    found = classifier.explain_specific(images(), TARGETS)
    every = classifier.explain(images(), torch.arange(CLASSES).expand(2, -1))
    for part in ("maps", "value", "constant"):
        whole = getattr(every, part)
        own = torch.stack([whole[n, row] for n, row in enumerate(TARGETS)])
        wanted = own - whole.mean(dim=1, keepdim=True)
        size = float(whole.abs().max().clamp_min(1e-6))
        torch.testing.assert_close(getattr(found, part) / size, wanted / size, atol=2e-5, rtol=0)
    assert found.maps.min() < 0 < found.maps.max()  # a test of zeros would say nothing


@pytest.mark.parametrize("name", ["sic", "sic local", "bcos"])
def test_it_adds_up(name: str) -> None:
    classifier = make(name)
    found = classifier.explain_specific(images(), TARGETS)
    with torch.no_grad():
        logits = classifier(images())
    wanted = logits.gather(1, TARGETS) - logits.mean(dim=1, keepdim=True)
    torch.testing.assert_close(found.value, wanted, atol=1e-5, rtol=1e-5)
    assert found.residual.abs().max() < 1e-5 * max(1.0, float(found.maps.abs().sum(dim=(2, 3)).max()))
    assert float(found.constant.abs().max()) < 1e-6


def test_grad_cam_takes_the_gradient_of_the_difference() -> None:
    classifier = make("grad-cam")
    assert isinstance(classifier, BlackBox)
    features = classifier.backbone.feature_maps(classifier.backbone.prepared(images())).detach().requires_grad_()
    logits = classifier.head(classifier.backbone.pool_maps(features))
    wanted = []
    for k in range(2):
        value = logits.gather(1, TARGETS[:, k : k + 1])[:, 0] - logits.mean(dim=1)
        (gradient,) = torch.autograd.grad(value.sum(), features, retain_graph=True)
        wanted.append((gradient.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1).relu())
    enlarged = F.interpolate(torch.stack(wanted, 1).detach(), (32, 32), mode="bilinear", align_corners=False)
    torch.testing.assert_close(classifier.explain_specific(images(), TARGETS).maps, enlarged, atol=1e-6, rtol=1e-4)


def test_an_answered_batch_says_the_same() -> None:
    classifier = make("sic")
    found = classifier.answered(images()).explain_specific(TARGETS)
    torch.testing.assert_close(found.maps, classifier.explain_specific(images(), TARGETS).maps)


def test_methods_say_whether_they_have_it() -> None:
    for kind in METHODS.values():
        assert kind.specific == (kind.explain_specific is not Classifier.explain_specific)
