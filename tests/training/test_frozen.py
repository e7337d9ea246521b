"""The fit on a frozen network: which weights change, where its units start, and what it reaches on easy data."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sic
from sic.backbones import create
from sic.backbones.distilled import Distilled, read_distilled
from sic.bcos import BcosLinear
from sic.data import open as open_data
from sic.errors import SicError
from sic.methods import SIC
from sic.model import Model
from sic.settings import RECIPES, RecipeName
from sic.training.base import Validity
from sic.training.batches import Batch
from sic.training.choose import choose
from sic.training.frozen import STEPS, TAUGHT_RATE, fit_features, separation
from sic.training.history import Silent
from sic.training.memory import GB
from sic.training.penalties import misplaced_evidence, random_grids
from sic.training.sic import SICTraining
from sic.training.start import taught_directions
from tests.listening import Listening
from tests.models import small_distilled, small_settings

COLOURS = {"blue": (40, 60, 220), "green": (40, 200, 60), "red": (220, 50, 40)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as `sic distill` writes it, of a small network with random weights."""
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    backbone.train()(torch.rand(16, 3, 32, 32))  # the norms' statistics
    file = tmp_path_factory.mktemp("weights") / "small.safetensors"
    Distilled("resnet_tiny", backbone.network.state_dict()).write(file)
    return file


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        for number in range(14):
            noisy = np.clip(np.asarray(colour) + rng.normal(0, 40, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def frozen(photos: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A fit on the frozen network, with all other settings left to `sic.fit`."""
    return sic.fit(photos, tmp_path_factory.mktemp("frozen") / "model", weights=str(weights), workers=0)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps on the frozen network, for what does not depend on their number."""
    monkeypatch.setattr("sic.training.frozen.STEPS", 100)


def test_a_frozen_network_learns_colours_and_stays_as_it_is(photos: Path, weights: Path, frozen: Model) -> None:
    model = frozen
    assert model.folder is not None
    assert model.config.figures["validation"]["accuracy"] == 1
    before = read_distilled(weights).network
    after = model.classifier.backbone.network.state_dict()
    assert before.keys() <= after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    run = json.loads((model.folder / "run.json").read_text())
    assert run["settings"]["recipe"] == "frozen" and run["settings"]["form"] == "bcosified"
    assert model.config.temperature == model.classifier.temperature  # type: ignore[attr-defined]
    latents = model.classifier.support_vectors  # type: ignore[attr-defined]
    assert (latents > 0).any(dim=0).float().mean() > 0.3
    explanation = model.explain(photos / "red" / "0.png")
    assert abs(explanation.residual) < 1e-3


def test_the_latents_of_cases_are_exact(frozen: Model) -> None:
    """Although features of training images are kept in 16 bits."""
    images = torch.from_numpy(np.stack([support.image for support in frozen.supports if support.image is not None]))
    with torch.no_grad():
        latents = frozen.sic.encoder(images.permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(frozen.sic.support_vectors, latents)


@pytest.mark.usefixtures("briefly")
def test_units_are_local_unless_the_user_or_their_memory_objects(
    photos: Path, weights: Path, frozen: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted(name: str, **said: bool) -> bool:
        model = sic.fit(photos, tmp_path / name, weights=str(weights), workers=0, **said)
        assert sic.load(tmp_path / name).sic.encoder.local == model.sic.encoder.local
        return model.sic.encoder.local

    assert frozen.sic.encoder.local
    assert not fitted("pooled", local_units=False)
    monkeypatch.setattr(sys.modules["sic.training.choose"], "MOST_MAPS", 1)
    assert not fitted("large") and fitted("asked", local_units=True)


@pytest.mark.usefixtures("briefly")
def test_the_same_seed_gives_the_same_model(photos: Path, weights: Path, tmp_path: Path) -> None:
    first, second = (sic.fit(photos, tmp_path / name, weights=str(weights), workers=0) for name in ("one", "again"))
    assert torch.equal(first.classifier.support_vectors, second.classifier.support_vectors)  # type: ignore[attr-defined]


def test_evidence_for_the_own_class_starts_at_a_useful_size(photos: Path, frozen: Model) -> None:
    prediction = frozen.predict(photos / "green" / "1.png")
    own = prediction.probabilities["green"]
    assert 0.5 < own < 1 and all(value <= own for value in prediction.probabilities.values())


@pytest.mark.slow
def test_the_penalty_moves_evidence_to_images_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that share most of their features, and features of their own."""
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    labels = torch.arange(120) // 30
    own = torch.zeros(4, backbone.features).scatter_(1, torch.arange(8).view(4, 2), 1.0)
    features = torch.rand(backbone.features) + own[labels] + 0.6 * torch.rand(120, backbone.features)
    members = [(labels == label).nonzero()[:, 0].numpy() for label in range(4)]
    rows, targets = random_grids(members, np.random.default_rng(1)), torch.eye(4)[labels]

    def fitted(weight: float) -> tuple[float, float]:
        """The share of misplaced evidence, and the accuracy."""
        monkeypatch.setitem(RECIPES, "frozen", replace(RECIPES["frozen"], misplaced=weight))
        chosen = small_settings(form="bcosified", recipe="frozen", lr=1e-3, batch_size=64)
        classifier = SIC(backbone, 4, 12, latent=32)
        candidates = {label: rows.tolist() for label, rows in enumerate(members)}
        module = SICTraining(classifier, chosen, candidates, False)
        fit_features(module, features, targets, candidates, chosen, Silent())
        with torch.no_grad():
            answers = classifier.logits(classifier.evidence(classifier.encoder.project(features))).argmax(dim=1)
            supports = classifier.support_vectors, classifier.support_classes
            found = misplaced_evidence(classifier, features[rows], targets[rows], *supports)
        return float(found), float((answers == labels).float().mean())

    (without, _), (with_penalty, right) = fitted(0), fitted(0.1)
    assert right == 1 and with_penalty < without / 2


@pytest.mark.slow
def test_the_penalty_keeps_the_cases_of_a_class_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of three kinds of images each."""
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    labels, kinds = torch.arange(90) // 30, torch.arange(90) % 3
    middle, offset = 2 * torch.rand(3, 1, backbone.features), torch.rand(3, 3, backbone.features)
    features = (middle + offset)[labels, kinds] + 0.1 * torch.rand(90, backbone.features)
    candidates = {label: (labels == label).nonzero()[:, 0].tolist() for label in range(3)}

    def fitted(**penalty: float) -> tuple[float, float]:
        """The likeness of the cases of a class, and the accuracy."""
        monkeypatch.setitem(RECIPES, "frozen", replace(RECIPES["frozen"], **penalty))
        chosen = small_settings(form="bcosified", recipe="frozen", lr=1e-3, batch_size=64)
        classifier = SIC(backbone, 3, 9, latent=32)
        module = SICTraining(classifier, chosen, candidates, False)
        fit_features(module, features, torch.eye(3)[labels], candidates, chosen, Silent())
        vectors = torch.nn.functional.normalize(classifier.support_vectors, dim=1).view(3, 3, -1)
        with torch.no_grad():
            answers = classifier.logits(classifier.evidence(classifier.encoder.project(features))).argmax(dim=1)
        return float((vectors @ vectors.transpose(1, 2)).square().mean()), float((answers == labels).float().mean())

    (apart, right), (together, _) = fitted(), fitted(own_evidence=6.0, apart=0.0, misplaced=0.0)
    assert right == 1 and apart < together - 0.05


@pytest.mark.slow
def test_many_similar_classes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binary cross-entropy alone leaves most of their images without evidence."""
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    monkeypatch.setattr("sic.training.frozen.STEPS", 150)
    monkeypatch.setattr("sic.training.frozen.LONG", 150)

    def fitted(number: int, images: int, competing: float) -> tuple[float, float]:
        """The accuracy for so many classes, and the weight of competition in the end."""
        monkeypatch.setitem(RECIPES, "frozen", replace(RECIPES["frozen"], competing=competing))
        labels = torch.arange(number * images) // images
        features = 1 + 0.3 * torch.rand(number, backbone.features)[labels]
        features += 0.15 * torch.rand(number * images, backbone.features)
        candidates = {label: (labels == label).nonzero()[:, 0].tolist() for label in range(number)}
        chosen = small_settings(form="bcosified", recipe="frozen", lr=3e-3, batch_size=64)
        classifier = SIC(backbone, number, 3 * number, latent=32)
        module = SICTraining(classifier, chosen, candidates, False)
        fit_features(module, features, torch.eye(number)[labels], candidates, chosen, Silent())
        with torch.no_grad():
            answers = classifier.logits(classifier.evidence(classifier.encoder.project(features))).argmax(dim=1)
        return float((answers == labels).float().mean()), module.competing

    (alone, off), (with_competition, on) = fitted(120, 6, 0.0), fitted(120, 6, 1.0)
    assert off == 0 and on == 1 and with_competition > alone + 0.2
    assert fitted(3, 30, 1.0) == (1, 0)  # a few classes need no competition


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"recipe": "frozen", "backbone": "resnet_tiny"}, "--recipe frozen needs --method sic and --weights"),
        ({"recipe": "tuned", "method": "bcos"}, "--recipe tuned needs --method sic and --weights"),
        ({"weights": "FILE", "backbone": "resnet18"}, "leave out --backbone and --form"),
        ({"weights": "FILE", "method": "blackbox"}, "which --method blackbox cannot use"),
        ({"weights": "FILE", "epochs": 3}, "--epochs does not apply to --recipe frozen; leave it out, or add --fine-t"),
        ({"weights": "FILE", "padding": "replicate"}, "--padding does not apply to --recipe frozen; leave it out"),
        ({"weights": "FILE", "antialiased": True}, "--antialias does not apply to --recipe frozen; leave it out"),
        ({"weights": "FILE", "recipe": "tuned", "temperature": 3}, "--temperature does not apply to --recipe tuned"),
    ],
)
def test_what_does_not_go_together(
    said: dict[str, object], sentence: str, photos: Path, weights: Path, tmp_path: Path
) -> None:
    said = {name: str(weights) if value == "FILE" else value for name, value in said.items()}
    with pytest.raises(SicError, match=sentence):
        sic.fit(photos, tmp_path / "model", workers=0, **said)  # type: ignore[arg-type]


TUNED = {"recipe": "tuned", "epochs": 2, "augmentation": "none", "workers": 0}


def test_another_b_is_for_the_layers_after_a_distilled_network(photos: Path, weights: Path) -> None:
    data = open_data(photos)
    for said, b, backbone_b in (({}, 2, None), ({"b": 3.0}, 3, 2), ({"b": 3.0, "backbone_b": 1.5}, 3, 1.5)):
        settings, notes = choose(data, {"weights": str(weights), **said})
        assert (settings.b, settings.backbone_b) == (b, backbone_b)
        assert any("keeps its B = 2; --b 3" in note for note in notes) == (backbone_b == 2)


@pytest.mark.usefixtures("briefly")
def test_fine_tuning_starts_from_the_projection(photos: Path, weights: Path, tmp_path: Path) -> None:
    """A very small learning rate leaves projection and T of a frozen fit."""
    alone = sic.fit(photos, tmp_path / "frozen", weights=str(weights), workers=0)
    tuned = sic.fit(photos, tmp_path / "tuned", weights=str(weights), lr=1e-9, **TUNED)  # type: ignore[arg-type]
    assert tuned.config.temperature == alone.config.temperature
    for one, other in zip(alone.classifier.parameters(), tuned.classifier.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.usefixtures("briefly")
def test_fine_tuning_is_in_training_mode(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are split into parts and norms learn their statistics only then."""
    modes: list[bool] = []
    step = SICTraining.training_step

    def watched(module: SICTraining, batch: Batch, index: int) -> torch.Tensor:
        modes.append(module.classifier.encoder.backbone.training)
        return step(module, batch, index)

    monkeypatch.setattr(SICTraining, "training_step", watched)
    sic.fit(photos, tmp_path / "tuned", weights=str(weights), support_source="exact", **TUNED)  # type: ignore[arg-type]
    assert modes and all(modes)


@pytest.mark.usefixtures("briefly")
def test_memory_is_looked_at_before_anything_takes_long(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning says that there is too little of it before the fit of the projection; so does that fit."""
    monkeypatch.setattr("sic.training.memory.available", lambda: 0.1 * GB)

    class Impatient(Listening):
        def advance(self, task: str, done: int, total: int, note: str = "") -> None:
            if task == "projection":
                raise KeyboardInterrupt

    step, features = Impatient(), Impatient()
    for listener, said in ((step, TUNED), (features, {"workers": 0})):
        with pytest.raises(KeyboardInterrupt):
            sic.fit(photos, tmp_path / "model", weights=str(weights), reporter=listener, **said)  # type: ignore[arg-type]
        shutil.rmtree(tmp_path / "model")
    assert [sum("GB of memory" in words for words in each.warned) for each in (step, features)] == [2, 1]


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("worse", ["tuned", "frozen"])
def test_the_better_of_both_models_is_kept(
    worse: str, photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validities = {"tuned": Validity(0.9, 1.0, 6), "frozen": Validity(0.9, 1.0, 6)} | {worse: Validity(0.8, 1.0, 6)}
    measured = iter([validities["tuned"], validities["frozen"]])
    monkeypatch.setattr(sys.modules["sic.training.fit"], "validated", lambda *_: next(measured))
    before = read_distilled(weights).network
    model = sic.fit(photos, tmp_path / "model", weights=str(weights), lr=1e-2, **TUNED)  # type: ignore[arg-type]
    after = model.classifier.backbone.network.state_dict()
    same = all(torch.equal(after[name], value) for name, value in before.items())
    assert same == (worse == "tuned")
    assert (model.config.training["best_epoch"] == 0) == (worse == "tuned")
    assert abs(model.explain(photos / "red" / "0.png").residual) < 1e-3


@pytest.mark.usefixtures("briefly")
def test_fine_tuning_can_be_resumed(photos: Path, weights: Path, tmp_path: Path) -> None:
    whole = sic.fit(photos, tmp_path / "whole", weights=str(weights), **TUNED)  # type: ignore[arg-type]

    class Interrupted(Silent):
        def advance(self, task: str, done: int, total: int, note: str = "") -> None:
            if task == "training" and note.startswith("epoch 2"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sic.fit(photos, tmp_path / "half", weights=str(weights), reporter=Interrupted(), **TUNED)  # type: ignore[arg-type]
    resumed = sic.fit(photos, tmp_path / "half", resume=True, workers=0)
    for one, other in zip(whole.classifier.parameters(), resumed.classifier.parameters(), strict=True):
        assert torch.equal(one, other)


def test_separation_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    values, labels = torch.rand(30, 4, generator=generator), torch.arange(30) % 3
    values[:, 1] += labels  # the one that tells classes apart
    values[:, 3] = 2.0
    means = [[float(values[labels == label, k].mean()) for label in range(3)] for k in range(4)]
    wanted = [
        sum((mean - sum(found) / 3) ** 2 for mean in found) / 3 / max(float(values[:, k].var()), 1e-12)
        for k, found in enumerate(means)
    ]
    found = separation(values, torch.eye(3)[labels])
    assert found.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert int(found.argmax()) == 1 and found[3] == 0


@pytest.mark.parametrize("helpful", [True, False])
@pytest.mark.parametrize(("classes", "recipe"), [(4, "frozen"), (40, "frozen"), (40, "tuned")])
def test_units_start_as_classes_that_tell_the_images_apart(
    helpful: bool, classes: int, recipe: RecipeName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They learn at a tenth of the rate. Where classes compete for them, a frozen fit takes the fewest steps and
    sharpens evidence; other fits of as many images take more steps."""
    how: list[tuple[bool, int, float]] = []
    monkeypatch.setattr(
        "sic.training.frozen._optimise",
        lambda module, *others: how.append((module.sharpened and module.competing > 0, *others[-3:-1])),
    )
    torch.manual_seed(0)
    backbone = create("resnet_tiny", "bcosified")
    labels = torch.arange(20 * classes) // 20
    own = torch.zeros(classes, 96).scatter_(1, torch.arange(classes)[:, None], 1.0)
    noise = torch.rand(20 * classes, 96)
    features = own[labels] + 0.1 * noise if helpful else noise
    candidates = {label: (labels == label).nonzero()[:, 0].tolist() for label in range(classes)}
    other = torch.eye(96)[classes : 2 * classes]
    chosen = small_settings(form="bcosified", recipe=recipe, batch_size=16)
    classifier = SIC(backbone, classes, 3 * classes, latent=classes)
    classifier.encoder.projection = BcosLinear(96, classes, 2)
    module = SICTraining(classifier, chosen, candidates, False)
    known = torch.cat([3 * own, other])
    fit_features(module, features, torch.eye(classes)[labels], candidates, chosen, Silent(), known)
    units = torch.nn.functional.normalize(classifier.encoder.projection.weight.detach(), dim=1)
    are_classes = torch.equal(units.sort(dim=0).values, own.sort(dim=0).values)
    assert are_classes == helpful
    sharpened, steps, rate = how[0]
    assert rate == (TAUGHT_RATE if helpful else 1)
    assert sharpened == (helpful and classes == 40 and recipe == "frozen")
    assert steps == (STEPS if sharpened or classes == 4 else 2000)


@pytest.mark.parametrize(("first", "taught"), [(20, True), (30, False)])
def test_the_commonest_class_is_no_knowledge(first: int, taught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 % right is more than half of the way up from 50 %, and less than half of the way up from 75 %."""
    monkeypatch.setattr("sic.training.frozen._right", lambda *_: 0.8)
    rates: list[float] = []
    monkeypatch.setattr("sic.training.frozen._optimise", lambda *arguments: rates.append(arguments[-2]))
    classifier = SIC(create("resnet_tiny", "bcosified"), 2, 6, latent=4)
    classifier.encoder.projection = BcosLinear(96, 4, 2)
    labels = (torch.arange(40) >= first).long()
    candidates = {label: (labels == label).nonzero()[:, 0].tolist() for label in range(2)}
    chosen = small_settings(form="bcosified", recipe="frozen", batch_size=16)
    module = SICTraining(classifier, chosen, candidates, False)
    fit_features(module, torch.rand(40, 96), torch.eye(2)[labels], candidates, chosen, Silent(), torch.eye(96)[:4])
    assert rates[0] == (TAUGHT_RATE if taught else 1)


def test_weights_know_what_they_were_taught(weights: Path, tmp_path: Path) -> None:
    found = taught_directions(str(small_distilled(tmp_path / "with-classes.safetensors")))
    assert found is not None and len(found) == 5
    assert all(taught_directions(each) is None for each in (None, "imagenet", str(weights)))
