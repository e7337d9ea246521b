"""Distillation: its parts against slow references, a whole run on drawn birds, and what is refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import sic
from sic.backbones import create
from sic.backbones.distilled import Distilled, distilled_file, read_distilled
from sic.backbones.weights import Weights, loader
from sic.bcos import Halving, fade
from sic.data.images import Preprocessing
from sic.distill import Plan, distill
from sic.distill.examination import Examination
from sic.distill.images import Crops, decode, image_files
from sic.distill.step_sizes import relative_groups, relative_sizes
from sic.distill.student import Student, compare, create_student
from sic.distill.teacher import Lesson, Teacher, load_teacher, stage_maps
from sic.errors import SicError
from sic.methods.blackbox import GRAD_CAM


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(SicError) as caught:
        action()
    return str(caught.value)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of noise with blobs, in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(24):
        small = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        place = folder / ("a" if number % 2 else "b") / f"{number}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC).save(place)
    (folder / "b" / "broken.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conventional network with a classifier of three classes."""
    torch.manual_seed(0)
    network = create("resnet_tiny", "conventional").network
    state = {f"network.{name}": value for name, value in network.state_dict().items()}
    file = tmp_path_factory.mktemp("teacher") / "teacher.pth"
    torch.save({**state, "fc.weight": torch.randn(3, 64), "fc.bias": torch.randn(3)}, file)
    return file


PLAN = Plan(images=96, size=32, final_size=32, batch_size=8, steps_per_round=3, warm_up=2)


def run(photos: Path, weights: Path, out: Path, plan: Plan = PLAN, **options: object) -> object:
    return distill("resnet_tiny", photos, out, plan, weights=str(weights), workers=0, **options)  # type: ignore[arg-type]


def test_crops_show_the_same_part_at_any_size() -> None:
    torch.manual_seed(0)
    images = F.interpolate(torch.rand(16, 3, 4, 4) * 255, 96, mode="bicubic").clamp(0, 255).byte()
    crops = Crops.draw(images, np.random.default_rng(0))
    large, small = crops.at(64), crops.at(32)
    assert (F.avg_pool2d(large, 2) - small).abs().max() < 0.02
    whole = Crops(images, torch.eye(2, 3).expand(16, 2, 3)).at(96)
    assert torch.allclose(whole, images.float() / 255, atol=1e-5)


def test_mixup_blends_neighbours() -> None:
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    crops = Crops.draw(images, np.random.default_rng(0), mixup=0.5)
    plain = Crops(images, crops.transforms).at(8)
    assert crops.blended is not None
    for row, share in enumerate(crops.blended.tolist()):
        expected = (1 - share) * plain[row] + share * plain[row - 1]
        assert torch.allclose(crops.at(8)[row], expected, atol=1e-6)
    many = Crops.draw(torch.zeros(4000, 3, 2, 2, dtype=torch.uint8), np.random.default_rng(0), mixup=0.25).blended
    assert many is not None
    assert 0.22 < float((many > 0).float().mean()) < 0.28
    assert float(many.max()) <= 0.5


def test_mixup_ends_before_the_training_does(photos: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last quarter shows crops as they are; without the option all crops are."""
    shares: list[float] = []
    draw = Crops.draw

    def spied(images: Tensor, generator: np.random.Generator, mixup: float = 0.0) -> Crops:
        shares.append(mixup)
        return draw(images, generator, mixup)

    monkeypatch.setattr(Crops, "draw", spied)
    for mixup in (0.0, 0.5):
        shares.clear()
        run(photos, weights, photos.parent / f"mixup-{mixup}.safetensors", replace(PLAN, mixup=mixup))
        steps = shares[1 : 1 + PLAN.images // PLAN.batch_size]  # the first batch calibrates, the last ones, too
        assert steps == [mixup] * 9 + [0.0] * 3


def test_crops_stay_inside_and_half_are_mirrored() -> None:
    transforms = Crops.draw(torch.zeros(2000, 3, 2, 2, dtype=torch.uint8), np.random.default_rng(0)).transforms
    reach = transforms[:, :, :2].abs().sum(2) + transforms[:, :, 2].abs()
    assert reach.max() <= 1 + 1e-6
    assert 0.45 < (transforms[:, 0, 0] < 0).float().mean() < 0.55


def test_losses_are_zero_for_the_same_and_match_a_slow_reference() -> None:
    torch.manual_seed(0)
    sizes = (4, 6)
    own, right = (
        Lesson(torch.rand(4, 5, 3, 3), torch.randn(4, 7), (torch.rand(4, 2, size, size), torch.rand(4, 3, 2, 2)))
        for size in sizes
    )
    same = compare(own, own)
    assert float(same.total - same.evidence) == pytest.approx(0, abs=1e-5)
    losses = compare(own, right)
    assert own.logits is not None and right.logits is not None
    divergence, evidence, places, features = 0.0, 0.0, 0.0, 0.0
    for image in range(4):
        p, q = (torch.softmax(each.logits[image].double() / 2, 0) for each in (right, own))  # type: ignore[index]
        divergence += float((p * (p / q).log()).sum()) * 4 / 4
        p, q = torch.softmax(right.logits[image].double(), 0), torch.sigmoid(own.logits[image].double())
        evidence += float((p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()) / 4
        places += float(1 - _cosine(own.maps[image].flatten(), right.maps[image].flatten())) / 4
        features += float(1 - _cosine(own.maps[image].mean((1, 2)), right.maps[image].mean((1, 2)))) / 4
    stages = []
    for mine, theirs in zip(own.stages, right.stages, strict=True):
        theirs = F.adaptive_avg_pool2d(theirs, mine.shape[-1])
        pairs = zip(mine.movedim(1, -1).flatten(0, 2), theirs.movedim(1, -1).flatten(0, 2), strict=True)
        stages.append(np.mean([float(1 - _cosine(a, b)) for a, b in pairs]))
    found = [float(getattr(losses, each)) for each in ("answers", "evidence", "places", "features", "stages")]
    assert found == pytest.approx([divergence, evidence, places, features, np.mean(stages)], abs=1e-5)


def test_evidence_that_all_classes_share_is_a_loss() -> None:
    maps, wanted = torch.rand(2, 5, 3, 3), torch.tensor([[4.0, 0, 0], [0, 0, 4.0]])
    right, probabilities = Lesson(maps, wanted), wanted.softmax(1)
    own = Lesson(maps, probabilities.logit())
    assert float(compare(own, right).evidence) == pytest.approx(0, abs=1e-6)
    shared = compare(Lesson(maps, probabilities.logit() + 3), right)
    assert float(shared.evidence) > 0.3
    assert float(shared.answers) == pytest.approx(float(compare(own, right).answers), abs=1e-5)


def test_stages_of_another_width_are_not_compared() -> None:
    maps = torch.rand(2, 5, 3, 3)
    narrow, wide = (Lesson(maps, None, (torch.rand(2, width, 4, 4),)) for width in (2, 3))
    assert float(compare(narrow, wide).total) == pytest.approx(0, abs=1e-5)


def test_stage_maps_end_in_the_feature_maps() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 3, 32, 32)
    for name, number in (("resnet18", 4), ("resnet_tiny", 1)):
        backbone = create(name).eval()
        found = stage_maps(backbone, images)
        assert len(found) == number
        assert torch.equal(found[-1], backbone.feature_maps(backbone.prepared(images)))


def test_a_step_is_relative_to_the_size_of_a_layer() -> None:
    network = nn.ModuleList([nn.Linear(50, 50, bias=False), nn.Linear(50, 50, bias=False), nn.Linear(5, 5, bias=False)])
    with torch.no_grad():
        for layer, size in zip(network, (1.0, 0.01, 0.0), strict=True):
            layer.weight.normal_().mul_(size)  # type: ignore[operator, union-attr]
    groups = relative_groups(network, relative_sizes(network))
    assert [group["size"] for group in groups] == [2.0**-8, 2.0**-7, 1.0]
    assert sum(len(group["params"]) for group in groups) == 3


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.norm() * b.norm())


def test_the_learning_rate_rises_and_falls_and_the_size_grows() -> None:
    plan = Plan(images=1, lr=1.0, warm_up=10, size=128, final_size=192, final_share=0.25)
    assert plan.learning_rate(0.0, 0) == pytest.approx(0.1)
    assert plan.learning_rate(0.5, 1000) == pytest.approx(0.5)
    assert plan.learning_rate(1.0, 1000) == pytest.approx(0, abs=1e-9)
    assert plan.sizes(0.5) == (128, 160)
    assert plan.sizes(0.8) == (192, 224)


def test_a_student_has_no_bias_and_starts_from_its_teacher(weights: Path) -> None:
    teacher = load_teacher("resnet_tiny", loader(str(weights), "resnet_tiny", "conventional"))
    student = create_student("resnet_tiny", teacher, alike=True)
    assert not [name for name, _ in student.named_parameters() if name.endswith("bias")]
    theirs = teacher.backbone.network.state_dict()
    kernels = [name for name in theirs if theirs[name].dim() == 4][1:]  # the first one takes six channels
    assert kernels and all(torch.equal(student.backbone.network.state_dict()[name], theirs[name]) for name in kernels)
    images = torch.rand(4, 3, 32, 32)
    right = teacher(images).logits
    assert right is not None
    student.calibrate(images, right)
    own = student(images).logits
    assert own is not None and float(own.detach().std()) == pytest.approx(float(right.std()), rel=0.2)


def test_a_teacher_answers_as_the_whole_network_does() -> None:
    """ConvNeXt normalises what it has pooled, before its linear layer; weights may be those of a parallel network."""
    torch.manual_seed(0)
    network = torchvision.models.convnext_tiny(num_classes=4).eval()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    images = torch.rand(2, 3, 64, 64)
    state = {f"module.{name}": value for name, value in network.state_dict().items()}
    teacher = load_teacher("convnext_tiny", Weights(state, "file"))
    with torch.no_grad():
        right = network((images - teacher.backbone.mean) / teacher.backbone.std)
        own = teacher(images).logits
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(teacher.classifier(GRAD_CAM)(images), right, rtol=1e-4, atol=1e-4)


def test_unreadable_images_are_left_out(photos: Path) -> None:
    files = image_files(photos)
    pixels, places = decode(files, Preprocessing(32, 32), 0)
    assert len(files) == 25 and len(pixels) == len(places) == 24
    assert all(files[place].name != "broken.png" for place in places)


@pytest.mark.slow
def test_a_distillation_learns_and_its_file_gives_the_student_back(photos: Path, weights: Path, tmp_path: Path) -> None:
    test = tmp_path / "test"
    for label in "abc":
        (test / label).mkdir(parents=True)
        (test / label / "x.png").write_bytes((photos / "a" / "1.png").read_bytes())
    plan = Plan(images=2400, size=32, final_size=32, batch_size=16, steps_per_round=25, warm_up=5, lr=3e-3)
    out = tmp_path / "student.safetensors"
    done = distill("resnet_tiny", photos, out, plan, weights=str(weights), test=test, workers=0)
    assert done.images == 2400 and len(done.curve) == 6
    first, last = (sum(done.curve[place][name] for name in ("answers", "places", "features")) for place in (0, -1))
    assert last < 0.6 * first
    assert done.top1 is not None and set(done.top1) == {"student", "teacher"}
    assert not out.with_name("student.safetensors.run").exists()
    content = read_distilled(out)
    assert content.backbone == "resnet_tiny" and content.origin["seen"] == 2400
    backbone = create("resnet_tiny", "bcosified", load=loader(str(out), "resnet_tiny", "bcosified"))
    assert torch.isfinite(backbone.eval()(torch.rand(2, 3, 32, 32))).all()


@pytest.mark.slow
def test_a_distillation_that_goes_on_from_another_keeps_its_terms(photos: Path, weights: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.safetensors" for name in ("first", "second", "third"))
    run(photos, weights, first)
    content = read_distilled(first)
    own, content.origin["terms"] = content.origin["terms"], "For research only."
    content.write(first)
    run(photos, weights, second, start=first)
    run(photos, weights, third, start=second)
    for times, file in ((2, second), (3, third)):  # each sentence is said once
        origin = read_distilled(file).origin
        assert origin["seen"] == times * 96
        assert origin["terms"] == f"{own} For research only."


def interrupt(monkeypatch: pytest.MonkeyPatch, rounds: int) -> Callable[[], None]:
    """Checkpoints after every round, and Ctrl-C after so many; returns what lets later distillations finish."""
    import sic.distill.fit as module

    monkeypatch.setattr(module, "ROUNDS_PER_CHECKPOINT", 1)
    whole = module.Distillation.on_train_epoch_end
    calls: list[int] = []

    def interrupted(self: module.Distillation) -> None:
        whole(self)
        calls.append(1)
        if len(calls) == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.Distillation, "on_train_epoch_end", interrupted)
    return lambda: monkeypatch.setattr(module.Distillation, "on_train_epoch_end", whole)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [PLAN.lr, 0.5])
def test_an_interrupted_distillation_resumes_to_the_same_weights(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lr: float
) -> None:
    """Also where layers have grown so much that they would be in other groups of the optimizer."""
    plan = replace(PLAN, lr=lr)
    run(photos, weights, tmp_path / "whole.safetensors", plan)
    finish = interrupt(monkeypatch, 3)
    out = tmp_path / "parts.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(photos, weights, out, plan)
    finish()
    assert "--resume" in refusal(lambda: run(photos, weights, out, plan))
    run(photos, weights, out, plan, resume=True)
    whole, parts = read_distilled(tmp_path / "whole.safetensors"), read_distilled(out)
    assert whole.origin["seen"] == parts.origin["seen"] == 96
    for name, value in whole.network.items():
        assert torch.equal(value, parts.network[name]), name


def test_a_resumed_distillation_keeps_its_plan(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    finish = interrupt(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        run(photos, weights, out)
    finish()
    other = replace(PLAN, seed=3, batch_size=4, images=72)
    said = refusal(lambda: run(photos, weights, out, other, resume=True))
    assert "another batch size (8, now 4), seed (0, now 3); give the same options" in said
    assert str(tmp_path / "out.safetensors.run") in said
    assert run(photos, weights, out, replace(PLAN, images=72), resume=True).images == 72  # type: ignore[attr-defined]


@pytest.mark.parametrize(("bits", "error"), [(16, 1e-3), (8, 1e-2)])
def test_stored_weights_come_back(bits: int, error: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = {"conv.weight": torch.randn(8, 4, 3, 3), "norm.weight": torch.rand(8)}
    file = tmp_path / "file.safetensors"
    Distilled("resnet_tiny", network, torch.randn(5, 8), 0.25, {"teacher": "x"}).write(file, bits=bits)
    assert distilled_file(file) == file
    back = read_distilled(file)
    assert back.temperature == 0.25 and back.origin == {"teacher": "x"} and back.head is not None
    for name, value in network.items():
        assert (back.network[name] - value).abs().max() <= error * value.abs().max(), name


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"conv.weight": torch.rand(2, 2)}, foreign)
    assert distilled_file(foreign) is None
    assert "not written by `sic distill`" in refusal(lambda: read_distilled(foreign))
    good = tmp_path / "good.safetensors"
    Distilled("resnet_tiny", {"conv.weight": torch.rand(4, 4)}).write(good)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(good.read_bytes()[:-20])
    assert "damaged" in refusal(lambda: read_distilled(cut))
    assert "is damaged or was not written by `sic distill`" in refusal(lambda: sic.load(cut))
    bad = tmp_path / "bad.safetensors"
    Distilled("resnet_tiny", {"conv.weight": torch.full((4, 4), torch.nan)}).write(bad)
    assert "not finite" in refusal(lambda: read_distilled(bad))
    assert "does not fit" in refusal(
        lambda: create("resnet_tiny", "bcosified", load=loader(str(good), "resnet_tiny", "bcosified"))
    )
    assert "cannot be read" in refusal(lambda: read_distilled(tmp_path / "none.safetensors"))


def test_bad_input_gets_one_sentence(photos: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    (tmp_path / "empty").mkdir()
    assert "There are no images in" in refusal(lambda: run(tmp_path / "empty", weights, out))
    assert "is not a folder" in refusal(lambda: run(tmp_path / "nowhere", weights, out))
    assert "There is nothing to resume" in refusal(lambda: run(photos, weights, out, resume=True))
    assert "There is no backbone called 'resnet_huge'" in refusal(
        lambda: distill("resnet_huge", photos, out, PLAN, weights=str(weights), workers=0)
    )
    assert "conventional network only" in refusal(
        lambda: distill("resnet_tiny", photos, out, PLAN, weights=str(weights), student="bagnet33", workers=0)
    )
    (tmp_path / "test" / "one").mkdir(parents=True)
    assert "a folder for each of the teacher's 3 classes" in refusal(lambda: Examination.read(tmp_path / "test", 3, 0))
    assert not out.exists()


def test_smooth_networks_weigh_all_pixels_alike() -> None:
    """With constant weights, a strided network draws a grid over the gradient; one that averages does not."""
    strided = nn.Conv2d(1, 1, 3, 2, 1, bias=False)
    nn.init.ones_(strided.weight)

    def spread(layer: nn.Module) -> float:
        x = torch.zeros(1, 1, 32, 32, requires_grad=True)
        (gradient,) = torch.autograd.grad(layer(x).sum(), x)
        inner = gradient[..., 8:24, 8:24]
        return float(inner.max() - inner.min())

    smooth = nn.Sequential(Halving(), nn.Conv2d(1, 1, 3, 1, 1, bias=False))
    nn.init.ones_(smooth[1].weight)
    assert spread(strided) > 0.5
    assert spread(smooth) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 75])
def test_a_student_that_fades_starts_as_its_teacher(size: int) -> None:
    """At progress 0 the smooth ResNet50 computes exactly what the strided one does, biases and all."""
    torch.manual_seed(0)
    teacher = Teacher(create("resnet50_v1", "conventional"), None)
    for layer in teacher.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.bias, std=0.1)
            layer.running_mean.normal_(std=0.1)
    student = create_student("resnet50_smooth", teacher, alike=True, fading=True).eval()
    images = torch.rand(2, 3, size, size)
    fade(student.backbone, 0.0)
    own, right = student(images).maps, teacher(images).maps
    assert (own - right).abs().max() < 1e-3 * right.abs().max()
    fade(student.backbone, torch.tensor(0.5))
    assert (student(images).maps - right).abs().max() > 0.1 * right.abs().max()


def test_a_fading_distillation_ends_without_biases(photos: Path, weights: Path, tmp_path: Path) -> None:
    plan = Plan(images=96, size=32, final_size=32, batch_size=8, steps_per_round=3, warm_up=2, fade=0.5)
    out = tmp_path / "out.safetensors"
    run(photos, weights, out, plan)
    content = read_distilled(out)
    assert not [name for name in content.network if name.endswith(("bias", "running_mean"))]
    assert "starts from the teacher" in refusal(lambda: run(photos, weights, out, plan, student="resnet_small"))


@pytest.mark.parametrize("name", ["resnet50_v1", "resnet50_smooth"])
def test_relatives_of_resnet50_take_its_weights(name: str) -> None:
    state = dict(torchvision.models.resnet50().state_dict())
    backbone = create(name, "conventional", load=Weights(state, "resnet50"))
    assert backbone.eval()(torch.rand(1, 3, 64, 64)).shape == (1, 2048)


def test_the_curve_is_written_as_json(photos: Path, weights: Path, tmp_path: Path) -> None:
    done = run(photos, weights, tmp_path / "out.safetensors")
    assert json.loads(json.dumps(done.curve))[0]["images"] == 24  # type: ignore[attr-defined]


def test_a_shallower_student_takes_over_the_layers_that_it_shares(weights: Path) -> None:
    deep, shallow = (create(name, "bcosified") for name in ("resnet50_smooth", "resnet26_smooth"))
    student = Student(shallow, load_teacher("resnet_tiny", loader(str(weights), "resnet_tiny", "conventional")))
    start_from = sys.modules["sic.distill.distill"]._start_from
    start_from(student, Distilled("resnet50_smooth", deep.network.state_dict()), "resnet26_smooth", "deep.safetensors")
    lent = deep.network.state_dict()
    assert all(torch.equal(value, lent[name]) for name, value in shallow.network.state_dict().items())
    said = refusal(lambda: start_from(student, Distilled("resnet_tiny", {}), "resnet26_smooth", "tiny.safetensors"))
    assert said == "tiny.safetensors holds a resnet_tiny, without the layers of resnet26_smooth; leave out --start."
