"""Whole fits on tiny data: what a run leaves behind, and what interrupts it."""

import csv
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sic
import sic.data
from sic import directory
from sic.bcos import BatchNormUncentred2d
from sic.data.dataset import Box, ImageData, Sample
from sic.data.images import read_image
from sic.data.loading import batch_on_cpu
from sic.directory import read_run
from sic.errors import SicError
from sic.evaluate.interventions import logits
from sic.training import Silent, choose, fit
from tests.cli.conftest import here
from tests.conftest import draw_folders
from tests.listening import Listening
from tests.waiting import LONG, wait_until

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"backbone": "resnet_tiny", "size": 40, "batch_size": 16}


def small(data: ImageData, **said: object) -> object:
    return choose(data, {**SMALL, **said})[0]


@pytest.fixture(scope="module")
def fitted(bird_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of two epochs with seed 0."""
    folder = tmp_path_factory.mktemp("fitted") / "model"
    data = sic.data.open(bird_folders)
    fit(data, small(data, epochs=2), folder, workers=0)
    return folder


def outputs(folder: Path, images: Path) -> torch.Tensor:
    model = sic.load(folder)
    return logits(model.classifier, sorted(images.rglob("*.png")), model.config.preprocessing)


def command(images: Path, out: Path, *more: str) -> list[str]:
    flags = ["--out", str(out), "--epochs", "4", "--backbone", "resnet_tiny", "--size", "40", "--batch-size", "4"]
    return [sys.executable, "-m", "sic", "train", str(images), *flags, *more]


def epochs_done(folder: Path) -> int:
    file = folder / "history.csv"
    return len(list(csv.reader(file.open()))) - 1 if file.is_file() else 0


def test_norms_have_the_statistics_of_training_images(fitted: Path, bird_folders: Path) -> None:
    """Those of the weights that are saved, and not a mean over past steps."""
    model, network = sic.load(fitted), sic.load(fitted).classifier.backbone
    views = [model.config.preprocessing(read_image(bird_folders / id)) for id in read_run(fitted)["train"]]
    images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float() / 255
    first = next(layer for layer in network.modules() if isinstance(layer, BatchNormUncentred2d))
    seen: list[torch.Tensor] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for batch in images.tensor_split(-(-len(images) // batch_on_cpu(SMALL["size"]))):
            network(batch)
    expected = np.mean([batch.numpy().astype(np.float64).var(axis=(0, 2, 3)) for batch in seen], axis=0)
    np.testing.assert_allclose(first.running_var, expected, rtol=1e-3)


def test_kill_and_resume_gives_the_uninterrupted_result(bird_folders: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken in two"
    here(command(bird_folders, whole)[3:], {})
    process = subprocess.Popen(
        command(bird_folders, broken), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: epochs_done(broken) >= 2, process)
    time.sleep(0.15)  # into the next epoch
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 2 <= epochs_done(broken) < 4
    with pytest.raises(SicError, match="resume"):
        sic.load(broken)
    resumed = here(["train", str(bird_folders), "--out", str(broken), "--resume"], {})
    assert resumed.returncode == 0, resumed.stderr
    assert torch.equal(outputs(whole, bird_folders), outputs(broken, bird_folders))
    histories = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader((f / "history.csv").open())]
        for f in (whole, broken)
    ]
    assert histories[0] == histories[1]
    assert not (broken / "pixels.bin").exists()


def test_interrupt_is_one_sentence(bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    long = command(bird_folders, out, "--epochs", "900")
    process = subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: epochs_done(out) >= 1, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "--resume" in said.splitlines()[-1]


def test_the_same_seed_gives_the_same_model_whatever_the_workers(
    bird_folders: Path, fitted: Path, tmp_path: Path
) -> None:
    """The other was made without any."""
    data = sic.data.open(bird_folders)
    settings = small(data, epochs=2)
    fit(data, settings, tmp_path / "2", workers=2)
    assert torch.equal(outputs(fitted, bird_folders), outputs(tmp_path / "2", bird_folders))
    fit(data, replace(settings, seed=1), tmp_path / "other", workers=0)
    assert not torch.equal(outputs(fitted, bird_folders), outputs(tmp_path / "other", bird_folders))


def test_a_copied_model_needs_nothing_else(bird_folders: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(bird_folders, images)
    data = sic.data.open(images)
    fit(data, small(data, epochs=2), tmp_path / "model", workers=0)
    picture = next(bird_folders.rglob("*.png"))
    before = sic.load(tmp_path / "model")
    prediction, explanation = before.predict(picture), before.explain(picture)
    shutil.rmtree(images)
    shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    after = sic.load(tmp_path / "elsewhere")
    assert after.predict(picture) == prediction
    again = after.explain(picture)
    for old, new in zip(explanation.classes, again.classes, strict=True):
        assert torch.equal(old.contributions.maps, new.contributions.maps)
        for a, b in zip(old.cases, new.cases, strict=True):
            assert a.own is not None
            assert b.own is not None
            assert torch.equal(a.own.maps, b.own.maps)


def test_supports_are_what_the_model_says_they_are(bird_folders: Path, fitted: Path) -> None:
    model = sic.load(fitted)
    assert len({support.source for support in model.supports}) == len(model.supports) == 12
    latents = model.classifier.encoder(torch.stack([model.tensor(bird_folders / s.source) for s in model.supports]))
    assert torch.allclose(latents, model.classifier.support_vectors, atol=1e-5)
    assert [s.label for s in model.supports] == model.classifier.support_classes.tolist()
    held_out = set(read_run(fitted)["validation"])
    assert not held_out & {support.source for support in model.supports}


def test_support_images_can_be_left_out(bird_folders: Path, tmp_path: Path) -> None:
    data = sic.data.open(bird_folders)
    fit(data, small(data, epochs=1, keep_support_images=False), tmp_path / "model")
    assert not multiprocessing.active_children(), "loader workers outlive the fit"
    assert not list((tmp_path / "model" / "supports").glob("*.png"))
    explanation = sic.load(tmp_path / "model").explain(next(bird_folders.rglob("*.png")))
    assert all(case.own is None for case in explanation.classes[0].cases)
    explanation.save(tmp_path / "why.png")


def test_nan_stops_the_run_with_a_sentence(bird_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.training.base.binary_loss", lambda logits, *_: (logits * torch.nan).mean())
    data = sic.data.open(bird_folders)
    with pytest.raises(SicError, match="NaN .* epoch 1; try a lower --lr"):
        fit(data, small(data, epochs=3), tmp_path / "next", workers=0)


def test_multi_label_fit_uses_single_label_supports(bird_folders: Path, tmp_path: Path) -> None:
    folders = sic.data.open(bird_folders)
    samples = [
        Sample(s.id, s.path, (s.labels[0], (s.labels[0] + 1) % 4) if n % 3 == 0 else s.labels)
        for n, s in enumerate(folders.splits["train"])
    ]
    data = ImageData("two labels", bird_folders, "test", folders.classes, {"train": samples}, task="multi")
    held_out = fit(data, small(data, epochs=2), tmp_path / "model", workers=0)
    assert [sample.id for sample in held_out.validation] == read_run(tmp_path / "model")["validation"]
    model = sic.load(tmp_path / "model")
    labels = {sample.id: sample.labels for sample in samples}
    assert all(labels[support.source] == (support.label,) for support in model.supports)
    prediction = model.predict(samples[0].path)
    assert prediction.labels == [name for name, p in prediction.probabilities.items() if p >= 0.5]


def test_multi_label_end_to_end_with_unsure_labels_and_balance(bird_folders: Path, tmp_path: Path) -> None:
    """A table as people have it; VOC's difficult objects are put into the samples."""
    rows = ["path,label,split"]
    for number, file in enumerate(sorted(bird_folders.rglob("*.png"))):
        label = int(file.parent.name[-1])
        labels = f"{label}|{(label + 1) % 4}" if number % 3 == 0 else f"{label}"
        split = "test" if number % 24 < 4 else "val" if number % 24 < 8 else "train"
        rows.append(f"{file},{labels},{split}")
    (tmp_path / "images.csv").write_text("\n".join(rows))
    data = sic.data.open(tmp_path / "images.csv")
    data.splits = {
        split: [replace(s, boxes=(Box((s.labels[-1] + 2) % 4, 0, 0, 9, 9, difficult=True),)) for s in samples]
        for split, samples in data.splits.items()
    }
    assert data.task == "multi" and all(s.unsure for samples in data.splits.values() for s in samples)
    for balance in (False, True):
        fit(data, small(data, epochs=2, balance=balance), tmp_path / f"balanced {balance}", workers=0)
        history = list(csv.DictReader((tmp_path / f"balanced {balance}" / "history.csv").open()))
        for row in history:
            assert 0 < float(row["train_loss"]) < 10 and 0 < float(row["val_loss"]) < 10
            assert 0.1 < float(row["val_score"]) <= 1
        assert read_run(tmp_path / f"balanced {balance}")["settings"]["balance"] is balance
    losses = [(tmp_path / f"balanced {balance}" / "history.csv").read_text() for balance in (False, True)]
    assert losses[0] != losses[1]


def test_multi_label_figures(bird_folders: Path, tmp_path: Path) -> None:
    rows = ["path,label"]
    for number, file in enumerate(sorted(bird_folders.rglob("*.png"))):
        label = file.parent.name
        rows.append(
            f"{file},{label}|spotted" if number % 3 == 0 else f"{file},{'spotted' if number % 7 == 0 else label}"
        )
    (tmp_path / "images.csv").write_text("\n".join(rows))
    model = sic.fit(tmp_path / "images.csv", tmp_path / "model", epochs=2, workers=0, **SMALL)
    figures = model.config.figures["validation"]
    assert list(figures["average_precision"]) == model.classes
    known = [value for value in figures["average_precision"].values() if value is not None]
    assert figures["map"] == pytest.approx(sum(known) / len(known))
    assert 0 <= figures["exact_match"] <= figures["per_label_accuracy"] <= 1
    best = max(float(row["val_score"]) for row in csv.DictReader((tmp_path / "model" / "history.csv").open()))
    assert figures["map"] == pytest.approx(best, abs=1e-4)
    assert "average_precision" not in (tmp_path / "model" / "README.md").read_text()


def test_images_of_a_group_carry_a_promise_once(bird_folders: Path, tmp_path: Path) -> None:
    reporter, group = Listening(), r"bird \d/0\d"
    sic.fit(bird_folders, tmp_path / "model", epochs=1, group=group, reporter=reporter, workers=0, **SMALL)
    groups = {id[: len("bird 0/00")] for id in read_run(tmp_path / "model")["validation"]}
    expected = f"{len(groups)} held-out images (without copies, one of each group) are too few"
    assert expected in reporter.said[-1]


def test_leaks_stop_a_run_and_leave_nothing_behind(bird_folders: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(bird_folders, images / "train")
    (images / "test" / "bird 0").mkdir(parents=True)
    shutil.copy(bird_folders / "bird 0" / "003.png", images / "test" / "bird 0" / "seen.png")
    with pytest.raises(SicError, match="train/bird 0/003.png .* test/bird 0/seen.png .* --allow-leaks"):
        sic.fit(images, tmp_path / "model", epochs=1, workers=0, **SMALL)
    assert not (tmp_path / "model").exists()
    model = sic.fit(images, tmp_path / "model", epochs=1, allow_leaks=True, workers=0, **SMALL)
    assert model.config.data["leaks"] == 1 and model.config.training["allow_leaks"] is True
    assert model.config.figures["test"]["images"] == 1


def test_figures_with_and_without_copies(bird_folders: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    for split, start, end in (("train", 0, 12), ("test", 12, 24)):
        for folder in bird_folders.iterdir():
            (images / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[start:end]:
                shutil.copy(file, images / split / folder.name / file.name)
    shutil.copy(bird_folders / "bird 0" / "003.png", images / "test" / "bird 0" / "seen.png")
    model = sic.fit(images, tmp_path / "model", epochs=1, workers=0, **SMALL)
    figures = model.config.figures
    assert figures["test"]["images"] == 49 and figures["test_without_copies"]["images"] == 48
    assert figures["test_without_copies"]["note"] == "images that are in training, too, are left out: 1"
    clean = [sample for sample in sic.data.open(images).splits["test"] if "seen" not in sample.id]
    assert figures["test_without_copies"]["accuracy"] == pytest.approx(model.predictions(clean).quality["accuracy"])
    card = (tmp_path / "model" / "README.md").read_text()
    assert "are left out: 1. " in card
    assert "- test images: Answers" in card and "- test images without copies: Answers" in card


@pytest.mark.parametrize("supports", [1, 5])
def test_other_numbers_of_supports(bird_folders: Path, tmp_path: Path, supports: int) -> None:
    data = sic.data.open(bird_folders)
    fit(data, small(data, epochs=1, supports_per_class=supports), tmp_path / "model", workers=0)
    assert len(sic.load(tmp_path / "model").supports) == 4 * supports


def test_start_from_another_model(bird_folders: Path, fitted: Path, tmp_path: Path) -> None:
    data = sic.data.open(bird_folders)
    settings = choose(data, {"epochs": 1, "weights": str(fitted), "lr": 0.0})[0]
    assert (settings.recipe, settings.backbone, settings.size) == ("paper", "resnet_tiny", 40)
    assert settings.temperature == sic.load(fitted).config.temperature
    fit(data, settings, tmp_path / "second", workers=0)
    first, second = (sic.load(folder).classifier.encoder for folder in (fitted, tmp_path / "second"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with pytest.raises(SicError, match="--backbone resnet_tiny"):
        fit(data, replace(settings, backbone="resnet_small"), tmp_path / "third")


def test_validation_images_can_be_kept_for_the_test(bird_folders: Path, tmp_path: Path) -> None:
    data = sic.data.open(bird_folders)
    everyone = data.splits["train"]
    data = replace(data, splits={"train": everyone[::2], "val": everyone[1::2]})
    held = fit(data, small(data, epochs=1, hold_out=True), tmp_path / "m", workers=0)
    assert [sample.id for sample in held.test] == [sample.id for sample in everyone[1::2]]
    assert {sample.id for sample in held.validation} < {sample.id for sample in everyone[::2]}
    record = read_run(tmp_path / "m")
    assert not {*record["train"], *record["validation"]} & {sample.id for sample in everyone[1::2]}


def test_a_run_is_not_overwritten(bird_folders: Path, fitted: Path) -> None:
    data = sic.data.open(bird_folders)
    before = {file: file.stat().st_mtime_ns for file in fitted.rglob("*")}
    with pytest.raises(SicError, match="--resume"):
        fit(data, small(data, epochs=1), fitted)
    assert {file: file.stat().st_mtime_ns for file in fitted.rglob("*")} == before


def test_edited_supports_are_not_replaced(bird_folders: Path, fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted, tmp_path / "edited")
    model = sic.load(tmp_path / "edited")
    model.config.edits = [{"action": "drop", "undone": None}]
    model.save(tmp_path / "edited")
    with pytest.raises(SicError, match="would lose the edits"):
        sic.fit(bird_folders, tmp_path / "edited", resume=True)
    assert sic.load(tmp_path / "edited").config.edits == model.config.edits


class Interrupting(Silent):
    """Somebody presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, task: str, done: int, total: int, note: str = "") -> None:
        if task == "training" and done == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("said", [{"support_source": "bank", "form": "bcosified"}, {"support_source": "n-way"}])
def test_resume_with_other_sources_of_supports(bird_folders: Path, tmp_path: Path, said: dict[str, object]) -> None:
    data = sic.data.open(bird_folders)
    settings = small(data, epochs=3, ways=3 if said["support_source"] == "n-way" else None, **said)
    fit(data, settings, tmp_path / "whole", workers=0)
    with pytest.raises(KeyboardInterrupt):
        fit(data, settings, tmp_path / "broken", workers=0, reporter=Interrupting(12))  # 5 steps an epoch
    assert epochs_done(tmp_path / "broken") == 2
    fit(data, settings, tmp_path / "broken", workers=0, resume=True)
    assert torch.equal(outputs(tmp_path / "whole", bird_folders), outputs(tmp_path / "broken", bird_folders))


@pytest.mark.parametrize("source", ["exact", "bank"])
def test_a_fit_that_is_checked_now_and_then_resumes_after_the_last_check(
    source: str, bird_folders: Path, tmp_path: Path
) -> None:
    data = sic.data.open(bird_folders)
    settings = small(data, epochs=4, check_every=2, support_source=source)
    fit(data, settings, tmp_path / "whole", workers=0)
    rows = list(csv.DictReader((tmp_path / "whole" / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["2", "4"]
    with pytest.raises(KeyboardInterrupt):
        fit(data, settings, tmp_path / "broken", workers=0, reporter=Interrupting(17))  # in the fourth epoch
    assert epochs_done(tmp_path / "broken") == 1
    fit(data, settings, tmp_path / "broken", workers=0, resume=True)
    assert torch.equal(outputs(tmp_path / "whole", bird_folders), outputs(tmp_path / "broken", bird_folders))
    with pytest.raises(SicError, match="--check-every 3 must divide --epochs 4"):
        small(data, epochs=4, check_every=3)


def test_other_sources_of_supports_learn_as_well(tmp_path: Path) -> None:
    """On five kinds of birds, at most 20 points below the exact step (one of 20 images is 5), with about as many images
    embedded in all: an exact step embeds 15 beside its 8 queries, so a bank's may have more, and do more epochs."""
    data = sic.data.open(draw_folders(tmp_path / "birds", 5, 30, 32))
    scores = {}
    usual = {"size": 32, "batch_size": 8, "epochs": 12, "check_every": 3}
    for source, said in {"exact": {}, "bank": {"batch_size": 24, "epochs": 30}, "n-way": {"ways": 3}}.items():
        settings = small(data, **{**usual, "support_source": source, **said})
        fit(data, settings, tmp_path / source, workers=0)
        scores[source] = max(
            float(row["val_score"]) for row in csv.DictReader((tmp_path / source / "history.csv").open())
        )
    assert scores["exact"] >= 0.8
    assert min(scores.values()) > scores["exact"] - 0.21, scores


def test_a_network_that_cannot_be_compiled_is_trained_nevertheless(
    bird_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler fails where the backward pass is compiled, which is after the first forward pass."""
    from torch._dynamo.exc import TorchDynamoException

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            raise TorchDynamoException("no such kernel")

    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda images: Fails.apply(function(images)))
    data, reporter = sic.data.open(bird_folders), Listening()
    fit(data, small(data, epochs=2, compiled=True), tmp_path / "model", workers=0, reporter=reporter)
    assert any("cannot be compiled here (no such kernel)" in text for text in reporter.warned)
    assert epochs_done(tmp_path / "model") == 2
    assert outputs(tmp_path / "model", bird_folders).isfinite().all()


def test_the_network_is_built_once_and_the_model_saved_once(
    bird_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: dict[str, int] = {"build": 0, "save": 0}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*arguments, **options)

        return count

    for name in counted:
        monkeypatch.setattr(directory, name, counting(name, getattr(directory, name)))
    out = tmp_path / "model"
    model = sic.fit(bird_folders, out, epochs=1, backbone="resnet_tiny", size=32, form="bcosified", workers=0)
    assert counted == {"build": 1, "save": 1}
    again = sic.load(out)
    assert again.config == model.config and again.config.figures["validation"]["images"] > 0
    assert not any(name.endswith("bias") for name in model.classifier.state_dict())
    files = sorted(bird_folders.rglob("*.png"))[:3]
    assert [model.predict(file) for file in files] == [again.predict(file) for file in files]
    model.explain(files[0])
