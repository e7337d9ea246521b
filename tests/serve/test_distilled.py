"""A model without cases is served, too: a file of `sic distill`, such as the one that comes with the package."""

import base64
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image
from starlette.testclient import TestClient

from sic.backbones.distilled import PHOTOS
from sic.model import Model, load
from sic.serve.engine import Engine
from tests.cli.conftest import Sic, here
from tests.models import small_distilled
from tests.serve.conftest import TERMS, Uncased, address_of

V1 = "/api/v1"
SIC = Sic(here)


@pytest.fixture
def client(uncased: Uncased) -> Iterator[TestClient]:
    with uncased.client() as client:
        yield client


def test_it_says_what_it_is(client: TestClient, uncased: Uncased) -> None:
    told = client.get(f"{V1}/model").json()
    assert told["classes"] == uncased.model.classes and told["method"] == "bcos"
    assert (told["supports"], told["tests"], told["by_similarity"], told["exclusive"]) == (0, None, False, True)
    assert told["quality"]["lines"] == [
        "Its first choice is right for 60 % of the images.",
        "Its teacher's first choice is right for 70 % of them.",
    ]
    assert told["terms"] == TERMS


def test_a_file_names_the_images_that_it_was_tested_on(tmp_path: Path) -> None:
    tested = {"name": "ImageNet validation images", "images": 5000}
    file = small_distilled(
        tmp_path / "known.safetensors", top1={"student": 0.6, "teacher": 0.7}, tested_on=tested, teacher="resnet50"
    )
    told = Engine(load(file), "known", None).describe()
    assert told["quality"]["kind"] == "ImageNet validation images" and "5000 images" in told["quality"]["lines"][0]


def test_the_shipped_file_says_how_good_it_is() -> None:
    told = Engine(load(PHOTOS), PHOTOS, None).describe()
    assert "right for 6" in told["quality"]["lines"][0] and "ImageNet" in told["terms"]
    assert len(told["classes"]) == 1000


def test_whatever_needs_cases_is_not_there(client: TestClient) -> None:
    assert client.get("/").status_code == 200
    assert client.get(f"{V1}/supports").json()["supports"] == []
    missing = ["/cases", "/clinic", *(f"{V1}/{path}" for path in ("overview", "tests", "clinic", "supports/0/image"))]
    for path in missing:
        answer = client.get(path)
        assert answer.status_code == 404 and answer.json()["error"], path
    assert not any("clinic" in path for path in client.get(f"{V1}/openapi.json").json()["paths"])


def test_predictions_are_those_of_the_model(client: TestClient, uncased: Uncased) -> None:
    [told] = client.post(f"{V1}/predict", files={"image": uncased.image.read_bytes()}).json()["images"]
    expected = uncased.model.predict(uncased.image)
    assert (told["labels"], told["similar_case"]) == (expected.labels, expected.similar_case)
    assert told["probabilities"] == pytest.approx(expected.probabilities, rel=1e-5)
    assert told["evidence"] == [] and told["promised"] is False
    refused = client.post(f"{V1}/predict?promise=true", files={"image": uncased.image.read_bytes()})
    assert refused.status_code == 422 and "makes no promise" in refused.json()["error"]


@pytest.mark.parametrize("classes", [[], ["class 2", "class 4"]])
def test_serve_and_explain_say_the_same(
    client: TestClient, uncased: Uncased, tmp_path: Path, classes: list[str]
) -> None:
    chosen = [part for name in classes for part in ("--class", name)]
    [alone] = SIC.json("explain", uncased.file, uncased.image, "--out", tmp_path / "why.png", *chosen)["images"]
    query = "&".join(["maps=true", "pictures=true", "matches=true", *(f"class={name}" for name in classes)])
    files = {"image": (uncased.image.name, uncased.image.read_bytes())}
    [shown] = client.post(f"{V1}/explain?{query}", files=files).json()["images"]
    for field in ("name", "labels", "similar_case", "nearest", "bias", "size", "text"):
        assert shown[field] == alone[field], field
    assert shown["probabilities"] == pytest.approx(alone["probabilities"], rel=1e-5)
    wanted = uncased.model.explain(uncased.image, classes).classes
    for served, printed, expected in zip(shown["classes"], alone["classes"], wanted, strict=True):
        assert (served["name"], served["verdict"]) == (printed["name"], printed["verdict"])
        assert (served["cases"], printed["cases"]) == ([], [])
        for field in ("logit", "probability", "pixels", "constant"):
            assert served[field] == pytest.approx(printed[field], rel=1e-4, abs=1e-6), field
        drawn = np.frombuffer(base64.b64decode(served["map"]), "<f4").reshape(shown["size"])
        np.testing.assert_allclose(drawn, expected.contributions.maps.numpy(), atol=1e-6)
        assert drawn.astype(float).sum() + served["constant"] == pytest.approx(served["logit"], abs=1e-5)
        assert base64.b64decode(served["picture"]).startswith(b"\x89PNG")


def test_a_saved_explanation_speaks_of_no_cases(client: TestClient, uncased: Uncased) -> None:
    text = client.post(f"{V1}/share", files={"image": ("flower.png", uncased.image.read_bytes())}).text
    assert "flower.png" in text and "training image" not in text and "imilar" not in text
    assert text.count("data:image/webp;base64,") == 3


def test_a_network_that_is_not_traced_back_is_refused(tmp_path: Path) -> None:
    from sic import directory
    from sic.data import Preprocessing
    from sic.directory import Config

    config = Config("resnet_tiny", ["a", "b"], "single", Preprocessing(32, 32, "squash"), 1, 1.0, form="conventional")
    config.method, config.attribution = "blackbox", "grad-cam"
    Model(directory.build(config, 0), config, []).save(tmp_path / "model")
    said = SIC.refuse("serve", tmp_path / "model", "--port", "0")
    assert "--method sic and bcos" in said and "sic explain" in said


@pytest.mark.slow
def test_the_command_serves_the_shipped_file(tmp_path: Path) -> None:
    """As a process; it says what `sic explain photos` says."""
    photo = tmp_path / "china.png"
    Image.fromarray(load_sample_image("china.jpg")).save(photo)
    command = [sys.executable, "-m", "sic", "serve", PHOTOS, "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        request = urllib.request.Request(
            f"{address_of(server)}api/v1/explain", photo.read_bytes(), {"Content-Type": "image/png"}
        )
        with urllib.request.urlopen(request) as answer:
            [shown] = json.load(answer)["images"]
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=600)
    assert server.returncode == 0 and "Traceback" not in said
    [alone] = SIC.json("explain", PHOTOS, photo, "--out", tmp_path / "why.png")["images"]
    assert shown["nearest"] == alone["nearest"] == "palace"
    assert shown["probabilities"] == pytest.approx(alone["probabilities"], rel=1e-3, abs=1e-9)
    assert shown["classes"][0]["pixels"] == pytest.approx(alone["classes"][0]["pixels"], rel=1e-4)


def test_a_model_directory_without_cases_is_served_alike(uncased: Uncased, client: TestClient, tmp_path: Path) -> None:
    """As `sic train --method bcos` writes one."""
    uncased.model.save(tmp_path / "small")
    engine = Engine(load(tmp_path / "small"), "small", None)
    assert engine.describe() == client.get(f"{V1}/model").json()
    [alone] = engine.predict(["flower.png"], [engine.model.tensor(uncased.image)])
    [told] = client.post(f"{V1}/predict", files={"image": uncased.image.read_bytes()}).json()["images"]
    assert (alone["labels"], alone["evidence"]) == (told["labels"], told["evidence"])
    assert alone["probabilities"] == pytest.approx(told["probabilities"], rel=1e-4)
