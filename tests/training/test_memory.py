"""The memory of a training step: what a step in parts computes, and what is said before a fit that does not fit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sic import backbones
from sic.bcos import BatchNormUncentred2d
from sic.data.dataset import Sample
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.directory import Config, build
from sic.training import memory
from sic.training.batches import Batch, support_candidates
from sic.training.memory import FEWEST, GB, available, bound_memory, check_features, kept_per_image
from sic.training.sic import SICTraining, SupportBank
from tests.listening import Listening
from tests.models import small_settings

CLASSES, PER_CLASS = 3, 2
SAMPLES = [Sample(f"{i}", Path(f"{i}"), (i % CLASSES,)) for i in range(18)]


def training(backbone: str, form: str = "bcos", source: str = "exact") -> SICTraining:
    torch.manual_seed(0)
    settings = small_settings(backbone=backbone, support_source=source, supports_per_class=PER_CLASS)
    config = Config(backbone, ["a", "b", "c"], "single", Preprocessing(32, 32), PER_CLASS, 1.0, form=form, latent=8)
    made = SICTraining(build(config, CLASSES * PER_CLASS), settings, support_candidates(SAMPLES), False)  # type: ignore[arg-type]
    made.steps_per_epoch = 4
    return made.train()


def batch(supports: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(1)
    queries, others = torch.arange(7), torch.tensor([9, 12, 10, 13, 11, 14]) if supports else torch.arange(0)
    pixels = torch.randint(256, (len(SAMPLES), 3, 32, 32), generator=generator, dtype=torch.uint8)
    wanted = targets(SAMPLES, CLASSES)
    return Batch(
        pixels[queries], None, queries, wanted[queries], pixels[others], others, wanted[others], others % CLASSES,
        torch.tensor([[0, 1, 2]]),
    )  # fmt: skip


def gradients(made: SICTraining, part: int | None, supports: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
    made.zero_grad()
    made.classifier.backbone.part = part
    loss = made.training_step(batch(supports), 1)
    loss.backward()
    return loss.detach(), {name: value.grad for name, value in made.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("part", [1, 2, 5, 12])
def test_a_step_in_parts_has_the_gradients_of_the_whole_step(part: int) -> None:
    """Queries and supports in different parts; a network without batch statistics."""
    made = training("vit_small")
    made.classifier.backbone.double()
    made.prepared = lambda pixels: pixels.double() / 255  # type: ignore[method-assign]
    loss, expected = gradients(made, None)
    other, found = gradients(made, part)
    assert other.item() == pytest.approx(loss.item(), rel=1e-6)  # the loss itself is computed in float32
    assert found.keys() == expected.keys() and any("backbone" in name for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7 * float(gradient.abs().max()))


def test_a_step_in_parts_with_the_bank() -> None:
    made = training("vit_small", source="bank")
    made.bank = bank_of(made)
    loss, expected = gradients(made, None, supports=False)
    made.bank = bank_of(made)
    other, found = gradients(made, 3, supports=False)
    assert other.item() == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))


def bank_of(made: SICTraining) -> SupportBank:
    latents = torch.rand(len(SAMPLES), 8, generator=torch.Generator().manual_seed(2))
    return SupportBank(latents, made.candidates, PER_CLASS, 0)


@pytest.mark.parametrize(("name", "form"), [("resnet_tiny", "bcos"), ("resnet_tiny", "conventional")])
def test_batch_norms_take_the_statistics_of_each_part_once(name: str, form: str) -> None:
    """As if the parts had passed one after the other, all remembered."""
    torch.manual_seed(0)
    backbone, other = (backbones.create(name, form, measure=False).train() for _ in range(2))
    other.load_state_dict(backbone.state_dict())
    images, direction = torch.rand(10, 3, 32, 32), torch.rand(10, backbone.features)
    backbone.part = 4
    (backbone(images) * direction).sum().backward()
    expected = torch.cat([other(part) for part in images.tensor_split(3)])
    (expected * direction).sum().backward()
    for ours, theirs in zip(backbone.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(backbone.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    norms = [norm for norm in backbone.modules() if isinstance(norm, BatchNormUncentred2d | nn.BatchNorm2d)]
    assert norms and not all(bool((norm.running_var == 1).all()) for norm in norms)


def test_parts_are_for_training_only() -> None:
    backbone = backbones.create("resnet_tiny", measure=False).eval()
    images = torch.rand(6, 3, 32, 32)
    expected = backbone(images)
    backbone.part = 2
    calls = []
    backbone.network.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    assert torch.equal(backbone(images), expected)
    with torch.no_grad():
        backbone.train()(images)
    assert calls == [6, 6]
    backbone(images)
    assert calls == [6, 6, 2, 2, 2]


def test_feature_maps_come_in_parts_too() -> None:
    backbone = backbones.create("resnet_tiny", "conventional", measure=False).train()
    images = backbone.prepared(torch.rand(6, 3, 32, 32))
    backbone.part = 3
    found = backbone.feature_maps(images)
    assert found.shape[0] == 6 and found.requires_grad


def test_what_is_kept_grows_with_the_image_and_changes_nothing() -> None:
    backbone = backbones.create("resnet_tiny", measure=False).eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    small, large = kept_per_image(backbone, 32), kept_per_image(backbone, 64)
    assert 3.5 <= large / small <= 4.5
    assert torch.equal(torch.get_rng_state(), state) and not backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_what_is_kept_against_a_count_by_hand() -> None:
    """A linear chain of convolutions keeps the input of each."""
    body = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 7, 3, padding=1), nn.Conv2d(7, 2, 1))
    backbone = backbones.Backbone(body, backbones.registry.Body(body, 2), "conventional")
    assert kept_per_image(backbone, 16) == 4 * 16 * 16 * (3 + 5 + 7)


def test_small_steps_stay_whole() -> None:
    made, listener = training("resnet_tiny"), Listening()
    bound_memory(made, 64, listener)
    assert made.classifier.backbone.part is None and not listener.said + listener.warned


def test_a_large_step_is_split_into_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, listener = training("resnet_tiny"), Listening()
    each = memory.WORKING * kept_per_image(made.classifier.backbone, 32)
    monkeypatch.setattr(memory, "ACTIVATIONS", 10.5 * each)
    monkeypatch.setattr(memory, "available", lambda: 100 * GB)
    bound_memory(made, 64, listener)
    assert made.classifier.backbone.part == 10
    assert listener.said == ["To save memory, the 64 images of a step are embedded in 7 parts."] and not listener.warned


def test_too_little_memory_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    made, listener = training("resnet_tiny"), Listening()
    monkeypatch.setattr(memory, "available", lambda: 0.2 * GB)
    bound_memory(made, 64, listener)
    assert made.classifier.backbone.part == FEWEST and not listener.said
    (sentence,) = listener.warned
    assert "GB of memory" in sentence and "0.2 GB are free" in sentence and "--size" in sentence


def test_no_word_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made, listener = training("resnet_tiny"), Listening()
    monkeypatch.setattr(memory, "available", lambda: None)
    bound_memory(made, 64, listener)
    assert not listener.warned


@pytest.mark.parametrize(("images", "warned"), [(100, False), (1000, True)])
def test_features_that_do_not_fit_are_said_beforehand(
    monkeypatch: pytest.MonkeyPatch, images: int, warned: bool
) -> None:
    listener = Listening()
    monkeypatch.setattr(memory, "available", lambda: memory.PROCESSES + 0.5 * GB)
    check_features(images, 10**6, listener)
    assert ["2.5 GB of memory" in sentence and "--no-local-units" in sentence for sentence in listener.warned] == (
        [True] if warned else []
    )


def test_memory_is_known_on_linux() -> None:
    free = available()
    if Path("/proc/meminfo").is_file():
        assert free is not None and free > 0
