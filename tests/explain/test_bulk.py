"""Many explanations at once: the same as one at a time, at the price of one forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from sic.data.dataset import Task
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.errors import SicError
from sic.explain import contributions, images_at_once, in_chunks, support_contributions
from sic.explain.matches import AT_ONCE
from sic.methods import Contributions
from sic.model import Model
from sic.supports import Support
from tests.models import norms_take_the_next_batch

SIZE, LATENT = 24, 4
NAMES = ["wren", "heron", "kite"]
LABELS = [0, 0, 1, 2, 2, 2]


def photos(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(number, 3, 6, 6, generator=generator)
    return (F.interpolate(coarse, (SIZE, SIZE), mode="bilinear") * 255).round() / 255


def build_model(backbone: str, task: Task = "single", method: str = "sic", temperature: float = 0.02) -> Model:
    torch.manual_seed(0)
    config = Config(backbone, NAMES, task, Preprocessing(SIZE, SIZE), 2, temperature, latent=LATENT, method=method)
    classifier = build(config, len(LABELS))
    norms_take_the_next_batch(classifier)
    supports = []
    with torch.no_grad():
        classifier.train()(photos(8))
        classifier.eval()
        if method == "sic":
            classifier.set_supports(classifier.encoder(photos(6)), torch.tensor(LABELS))
            pixels = (photos(6) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
            supports = [Support(label, f"{i}.png", pixels[i]) for i, label in enumerate(LABELS)]
    return Model(classifier, config, supports)


@pytest.fixture(scope="module", params=["resnet_tiny", "vit_small"])
def model(request: pytest.FixtureRequest) -> Model:
    return build_model(request.param)


@contextmanager
def counted(model: Model) -> Iterator[dict[str, list[int]]]:
    """The batch sizes of forward and backward passes through the whole network."""
    passes: dict[str, list[int]] = {"forward": [], "backward": []}
    first = next(m for m in model.classifier.modules() if isinstance(m, nn.Conv2d))

    def forward(_: nn.Module, __: object, output: Tensor) -> None:
        passes["forward"].append(len(output))
        if output.requires_grad:
            output.register_hook(lambda gradient: passes["backward"].append(len(gradient)))

    handle = first.register_forward_hook(forward)
    try:
        yield passes
    finally:
        handle.remove()


def close(found: Contributions, expected: Contributions) -> None:
    for part in ("maps", "value", "constant"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [["kite"], ["kite", "wren"]])
def test_one_forward_pass_and_one_backward_pass_per_class(model: Model, classes: list[str]) -> None:
    images_at_once(model.classifier, photos(1)[0])  # looks at one image to know how many fit
    with counted(model) as passes:
        found = list(model.contributions(photos(7), classes))
    assert passes == {"forward": [7], "backward": [7] * len(classes)}
    assert len(found) == 7 and found[0][1].maps.shape == (len(classes), SIZE, SIZE)


def test_one_image_is_looked_at_once(model: Model) -> None:
    model.to("cpu")  # forgets what it knows of its supports
    with counted(model) as passes:
        explanation = model.explain(photos(7)[6], ["kite"])
    cases = len(explanation.classes[0].cases)
    own = [cases]  # the supports of the class, on their own images, after one of them was measured
    assert passes["forward"][:1] == [1] and passes["forward"][-1:] == own
    assert passes["backward"].count(1) == 1 + cases and passes["backward"].count(cases) == 1
    with counted(model) as passes:
        model.explain(photos(7)[6], ["kite"])
    assert passes == {"forward": [1], "backward": [1] * (1 + cases)}


def test_more_targets_than_latents_cost_no_more_than_the_latents(model: Model) -> None:
    classifier, images = model.sic, photos(3)
    targets = torch.arange(3).repeat(2).expand(3, 6)
    with counted(model) as passes:
        found = classifier.explain(images, targets)
    assert passes == {"forward": [3], "backward": [3] * LATENT}
    for k in range(6):
        alone = classifier.explain(images, targets[:, k])
        close(found.at((slice(None), k)), alone)
        torch.testing.assert_close(found.weights[:, k], alone.weights, rtol=1e-4, atol=1e-5 * alone.weights.abs().max())
    assert found.residual.abs().max() < 1e-5 * found.value.abs().max()


@pytest.mark.parametrize("task", ["single", "multi"])
def test_many_are_the_same_as_one_at_a_time(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("resnet_tiny", task)
    images = [*photos(7), torch.zeros(3, SIZE, SIZE)]  # nothing is like the last one
    if task == "multi":  # a temperature at which half of all answers are yes
        with torch.no_grad():
            evidence = (model.classifier(photos(7)) - model.sic.bias) * model.sic.temperature
        model.sic.temperature = 1.05 * evidence.median().item() / -model.sic.bias
    alone = [model.explain(image) for image in images]
    if task == "multi":
        assert len({len(one.classes) for one in alone}) > 1, "the images should have different numbers of labels"
    for number in (3, 8):
        monkeypatch.setattr(contributions, "ON_CPU", number)
        for found, expected in zip(model.explain_many(images), alone, strict=True):
            assert [c.name for c in found.classes] == [c.name for c in expected.classes]
            assert (found.labels, found.nearest) == (expected.labels, expected.nearest)
            assert found.similar_case == expected.similar_case
            assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-5)
            for part, other in zip(found.classes, expected.classes, strict=True):
                close(part.contributions, other.contributions)
                assert part.contributions.residual.abs() < 1e-4
                assert [c.index for c in part.cases] == [c.index for c in other.cases]
                assert all(c.own is not None and c.evidence_map is None for c in part.cases)
        for (names, maps), expected in zip(model.contributions(images), alone, strict=True):
            assert names == [c.name for c in expected.classes]
            for k, part in enumerate(expected.classes):
                close(maps.at(k), part.contributions)


def test_nothing_is_taken_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributions, "ON_CPU", 2)
    model, taken = build_model("resnet_tiny"), 0

    def endless() -> Iterator[Tensor]:
        nonlocal taken
        while True:
            taken += 1
            yield photos(1)[0]

    explanations = model.explain_many(endless())
    next(explanations)
    assert taken == 3  # two at once, and one to see that there are more
    next(explanations)
    next(explanations)
    assert taken == 5


def test_support_contributions_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("resnet_tiny")
    monkeypatch.setattr(contributions, "ON_CPU", 1)
    computed: list[int] = []
    own = support_contributions

    def counting(classifier: object, images: Tensor, supports: list[int]) -> Contributions:
        computed.extend(supports)
        return own(model.sic, images, supports)

    monkeypatch.setattr("sic.explain.explanation.support_contributions", counting)
    list(model.explain_many([photos(1)[0]] * 3, ["kite", "heron"]))
    assert computed == [2, 3, 4, 5], "once for all images"
    monkeypatch.setattr("sic.model.KEPT", 0)
    model.to("cpu")  # forgets what it knows of its supports
    list(model.explain_many([photos(1)[0]] * 2, ["kite", "heron"]))
    assert computed == [2, 3, 4, 5] * 3


def test_memory_decides_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, view = build_model("resnet_tiny").classifier, photos(1)[0]
    monkeypatch.setattr(contributions, "ON_CPU", 10**6)
    plenty = images_at_once(classifier, view)
    monkeypatch.setattr(contributions, "CPU_MEMORY", contributions.CPU_MEMORY // 4)
    assert images_at_once(classifier, view) == pytest.approx(plenty / 4, abs=1)
    assert images_at_once(classifier, view, maps=1000) < plenty / 8
    monkeypatch.setattr(contributions, "CPU_MEMORY", 0)
    assert images_at_once(classifier, view) == 1
    # A convolution keeps its input and its scale at least: half the resolution, 16 channels.
    assert contributions._known[classifier][tuple(view.shape)] > 2 * 16 * (SIZE // 2) ** 2 * 4


def test_views_of_different_sizes_are_not_mixed(model: Model) -> None:
    small, large = torch.zeros(3, 8, 8), torch.zeros(3, 16, 16)
    batches = list(in_chunks(model.classifier, [small, small, large, small]))
    assert [tuple(batch.shape) for batch in batches] == [(2, 3, 8, 8), (1, 3, 16, 16), (1, 3, 8, 8)]
    assert list(in_chunks(model.classifier, [])) == []


def test_every_image_may_have_its_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributions, "ON_CPU", 2)
    model, images = build_model("resnet_tiny"), photos(3)
    wanted: list[list[str]] = [["kite", "wren"], ["heron"], []]  # none: those of the answer
    for image, classes, found in zip(images, wanted, model.explain_many(images, wanted), strict=True):
        alone = model.explain(image, classes)
        assert [each.name for each in found.classes] == [each.name for each in alone.classes]
        for part, other in zip(found.classes, alone.classes, strict=True):
            close(part.contributions, other.contributions)
    with pytest.raises(SicError, match="no class 'eagle'"):
        next(model.explain_many(images, [["kite"], ["eagle"], ["kite"]]))
    with pytest.raises(SicError, match="more images than the 1 lists"):
        list(model.explain_many(images, [["kite"]]))
    assert model.predict_many([]) == list(model.explain_many([])) == []


def test_matches_of_many_images_look_once_at_every_case() -> None:
    model, images = build_model("resnet_tiny"), photos(AT_ONCE + 3)
    model.support_contributions(range(len(LABELS)))
    with counted(model) as passes:
        found = list(model.explain_many(images, [["wren"]] * 2 + [["kite"]] * (AT_ONCE + 1), matches=True))
    # Every image once, the two cases of a wren once, the three of a kite twice: it is in too many images.
    assert sum(passes["forward"]) == len(images) + 2 + 2 * 3, passes
    for image, one in zip(images, found, strict=True):
        alone = model.explain(image, [one.classes[0].name], matches=True)
        for case, other in zip(one.classes[0].cases, alone.classes[0].cases, strict=True):
            assert case.matches is not None and other.matches is not None
            expected = [part.evidence for part in other.matches.parts]
            assert [part.evidence for part in case.matches.parts] == pytest.approx(expected, abs=1e-4)


def test_matches_need_no_further_passes_for_the_maps_of_cases(model: Model) -> None:
    image = photos(7)[6]
    plain = model.explain(image, ["kite"])
    with counted(model) as passes:
        found = model.explain(image, ["kite"], matches=True)
    cases = len(found.classes[0].cases)
    assert passes["backward"].count(1) <= 1 + cases + (LATENT if model.config.backbone == "vit_small" else 0)
    for case, other in zip(found.classes[0].cases, plain.classes[0].cases, strict=True):
        assert case.evidence_map is not None and other.evidence_map is not None
        torch.testing.assert_close(case.evidence_map, other.evidence_map, rtol=1e-4, atol=1e-6)


def test_titles_are_those_of_the_files(model: Model, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.png" for name in "abc"]
    for number, file in enumerate(files):
        Image.fromarray(np.full((SIZE, SIZE, 3), 60 * number, np.uint8)).save(file)
    assert [e.title for e in model.explain_many(files)] == ["a.png", "b.png", "c.png"]


def test_unknown_classes_are_refused(model: Model) -> None:
    with pytest.raises(SicError, match="no class 'eagle'"):
        next(model.explain_many(photos(1), ["eagle"]))
    with pytest.raises(SicError, match="no class 'eagle'"):
        next(model.contributions(photos(1), ["eagle"]))


@pytest.mark.parametrize(("method", "backbone"), [("bcos", "resnet_tiny"), ("bagnet", "bagnet9")])
def test_other_methods_in_bulk(method: str, backbone: str) -> None:
    config = Config(backbone, NAMES, "single", Preprocessing(SIZE, SIZE), 2, 1.0, method=method)
    if method == "bagnet":
        config.form = "conventional"
    torch.manual_seed(0)
    model = Model(build(config, 0).eval(), config, [])
    found = list(model.explain_many(photos(3)))
    for explanation, image in zip(found, photos(3), strict=True):
        alone = model.explain(image)
        assert explanation.labels == alone.labels and not explanation.classes[0].cases
        close(explanation.classes[0].contributions, alone.classes[0].contributions)


def test_maps_of_supports_alone_need_no_weights(model: Model) -> None:
    whole = support_contributions(model.sic, photos(6), range(6))
    maps = support_contributions(model.sic, photos(6), range(6), weights=False)
    assert maps.weights.shape == (6, 0, SIZE, SIZE)
    torch.testing.assert_close(maps.maps, whole.maps)
