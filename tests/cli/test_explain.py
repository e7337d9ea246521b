"""`sic explain` on many files: results appear as they are done, and one bad file spoils nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from sic.cli.console import Results
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.explain import contributions
from sic.methods import NWHead
from sic.model import Model
from sic.supports import Support
from tests.cli.conftest import Sic
from tests.test_directory import CLASSES, model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "a model"
    model().save(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "some images"
    for number in range(3):
        (root / str(number)).mkdir(parents=True)
        Image.new("RGB", (20, 20), (40 * number, 90, 200)).save(root / str(number) / "same name.png")
    (root / "1" / "words.png").write_text("not an image")
    return root


@pytest.mark.usefixtures("undrawn")
def test_a_folder_with_a_file_that_is_no_image(
    sic: Sic, saved: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "ON_CPU", 2)
    said = sic.json("explain", saved, folder, "--out", tmp_path / "why", code=1)
    found = {entry["image"]: entry for entry in said["images"]}
    assert len(found) == 4
    assert found.pop(str(folder / "1" / "words.png"))["error"].endswith("cannot be used: not an image.")
    assert {Path(entry["figure"]).name for entry in found.values()} == {
        "0001-same name.png",
        "0002-same name.png",
        "0004-same name.png",
    }
    for entry in found.values():
        assert Path(entry["figure"]).is_file() and abs(entry["residual"]) < 1e-4
        assert entry["labels"][0] in CLASSES
    alone = sic.json("explain", saved, folder / "2" / "same name.png", "--out", tmp_path / "one.png")["images"][0]
    together = found[str(folder / "2" / "same name.png")]
    assert alone["classes"][0]["logit"] == pytest.approx(together["classes"][0]["logit"], rel=1e-5)
    (tmp_path / "why.2").mkdir()
    assert sic("explain", saved, folder, "--out", tmp_path / "why.2", code=1).stdout.count("Figure: ") == 3


def test_one_file_that_is_no_image(sic: Sic, saved: Path, folder: Path, tmp_path: Path) -> None:
    words = folder / "1" / "words.png"
    assert f"{words} cannot be used: not an image." in sic.refuse("explain", saved, words, "--out", tmp_path / "x.png")


def test_results_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    for entries in ([], [{"a": "ü"}], [{"a": 1}, {"b": [2]}]):
        results, said = Results({"model": "m"}, "images", as_json=True), ""
        for entry in entries:
            results.add(entry, "words")
            said += (new := capsys.readouterr().out)
            assert json.dumps(entry, ensure_ascii=False) in new
        results.close()
        assert json.loads(said + capsys.readouterr().out) == {"model": "m", "images": entries}
    results = Results({}, "images", as_json=False)
    results.add({"a": 1}, "words")
    results.add({"a": 1}, None)
    results.close()
    assert capsys.readouterr().out == "words\n"


@pytest.mark.usefixtures("undrawn")
def test_matches_and_contrasts(sic: Sic, saved: Path, folder: Path, tmp_path: Path) -> None:
    image, out = folder / "2" / "same name.png", tmp_path / "why.svg"
    (plain,) = sic.json("explain", saved, image, "--out", out, "--no-matches")["images"]
    assert "regions" not in plain["classes"][0] and "contrast" not in plain
    (found,) = sic.json("explain", saved, image, "--out", out)["images"]
    (explained,) = found["classes"]
    total = sum(part["evidence"] for part in explained["regions"])
    assert total + found["bias"] == pytest.approx(explained["logit"], abs=1e-4)
    predicted = explained["name"]
    for other in CLASSES:
        (told,) = sic.json("explain", saved, image, "--out", out, "--versus", other)["images"]
        first, second = told["classes"]
        contrast = told["contrast"]
        assert contrast["class"] == first["name"] == predicted
        assert contrast["versus"] == second["name"] != predicted
        assert other in (first["name"], second["name"])
        difference = sum(part["difference"] for part in contrast["regions"])
        assert difference == pytest.approx(first["logit"] - second["logit"], abs=1e-4)
        assert f"{predicted} against {second['name']}: the scores differ by" in told["text"]
        assert ("is the best class itself" in told["text"]) == (other == predicted)
    same = sic.refuse("explain", saved, image, "--versus", other, "--class", other, "--out", out)
    assert f"{other} cannot be compared with itself" in same
    several = ("--class", CLASSES[0], "--class", CLASSES[1])
    assert "name one class" in sic.refuse("explain", saved, image, "--versus", CLASSES[1], *several, "--out", out)
    assert "has no class 'none'" in sic.refuse("explain", saved, image, "--versus", "none", "--out", out)


def test_what_is_specific_to_a_class(sic: Sic, folder: Path, tmp_path: Path) -> None:
    strong = model()
    strong.config.temperature = strong.sic.temperature = 1e-4
    saved, image, out = tmp_path / "model", folder / "2" / "same name.png", tmp_path / "why.svg"
    strong.save(saved)
    several = [part for name in CLASSES for part in ("--class", name)]
    (every,) = sic.json("explain", saved, image, "--out", out, *several, "--no-matches")["images"]
    assert "specific" not in every["classes"][0] and "than for the average class" not in out.read_text()
    mean = sum(one["logit"] for one in every["classes"]) / len(CLASSES)
    (found,) = sic.json("explain", saved, image, "--out", out, "--specific")["images"]
    (explained,) = found["classes"]
    specific = explained["specific"]
    assert specific["value"] == pytest.approx(explained["logit"] - mean, abs=1e-3) and specific["value"] > 0.1
    assert specific["pixels"] + specific["constant"] == pytest.approx(specific["value"], abs=1e-3)
    assert explained["pixels"] + explained["constant"] == pytest.approx(explained["logit"], abs=1e-3)
    assert f"what is specific to {explained['name']}" in found["text"]
    assert f"the difference of {specific['value']:.2f}" in found["text"]
    labels = out.read_text()  # names of glyphs are in comments
    assert "than for the average class" in labels and "raises the score more than" in labels


def test_methods_without_specific_maps_refuse(sic: Sic, folder: Path, tmp_path: Path) -> None:
    how = {"method": "nwhead", "form": "conventional", "loss": "ce"}
    config = replace(Config("resnet_tiny", ["a", "b"], "single", Preprocessing(16, 16), 1, 1.0, latent=8), **how)
    cases = [Support(label, f"{label}.png", None) for label in (0, 1)]
    classifier = build(config, 2).eval()
    assert isinstance(classifier, NWHead)
    classifier.set_supports(torch.rand(2, 8), torch.tensor([0, 1]))
    Model(classifier, config, cases).save(tmp_path / "model")
    said = sic.refuse("explain", tmp_path / "model", folder / "2", "--specific", "--out", tmp_path / "why.png")
    assert "Models of --method nwhead have no maps that are specific to a class" in said
