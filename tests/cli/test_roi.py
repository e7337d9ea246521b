"""`--roi` from training to predicting."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sic as library
from sic.data import open as open_data
from tests.cli.conftest import Sic

pytestmark = pytest.mark.slow


def cub(root: Path) -> Path:
    """Two kinds in the layout of CUB-200-2011, their colour inside the box, noise around it."""
    rng = np.random.default_rng(0)
    lines: dict[str, list[str]] = {name: [] for name in ("images", "image_class_labels", "train_test_split")}
    boxes = []
    for number in range(1, 37):
        label, file = number % 2 + 1, f"{number % 2 + 1:03d}.Kind/{number}.png"
        pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        pixels[10:30, 8:28] = rng.integers(0, 60, (20, 20, 3)) + np.eye(3)[label] * 180
        (root / "images" / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / "images" / file)
        lines["images"].append(f"{number} {file}")
        lines["image_class_labels"].append(f"{number} {label}")
        lines["train_test_split"].append(f"{number} {int(number <= 28)}")
        boxes.append(f"{number} 8.0 10.0 20.0 20.0")
    lines |= {"classes": ["1 001.Green_kind", "2 002.Blue_kind"], "bounding_boxes": boxes}
    for name, content in lines.items():
        (root / f"{name}.txt").write_text("\n".join(content))
    return root


def test_a_model_of_cut_images(sic: Sic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIC_CACHE", str(tmp_path / "cache"))
    data, out = cub(tmp_path / "CUB"), tmp_path / "model"
    flags = ["--epochs", 2, "--backbone", "resnet_tiny", "--size", 32, "--batch-size", 8, "--roi"]
    said = sic.json("train", data, "--out", out, *flags)
    assert said["measured_on"] == "test"
    assert json.loads((out / "config.json").read_text())["data"]["roi"] is True
    assert "cropped to its bounding box" in (out / "README.md").read_text()
    model = library.load(out)
    # Supports, test images and what the run can be opened with again: all are cut.
    for support in model.supports:
        with Image.open(data / support.source) as whole:
            expected = model.config.preprocessing(whole.crop((8, 10, 28, 30)))
        assert np.array_equal(support.image, expected)
    opened = open_data(**json.loads((out / "run.json").read_text())["data"]["opened_with"])
    test = opened.splits["test"]
    right = [model.predict(s.path).labels == [opened.classes[s.labels[0]]] for s in test]
    assert said["figures"]["test"]["accuracy"] == pytest.approx(np.mean(right))
    # Evaluation, on its own data and on data that is named; what has no boxes is taken as it is.
    own, named = (sic.json("evaluate", out, *where, "--only", "accuracy")["accuracy"] for where in ([], [data]))
    assert own == named and own["accuracy"] == said["figures"]["test"]["accuracy"]
    assert "are not cropped" in sic("evaluate", out, data / "images", "--only", "accuracy", code=1).stderr
    # A file of that data is cut as well; of any other, nobody knows where.
    whole = data / test[0].id
    predicted = sic("predict", out, whole, "--json")
    first = json.loads(predicted.stdout)["images"][0]
    assert first["image"] == str(whole) and first["probabilities"] == model.predict(test[0].path).probabilities
    assert first["probabilities"] != model.predict(whole).probabilities and "no box" not in predicted.stderr
    Image.open(whole).save(tmp_path / "other.png")
    done = sic("predict", out, tmp_path / "other.png", "--json")
    assert json.loads(done.stdout)["images"][0]["probabilities"] == model.predict(whole).probabilities
    assert "no box for" in done.stderr
    explained = sic.json("explain", out, whole, "--out", tmp_path / "why.png")["images"][0]
    assert first["probabilities"][explained["classes"][0]["name"]] == pytest.approx(
        explained["classes"][0]["probability"]
    )
    assert "--roi" in sic.refuse("train", data, "--out", out, "--resume", "--no-roi")
