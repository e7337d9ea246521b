import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sic
from sic.calibration import Calibration, Promise
from sic.data.images import Preprocessing, to_tensor
from sic.directory import (
    CARD,
    CONFIG,
    SUPPORTS,
    WEIGHTS,
    Config,
    build,
    read_config,
)
from sic.errors import SicError
from sic.files import LOCK, write_atomically
from sic.integrity import MANIFEST
from sic.model import Model, load
from sic.supports import Support

SIZE, CLASSES = 16, ["möwe", "spatz 2", "c"]
save = Model.save


def model(seed: int = 0, per_class: int = 2, keep_images: bool = True) -> Model:
    """Random weights; the supports are random images with their true latents."""
    torch.manual_seed(seed)
    config = Config(
        "resnet_tiny",
        CLASSES,
        "single",
        Preprocessing(SIZE, SIZE),
        per_class,
        0.5,
        latent=8,
        figures={"test": {"accuracy": 0.5}},
    )
    number = len(CLASSES) * per_class
    classifier = build(config, number).eval()
    images = np.random.default_rng(seed).integers(0, 256, (number, SIZE, SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        latents = classifier.encoder(torch.stack([to_tensor(image) for image in images]))
    labels = [label for label in range(len(CLASSES)) for _ in range(per_class)]
    classifier.set_supports(latents, torch.tensor(labels))
    supports = [
        Support(label, f"{label}/{i}.png", images[i] if keep_images else None) for i, label in enumerate(labels)
    ]
    return Model(classifier, config, supports)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(model(), folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "elsewhere" / "copy")


def images(number: int = 3) -> torch.Tensor:
    return torch.rand(number, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def sentence(folder: Path) -> str:
    """What a user reads: one line that names the folder or a file in it."""
    with pytest.raises(SicError) as caught:
        sic.load(folder)
    words = str(caught.value)
    assert str(folder) in words and "\n" not in words and words.endswith(".")
    return words


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    change(content)
    (folder / CONFIG).write_text(json.dumps(content), encoding="utf-8")


def test_a_copy_gives_equal_logits_bit_for_bit(tmp_path: Path) -> None:
    original = model(seed=3)
    save(original, tmp_path / "here" / "model")
    shutil.copytree(tmp_path / "here" / "model", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    loaded = load(tmp_path / "there")
    with torch.no_grad():
        expected, found = original.classifier(images()), loaded.classifier(images())
    assert torch.equal(found, expected)
    assert found.std() > 0
    assert loaded.config == original.config
    assert not loaded.classifier.training
    for mine, theirs in zip(loaded.supports, original.supports, strict=True):
        assert (mine.label, mine.source) == (theirs.label, theirs.source)
        np.testing.assert_array_equal(mine.image, theirs.image)
    assert loaded.classifier.state_dict().keys() == original.classifier.state_dict().keys()
    for name, value in original.classifier.state_dict().items():
        assert torch.equal(loaded.classifier.state_dict()[name], value)


def test_supports_can_be_computed_again_from_their_images(saved: Path) -> None:
    loaded = load(saved)
    with torch.no_grad():
        latents = loaded.classifier.encoder(torch.stack([to_tensor(s.image) for s in loaded.supports]))  # type: ignore[arg-type]
    torch.testing.assert_close(latents, loaded.classifier.support_vectors)


def test_the_config_says_what_the_model_is(saved: Path) -> None:
    content = json.loads((saved / CONFIG).read_text(encoding="utf-8"))
    assert content["classes"] == CLASSES and "möwe" in (saved / CONFIG).read_text(encoding="utf-8")
    assert content["bias"] == pytest.approx(-np.log(2)) and content["temperature"] == 0.5
    assert content["figures"] == {"test": {"accuracy": 0.5}}
    assert content["weights_sha256"] == hashlib.sha256((saved / WEIGHTS).read_bytes()).hexdigest()
    assert content["versions"]["torch"] == torch.__version__
    assert read_config(saved) == (model().config, content["weights_sha256"])


def test_nothing_in_the_directory_is_a_pickle(saved: Path) -> None:
    names = sorted(path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file())
    assert names.pop(0) == LOCK and (saved / LOCK).read_bytes() == b""
    assert names == [CARD, CONFIG, MANIFEST, WEIGHTS, *support_names(6)]
    for name in names:
        start = (saved / name).read_bytes()[:8]
        if name.endswith(".png"):
            assert start == b"\x89PNG\r\n\x1a\n"
        elif name == WEIGHTS:  # the length of a JSON header, then the header
            header = (saved / name).read_bytes()[8 : 8 + int.from_bytes(start, "little")]
            assert "support_vectors" in json.loads(header)
        elif name == CARD:
            assert start == b"# An int"
        else:
            json.loads((saved / name).read_text(encoding="utf-8"))


def test_saving_over_an_old_model_leaves_nothing_of_it(tmp_path: Path) -> None:
    save(model(seed=0, per_class=3), tmp_path)
    assert len(list((tmp_path / SUPPORTS).glob("*.png"))) == 9
    new = model(seed=1, per_class=1)
    save(new, tmp_path)
    assert sorted(path.name for path in (tmp_path / SUPPORTS).iterdir()) == [
        "00000.png", "00001.png", "00002.png", "supports.json"
    ]  # fmt: skip
    with torch.no_grad():
        assert torch.equal(load(tmp_path).classifier(images()), new.classifier(images()))
    save(model(seed=2, keep_images=False), tmp_path)
    assert [path.name for path in (tmp_path / SUPPORTS).iterdir()] == ["supports.json"]
    assert [support.image for support in load(tmp_path).supports] == [None] * 6


def test_a_model_loaded_in_inference_mode_still_explains(saved: Path) -> None:
    with torch.inference_mode():
        loaded = sic.load(saved)
    targets = torch.tensor([0, 1, 2])
    outside = loaded.classifier.explain(images(), targets)
    assert outside.residual.abs().max() < 1e-4 and outside.maps.abs().sum() > 0
    with torch.inference_mode():
        inside = loaded.classifier.explain(images(), targets)
    torch.testing.assert_close(inside.maps, outside.maps)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    assert "no such folder" in sentence(tmp_path / "nowhere")
    assert "it has no config.json" in sentence(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert "--resume" in sentence(tmp_path)


def test_missing_weights(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    assert WEIGHTS in sentence(copy)


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_truncated_weights(copy: Path, keep: int) -> None:
    data = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(data[:keep])
    assert "truncated or edited" in sentence(copy)


def test_edited_weights(copy: Path) -> None:
    data = bytearray((copy / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (copy / WEIGHTS).write_bytes(data)
    assert "truncated or edited" in sentence(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"model"', '{"format": "1"}', "{}"])
def test_a_config_that_is_no_config(copy: Path, text: str) -> None:
    (copy / CONFIG).write_text(text)
    assert "config.json is damaged" in sentence(copy) and "JSONDecodeError" not in sentence(copy)


def test_a_config_that_is_no_text(copy: Path) -> None:
    (copy / CONFIG).write_bytes(b"\xff\xfe\x00{")
    assert "config.json is damaged" in sentence(copy)


KEYS = ["format", "backbone", "classes", "task", "preprocessing", "temperature", "latent", "b", "supports_per_class"]


@pytest.mark.parametrize(
    "key",
    [*KEYS, "weights_sha256"],
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    edit(copy, lambda content: content.pop(key))
    words = sentence(copy)
    assert "config.json is damaged" in words and key in words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("latent", 0),
        ("latent", 65_537),
        ("b", 0.5),
        ("temperature", 0),
        ("supports_per_class", 10**6),
        ("neighbours", 0),
    ],
)
def test_a_setting_outside_of_its_range_is_named(copy: Path, key: str, value: float) -> None:
    edit(copy, lambda content: content.update({key: value}))
    words = sentence(copy)
    assert "config.json is damaged" in words and f"{key} must be" in words


@pytest.mark.parametrize(("size", "resize"), [(0, 40), (5000, 5000), (40, 20_000)])
def test_a_side_that_no_picture_has(copy: Path, size: int, resize: int) -> None:
    edit(copy, lambda content: content["preprocessing"].update(size=size, resize=resize))
    assert "config.json is damaged" in sentence(copy)


PROMISE = Promise(1.25, 0.05, 0.95, 200, 150, 2)


@pytest.mark.parametrize("promise", [None, PROMISE, replace(PROMISE, score=None)])
def test_the_calibration_is_part_of_the_model(tmp_path: Path, promise: Promise | None) -> None:
    made = model()
    made.config.calibration = made.classifier.calibration = Calibration(1.7, -0.7, 200, promise)
    save(made, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.config.calibration == loaded.classifier.calibration == made.config.calibration
    logits = loaded.classifier(images())
    expected = ((logits.double() + 0.7) / 1.7).sigmoid()
    torch.testing.assert_close(loaded.answers(logits).probabilities, expected)
    for row, image in enumerate(images()):
        prediction, covered = loaded.predict(image), loaded.answers(logits).promised[row].item()
        assert list(prediction.probabilities.values()) == pytest.approx(expected[row].tolist(), abs=1e-6)
        assert prediction.promised == covered == (promise is not None and logits[row].max() > (promise.score or -9))
        assert loaded.explain(image).residual < 1e-4
        if promise is None:
            with pytest.raises(SicError, match="makes no promise"):
                loaded.predict(image, promise=True)
        else:
            assert loaded.predict(image, promise=True).labels == (prediction.labels if covered else [])
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "sigmoid((logit + 0.70) / 1.70), fitted on 200 held-out" in card
    assert "**Promise.**" in card and ("The model promises nothing" in card) == (promise is None)


def test_models_without_a_calibration_load_as_before(copy: Path) -> None:
    before = load(copy)
    edit(copy, lambda content: content.pop("calibration"))
    after = load(copy)
    assert after.config.calibration == Calibration() and after.config == before.config
    logits = after.classifier(images())
    assert torch.equal(after.answers(logits).probabilities, logits.double().sigmoid())


@pytest.mark.parametrize(
    "change", [{"temperature": 0}, {"temperature": "hot"}, {"threshold": None}, {"mood": 1}, {"promise": {"score": 1}}]
)
def test_a_damaged_calibration(copy: Path, change: dict) -> None:
    edit(copy, lambda content: content["calibration"].update(change))
    assert "config.json is damaged" in sentence(copy)


def test_a_preprocessing_that_is_unknown(copy: Path) -> None:
    edit(copy, lambda content: content["preprocessing"].update(sharpen=2))
    assert "config.json is damaged" in sentence(copy)


def test_a_newer_format(copy: Path) -> None:
    edit(copy, lambda content: content.update(format=3))
    assert "newer sic (format 3); update sic" in sentence(copy)


def test_biases_that_the_image_carried(copy: Path) -> None:
    edit(copy, lambda content: content.update(carried_biases=False))
    load(copy)
    edit(copy, lambda content: content.update(carried_biases=True))
    assert "holds a network with carried biases, which sic no longer has; train it again." in sentence(copy)


def test_an_older_format(copy: Path) -> None:
    edit(copy, lambda content: content.update(format=1))
    assert "older sic (format 1); train the model again" in sentence(copy)


LATER = ["backbone_b", "method", "loss", "relu", "attribution", "neighbours", "inference_supports", "edits"]
LATER += ["local_units"]
"""Older files do not have these."""


def test_models_from_before_there_were_other_methods_are_sic(copy: Path) -> None:
    before = load(copy)
    edit(copy, lambda content: [content.pop(name) for name in LATER])
    after = load(copy)
    assert after.config == before.config and after.config.method == "sic"
    with torch.no_grad():
        assert torch.equal(after.classifier(images()), before.classifier(images()))


def test_an_unknown_method(copy: Path) -> None:
    edit(copy, lambda content: content.update(method="tarot"))
    with pytest.raises(SicError, match="no method called 'tarot'"):
        load(copy)


def test_an_unknown_backbone(copy: Path) -> None:
    edit(copy, lambda content: content.update(backbone="resnet_huge"))
    with pytest.raises(SicError, match="resnet_huge"):
        load(copy)


@pytest.mark.parametrize("change", [{"latent": 9}, {"backbone": "resnet_small"}])
def test_a_config_that_does_not_fit_the_weights(copy: Path, change: dict[str, Any]) -> None:
    edit(copy, lambda content: content.update(change))
    assert "do not fit together" in sentence(copy)


def test_a_support_removed_from_the_list(copy: Path) -> None:
    file = copy / SUPPORTS / "supports.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:-1]))
    assert "do not fit together" in sentence(copy)


def test_supports_of_another_class_than_the_weights_say(copy: Path) -> None:
    file = copy / SUPPORTS / "supports.json"
    content = json.loads(file.read_text())
    content[0]["class"] = 2
    file.write_text(json.dumps(content))
    assert "the supports are of other classes" in sentence(copy)


def test_fewer_classes_than_the_supports_have(copy: Path) -> None:
    edit(copy, lambda content: content.update(classes=CLASSES[:2]))
    assert "supports of unknown classes" in sentence(copy)


def test_damaged_supports(copy: Path) -> None:
    (copy / SUPPORTS / "00003.png").write_bytes((copy / SUPPORTS / "00002.png").read_bytes())
    assert "00003.png has been changed" in sentence(copy)
    shutil.rmtree(copy / SUPPORTS)
    assert "does not hold readable supports" in sentence(copy)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, lambda path: path.write_text("old"))

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def support_names(number: int) -> list[str]:
    return [*(f"{SUPPORTS}/{i:05d}.png" for i in range(number)), f"{SUPPORTS}/supports.json"]


class Crash(BaseException):
    """What no handler expects: the process ends here."""


@pytest.mark.parametrize("where", ["write_supports", "save_tensors", "model_card"])
def test_a_save_that_fails_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    save(model(), tmp_path)
    before = content(tmp_path)

    def fail(*_: object) -> bytes:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(f"sic.directory.{where}", fail)
        with pytest.raises(OSError, match="disk full"):
            save(model(seed=1), tmp_path)
    assert content(tmp_path) == before
    save(model(seed=1, per_class=1), tmp_path)
    save(model(seed=1, per_class=1), tmp_path.with_name("fresh"))
    assert content(tmp_path) == content(tmp_path.with_name("fresh"))  # nothing of the old one is left


def test_a_first_save_that_fails_is_not_taken_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("sic.directory.save_tensors", fail)
    with pytest.raises(MemoryError):
        save(model(), tmp_path)
    assert "it has no config.json" in sentence(tmp_path)


def test_killed_at_any_moment_there_is_one_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rename is a moment to be killed at: before the decisive one the old model is there, then the new one."""
    old, new = model(), model(seed=1, per_class=1)
    rename = Path.replace
    seen = set()
    for moment in range(100):
        folder = tmp_path / str(moment)
        save(old, folder)
        renames = 0

        def until_killed(self: Path, target: Path, moment: int = moment) -> Path:
            nonlocal renames
            if renames == moment:
                raise Crash
            renames += 1
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", until_killed)
            patch.setattr("sic.directory.shutil.rmtree", lambda *_, **__: None)  # the dead do not tidy up
            try:
                save(new, folder)
            except Crash:
                finished = False
            else:
                finished = True
        interrupted = content(folder)
        loaded = load(folder)
        assert content(folder) == interrupted  # reading does not finish what the writer left
        expected = new if len(loaded.supports) == len(new.supports) else old
        assert torch.equal(loaded.classifier.support_vectors, expected.classifier.support_vectors)
        assert [s.source for s in loaded.supports] == [s.source for s in expected.supports]
        seen.add(len(loaded.supports))
        newest = model(seed=2)
        save(newest, folder)
        assert torch.equal(load(folder).classifier.support_vectors, newest.classifier.support_vectors)
        assert sorted(content(folder)) == sorted([LOCK, CARD, CONFIG, MANIFEST, WEIGHTS, *support_names(6)])
        if finished:
            break
    assert finished and moment > 6
    assert seen == {len(old.supports), len(new.supports)}
