"""Commands from the outside: keys that scripts rely on, and one sentence for every mistake."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import ATTENTION, Sic


def test_help_answers_at_once(sic_apart: Sic) -> None:
    def processor_seconds() -> float:
        """Of our child processes: other tests on the same cores do not count."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(3):
        start = processor_seconds()
        assert "train" in sic_apart("--help").stdout
        times.append(processor_seconds() - start)
    assert min(times) < 0.7


def test_version(sic_apart: Sic) -> None:
    assert sic_apart("--version").stdout.startswith("sic 0.")


@pytest.mark.slow
def test_wrong_calls_get_one_sentence(sic: Sic, tmp_path: Path) -> None:
    assert "does not exist" in sic.refuse("train", tmp_path / "nowhere", "--out", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "class folder" in sic.refuse("train", tmp_path / "empty", "--out", tmp_path / "out")
    two = _two_classes(tmp_path)
    assert "--recipe" in sic.refuse("train", two, "--recipe", "magic")
    assert "nothing to resume" in sic.refuse("train", two, "--out", tmp_path / "out", "--resume")
    assert "not a model directory" in sic.refuse("predict", tmp_path, tmp_path)
    for flags in (["--backbone", "resnet9000"], ["-T", 0], ["--lr", "nan"], ["--weights", tmp_path / "nothing"]):
        said = sic.refuse("train", two, "--out", tmp_path / "out2", *flags)
        assert "Unexpected error" not in said
        assert not (tmp_path / "out2").exists()  # a refused call leaves nothing in the way of the next
    assert "choose one of voc-densenet121" in sic.refuse("train", two, "--preset", "voc")
    assert "inside the dataset" in sic.refuse("train", two, "--out", two / "model")
    (tmp_path / "a file").touch()
    assert "a file" in sic.refuse("train", two, "--out", tmp_path / "a file" / "model", "--epochs", 1)


def test_presets_are_listed_without_data(sic: Sic) -> None:
    said = sic("train", "--preset", "list", COLUMNS="250").stdout
    for words in ("voc-resnet50", "vitc_b", "0.00022", "79.13 % balanced accuracy", "table of best configurations"):
        assert words in said


def test_the_demo_replaces_only_a_demo(sic_apart: Sic, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert "not the folder of an earlier demo" in sic_apart.refuse("demo", "--out", tmp_path)
    assert (tmp_path / "run.json").exists()


def _two_classes(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        folder = tmp_path / "two" / name
        folder.mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"{number}.png")
    return tmp_path / "two"


def test_data_birds_writes_the_layout_and_refuses_a_full_folder(sic: Sic, sic_apart: Sic, tmp_path: Path) -> None:
    said = sic_apart.json("data", "birds", tmp_path / "b", "--classes", 2, "--train", 2, "--test", 1, "--size", 32)
    assert said == {"folder": str(tmp_path / "b"), "splits": {"train": 4, "test": 2}}
    assert (tmp_path / "b" / "classes.json").is_file()
    said = sic.json("data", "show", tmp_path / "b", "--out", tmp_path / "sheet.png")
    assert said == {"picture": str(tmp_path / "sheet.png"), "classes": ["bird 0", "bird 1"]}
    assert "not empty" in sic.refuse("data", "birds", tmp_path / "b", "--classes", 2)


@pytest.mark.slow
def test_train_says_what_scripts_need(trained: tuple[Path, Any]) -> None:
    out, said = trained
    assert said["model"] == str(out)
    assert 0 <= said["accuracy"] <= 1
    assert said["seconds"] > 0
    assert said["skipped"] == [] and said["leaks"] == 0
    assert 0 <= said["figures"]["validation"]["balanced_accuracy"] <= 1
    assert json.loads((out / "config.json").read_text())["figures"]["validation"]["accuracy"] == said["accuracy"]
    assert not list(out.rglob("*.pkl"))
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
        "supports",
        "run.json",
        "history.csv",
        "checkpoints",
        "manifest.json",
        ".lock",
    }


@pytest.mark.slow
def test_predict(sic: Sic, sic_once_apart: Sic, trained: tuple[Path, Any], bird_folders: Path, tmp_path: Path) -> None:
    out, _ = trained
    said = sic_once_apart.json("predict", out, bird_folders / "bird 1")
    assert len(said["images"]) == 24
    first = said["images"][0]
    assert len(first["labels"]) == 1
    assert list(first["probabilities"]) == ["bird 0", "bird 1", "bird 2", "bird 3"]
    assert len(first["evidence"]) == 12
    assert first["similar_case"] == (max(first["probabilities"].values()) >= 0.5)
    values = [entry["value"] for entry in first["evidence"]]
    assert values == sorted(values, reverse=True)
    # The logit is the bias and the class's own evidence.
    total = -np.log(3) + sum(e["value"] for e in first["evidence"] if e["label"] == first["labels"][0])
    assert first["probabilities"][first["labels"][0]] == pytest.approx(1 / (1 + np.exp(-total)), rel=1e-5)
    (tmp_path / "no image.jpg").write_text("words")
    mixed = sic.json("predict", out, tmp_path / "no image.jpg", bird_folders / "bird 1" / "000.png", code=1)
    assert mixed["images"][0]["error"] == "not an image"
    assert mixed["images"][1]["labels"]
    assert "bird" in sic("predict", out, bird_folders / "bird 1" / "000.png").stdout


@pytest.mark.slow
def test_explain(sic: Sic, sic_once_apart: Sic, trained: tuple[Path, Any], bird_folders: Path, tmp_path: Path) -> None:
    out, _ = trained
    image = bird_folders / "bird 2" / "003.png"
    said = sic_once_apart.json("explain", out, image, "--out", tmp_path / "a b" / "why.png")["images"][0]
    with Image.open(tmp_path / "a b" / "why.png") as figure:
        assert min(figure.size) > 400
    explained = said["classes"][0]
    assert explained["pixels"] + explained["constant"] == pytest.approx(explained["logit"], abs=1e-4)
    assert said["bias"] + sum(case["evidence"] for case in explained["cases"]) == pytest.approx(
        explained["logit"], abs=1e-4
    )
    assert abs(said["residual"]) < 1e-4
    both = sic.json("explain", out, image, "--class", "bird 0", "--class", "bird 3", "--out", tmp_path / "two.svg")
    assert [c["name"] for c in both["images"][0]["classes"]] == ["bird 0", "bird 3"]
    several = sic.json("explain", out, image, bird_folders / "bird 1" / "003.png", "--out", tmp_path / "folder")
    assert len({entry["figure"] for entry in several["images"]}) == 2
    assert "no class" in sic.refuse("explain", out, image, "--class", "eagle", "--out", tmp_path / "x.png")
    assert "--out" in sic.refuse("explain", out, image, "--out", tmp_path / "x.doc")
    assert "would overwrite the image" in sic.refuse("explain", out, image, "--out", image)


@pytest.mark.slow
def test_verify_passes(sic_once_apart: Sic, backbone: str, trained: tuple[Path, Any]) -> None:
    """Compiling takes most of the time, and both kinds of layers are in the transformer with its convolutional stem."""
    out, _ = trained
    compiled = backbone == ATTENTION
    said = sic_once_apart.json("verify", out, "--limit", 12, "--compiled" if compiled else "--no-compiled")
    assert said["passed"] is True
    completeness = said["axioms"]["completeness"]
    assert completeness["residual_float32"] <= 1e-4
    assert completeness["residual_float64"] <= 1e-10
    assert said["failed"] == [] and set(said["axioms"]) == {
        "completeness",
        "weights_times_input",
        "weights",
        "constant",
        "sensitivity",
        "implementation_invariance",
        "dummy",
        "linearity",
        "matches",
        "partners",
        "maps_as_returned",
        "cases_as_returned",
        "support_contributions",
        "symmetry",
        "equivariance",
        "deletion",
    }
    ways = said["axioms"]["implementation_invariance"]
    assert any(name.startswith("compiled") for name in ways) == compiled


@pytest.mark.slow
def test_damaged_models_are_refused(sic: Sic, trained: tuple[Path, Any], bird_folders: Path, tmp_path: Path) -> None:
    out, _ = trained
    image = bird_folders / "bird 1" / "000.png"
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "truncated or edited" in sic.refuse("predict", copy, image)
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "truncated or edited" in sic.refuse("predict", copy, image)
    weights.unlink()
    assert "cannot be read" in sic.refuse("predict", copy, image)


@pytest.mark.slow
def test_resume_refuses_other_settings(sic: Sic, trained: tuple[Path, Any], bird_folders: Path) -> None:
    out, _ = trained
    assert "--epochs" in sic.refuse("train", bird_folders, "--out", out, "--resume", "--epochs", 9)
    assert "already holds a run" in sic.refuse("train", bird_folders, "--out", out)
    assert "already holds a run" in sic.refuse("train", out / "nowhere", "--out", out)  # said before anything is read
