"""`sic evaluate` and `sic compare`, in this process; the models are not trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sic.fitting
from sic.cli.entries import finished
from sic.cli.main import app
from sic.data import open as open_data
from sic.data.images import Preprocessing
from sic.data.layouts.funnybirds import write_funnybirds
from sic.data.loading import view_batches
from sic.directory import CONFIG, RUN, Config, build
from sic.errors import SicError
from sic.model import Model
from sic.supports import Support
from tests.models import settle

SIZE = 40


def make_model(folder: Path, root: Path, seed: int = 0) -> Path:
    """A model of the classes in `root`, supports taken from its images, everything else random."""
    torch.manual_seed(seed)
    data = open_data(root)
    first = {sample.labels[0]: sample for sample in data.splits["train"] if len(sample.labels) == 1}
    first |= {sample.labels[0]: sample for sample in data.splits.get("test", [])}
    config = Config(
        "resnet_tiny",
        list(data.classes),
        "single",
        Preprocessing(SIZE, SIZE, "squash"),
        1,
        0.01,
        latent=32,
        data={"name": data.name},
        training={"seed": seed},
        figures={"test": {"accuracy": 0.5}},
    )
    classifier = build(config, len(first))
    views = torch.cat(list(view_batches([first[c].path for c in sorted(first)], config.preprocessing)))
    settle(classifier.encoder, views)
    with torch.no_grad():
        classifier.set_supports(classifier.encoder(views), torch.tensor(sorted(first)))
    supports = [Support(c, first[c].id, None) for c in sorted(first)]
    Model(classifier.eval(), config, supports).save(folder)
    return folder


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("birds") / "few"
    write_funnybirds(root, classes=4, train=1, test=2, size=SIZE)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, birds: Path) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "sic", birds)


def run(*arguments: object) -> str:
    """What the command prints on standard output; its errors are raised."""
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_evaluate(model: Path, birds: Path, tmp_path: Path) -> None:
    found = run_json("evaluate", model, birds, "--limit", 4, "--out", tmp_path)
    assert found["method"] == "sic" and found["images"] == 4 and found["data"] == "test images of few"
    assert {"accuracy", "funnybirds", "faithfulness", "unfamiliar"} <= set(found)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == found
    drawn = {"reliability.png", "confusion.png", "deletion.png", "radar.png", "evaluation.json"}
    assert {path.name for path in tmp_path.iterdir()} == drawn


def test_evaluate_for_people(model: Path, birds: Path, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(tmp_path / "black.png")
    text = run("evaluate", model, birds, "--only", "accuracy,localisation,unfamiliar", "--strangers", tmp_path)
    assert "calibration error" in text and "bird 3" in text and tmp_path.name in text
    assert "FunnyBirds (" not in text and "Faithfulness" not in text


def test_strangers_in_a_folder_with_a_name_of_ours(model: Path, birds: Path, tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(tmp_path / "noise" / "black.png")
    found = run_json("evaluate", model, birds, "--only", "unfamiliar", "--strangers", tmp_path / "noise")
    kinds = found["unfamiliar"]
    assert kinds["folder noise"]["images"] == 1 < kinds["noise"]["images"]


def test_folders_have_no_interventions(model: Path, birds: Path) -> None:
    found = run_json("evaluate", model, _as_folders(birds), "--only", "accuracy,funnybirds")
    assert found["images"] == 8 and "funnybirds" in found["left_out"] and found["caution"]


def _as_folders(birds: Path) -> Path:
    """The test images as class folders."""
    root = birds.parent / "folders"
    if not root.exists():
        for label in range(4):
            (root / f"bird {label}").parent.mkdir(exist_ok=True)
            (root / f"bird {label}").symlink_to(birds / "test" / str(label))
    return root


def test_images_that_training_held_out(model: Path, birds: Path, tmp_path: Path) -> None:
    """Without test images, the validation images of the run are what is looked at."""
    root = _as_folders(birds)
    copy = make_model(tmp_path / "copy", root)
    ids = [sample.id for sample in open_data(root).splits["train"]][:3]
    where = {"where": str(root.resolve()), "layout": None, "group": None}
    (copy / RUN).write_text(json.dumps({"data": {"opened_with": where}, "validation": ids, "train": []}))
    content = json.loads((copy / CONFIG).read_text())
    content["training"] |= {"recipe": "scratch", "epochs": 4, "check_every": 2, "best_epoch": 2}
    (copy / CONFIG).write_text(json.dumps(content))
    found = run_json("evaluate", copy, "--only", "accuracy")
    assert found["images"] == 3 and found["caution"].startswith("The best epoch was chosen on these images")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--only", "speed"], "is not a protocol"),
        (["--device", "nowhere"], "--device nowhere"),
        (["--attribution", "tea-leaves"], "--attribution tea-leaves"),
        (["--only", "accuracy", "--strangers", "there"], "--strangers is for the protocol unfamiliar"),
    ],
)
def test_evaluate_refuses(model: Path, birds: Path, flags: list[str], sentence: str) -> None:
    with pytest.raises(SicError, match=sentence):
        run("evaluate", model, birds, *flags)


def test_compare_finished_runs(model: Path, birds: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", birds, seed=3)
    out = tmp_path / "out"
    arguments = ["compare", model, other, f"twin={model}", "--data", birds, "--only", "accuracy,funnybirds"]
    found = run_json(*arguments, "--limit", 4, "--out", out)
    assert found["seeds"] == {"sic": [0, 3], "twin": [0]} and found["runs"]["sic"] == [str(model), str(other)]
    single = run_json("evaluate", model, birds, "--only", "accuracy,funnybirds", "--limit", 4)
    assert found["methods"]["sic"]["accuracy"][0] == single["accuracy"]["accuracy"]
    assert found["methods"]["twin"]["SD"] == [single["funnybirds"]["contributions"]["SD"]]
    assert found["methods"]["sic"]["D_alpha"][0] == single["funnybirds"]["alpha"]["D"]
    assert found["settings"]["limit"] == 4 and found["command"].startswith("sic")
    assert {"comparison.json", "comparison.md", "comparison.csv", "comparison.tex", "bars.png", "radar.png"} <= {
        path.name for path in out.iterdir()
    }
    assert json.loads((out / "comparison.json").read_text()) == found


def test_runs_that_are_no_seeds_of_one_method(model: Path, birds: Path, tmp_path: Path) -> None:
    """They have a column each."""
    other, slower = (make_model(tmp_path / name, birds, seed=seed) for name, seed in (("again", 0), ("slower", 3)))
    settings = ("--data", birds, "--only", "accuracy", "--limit", 4, "--out", tmp_path / "out")
    found = run_json("compare", model, other, *settings)
    assert found["seeds"] == {f"sic {model}": [0], f"sic {other}": [0]}
    content = json.loads((slower / "config.json").read_text())
    content["training"]["lr"] = 7e-3
    (slower / "config.json").write_text(json.dumps(content))
    found = run_json("compare", model, slower, *settings)
    assert found["seeds"] == {f"sic {model}": [0], f"sic {slower}": [3]}
    with pytest.raises(SicError, match="named twice"):
        run("compare", model, model, *settings)


def named(folders: list[Path], *trainings: dict[str, Any]) -> list[str]:
    """The names of runs that were trained so."""
    for folder, training in zip(folders, trainings, strict=True):
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | {"training": training}))
    return [entry.name for entry in finished([str(folder) for folder in folders])]


@pytest.fixture
def folders(birds: Path, tmp_path: Path) -> list[Path]:
    return [make_model(tmp_path / name, birds) for name in ("a", "b")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"teacher": "runs/blackbox-seed0"}, {"teacher": "runs/blackbox-seed1"}),
        ({"teacher": "one teacher"}, {"teacher": "one teacher"}),
        ({"compiled": True}, {"compiled": False}),
        ({}, {"drop_leaks": False, "head_lr": None, "teacher": None, "padding": "zeros"}),
        ({"preprocessing": {"size": 64, "fit": "squash", "resize": 64}}, {"size": 64, "fit": "squash", "resize": 64}),
    ],
    ids=["teachers by seed", "one teacher", "compiled", "new settings", "preprocessing"],
)
def test_seeds_of_one_method(folders: list[Path], one: dict[str, Any], other: dict[str, Any]) -> None:
    assert named(folders, {"seed": 0, **one}, {"seed": 1, **other}) == ["sic", "sic"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"teacher": "runs/blackbox-seed0"}, {}),
        ({"teacher": "runs/blackbox-seed0"}, {"teacher": "runs/bcos-seed1"}),
        ({}, {"padding": "reflect"}),
        ({"preprocessing": {"size": 32}}, {"preprocessing": {"size": 64}}),
    ],
    ids=["with a teacher", "teachers of two methods", "new setting", "preprocessing"],
)
def test_other_trainings_of_one_method(folders: list[Path], one: dict[str, Any], other: dict[str, Any]) -> None:
    assert named(folders, {"seed": 0, **one}, {"seed": 1, **other}) == [f"sic {folder}" for folder in folders]


def test_what_was_measured_is_not_measured_again(
    model: Path, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare", model, "--data", birds, "--only", "accuracy", "--out", tmp_path]
    first = run_json(*arguments)
    monkeypatch.setattr("sic.evaluate.suite.Suite.run", lambda *_: pytest.fail("measured again"))
    assert run_json(*arguments)["methods"] == first["methods"]
    assert "accuracy (%)" in run(*arguments)


def test_compare_trains_what_is_not_finished(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fit(data: str, out: Path, *, resume: bool, reporter: object, **said: Any) -> None:
        calls.append((out.name, resume, said))
        make_model(out, Path(data), said["seed"])
        where = {"where": data, "layout": None, "group": None}
        (out / RUN).write_text(json.dumps({"data": {"opened_with": where}, "validation": [], "train": []}))

    monkeypatch.setattr(sic.fitting, "fit", fit)
    monkeypatch.setattr("sic.training.recorded_settings", lambda *_: None)
    flags = ["--data", birds, "--seeds", "0,5", "--epochs", 2, "--supports", 1, "--set", "sic:lr=0.5"]
    flags += ["--set", "bcos:epochs=", "--only", "accuracy", "--out", tmp_path]
    found = run_json("compare", "--train", "sic,bcos", *flags)
    common = {"supports_per_class": 1, "epochs": 2}
    assert calls == [
        ("sic-seed0", False, {**common, "method": "sic", "seed": 0, "lr": 0.5}),
        ("bcos-seed0", False, {**common, "method": "bcos", "seed": 0, "epochs": None}),
        ("sic-seed5", False, {**common, "method": "sic", "seed": 5, "lr": 0.5}),
        ("bcos-seed5", False, {**common, "method": "bcos", "seed": 5, "epochs": None}),
    ]
    assert found["seeds"] == {"sic": [0, 5], "bcos": [0, 5]} and len(found["methods"]["bcos"]["accuracy"]) == 2
    (tmp_path / "runs" / "bcos-seed5" / "config.json").unlink()  # interrupted before the end
    run_json("compare", "--train", "sic,bcos", *flags)
    assert [call[:2] for call in calls[4:]] == [("bcos-seed5", True)]
    with pytest.raises(SicError, match="was trained on"):
        run("compare", "--train", "sic", "--data", _as_folders(birds), "--out", tmp_path)


@pytest.mark.slow
def test_compare_trains_a_teacher_first(tmp_path: Path) -> None:
    data, out = tmp_path / "birds", tmp_path / "compared"
    run("data", "birds", data, "--classes", 2, "--train", 8, "--test", 2, "--size", 48)
    flags = ["--seeds", 3, "--epochs", 2, "--size", 32, "--backbone", "resnet_tiny", "--set", "sic:teacher=bcos"]
    found = run_json("compare", "--train", "sic,bcos", "--data", data, *flags, "--only", "accuracy", "--out", out)
    assert list(found["methods"]) == ["sic", "bcos"]
    student, teacher = (out / "runs" / f"{name}-seed3" for name in ("sic", "bcos"))
    assert json.loads((student / RUN).read_text())["settings"]["teacher"] == str(teacher)
    assert (teacher / RUN).stat().st_mtime < (student / RUN).stat().st_mtime


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name finished runs"),
        (["--train", "sic"], "--train needs --data"),
        (["--train", "sic", "--data", "birds", "--seeds", "1,a"], "--seeds must be"),
        (["--train", "sic", "--data", "birds", "--seeds", "1,1"], "twice"),
        (["--train", "sic", "--data", "birds", "--set", "bcos:lr=1"], "--set bcos:lr=1"),
        (["--train", "sic", "--data", "birds", "--set", "sic:teacher=blackbox"], "add blackbox to --train"),
        (["some/run", "--epochs", "3"], "epochs"),
        (["no/such/run"], "no/such/run"),
    ],
)
def test_compare_refuses(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SicError, match=sentence):
        run("compare", *arguments, "--out", tmp_path)
