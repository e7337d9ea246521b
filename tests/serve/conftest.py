"""A small model on disk with its data beside it, made without training, and servers for it."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from starlette.testclient import TestClient

import sic.data
from sic import directory
from sic.data import Preprocessing
from sic.data.dataset import Task
from sic.directory import Config
from sic.model import Model, load
from sic.serve.app import create_app
from sic.serve.clinic import ServedClinic
from sic.serve.decoder import Decoder, Upload
from sic.serve.engine import Engine, HeldOutImages
from sic.serve.gateway import Guard, configuration
from sic.serve.limits import Check, Limits
from sic.settings import Loss
from sic.supports import Support, select
from tests.conftest import draw_folders
from tests.models import settle, small_distilled

SIZE, CLASSES, SUPPORTS = 32, 4, 3
SQUASHED = Preprocessing(SIZE, SIZE, "squash")
TERMS = "Ask the hospital."


class LastingDecoder(Decoder):
    """Its process outlives a server that ends: it is the same for all tests, and takes a third of a second to start."""

    decoding = False

    def __call__(self, upload: Upload, check: Check) -> Image.Image:
        self.decoding = True
        try:
            return super().__call__(upload, check)
        finally:
            self.decoding = False

    def close(self) -> None:
        if self.decoding:
            super().close()


lasting_decoder = cache(LastingDecoder)


def client_of(app: Callable[[], Guard]) -> TestClient:
    with patch("sic.serve.app.Decoder", lasting_decoder):
        return TestClient(app(), base_url="http://localhost")


@dataclass
class Served:
    """A model directory, loaded, with the files of its test set."""

    folder: Path
    model: Model
    tests: HeldOutImages

    def app(self, limits: Limits | None = None, token: str | None = None, edits: bool = True) -> Guard:
        engine = Engine(self.model, "small", self.tests)
        return create_app(engine, ServedClinic(self.folder, engine, edits), limits, token, frozenset(["sic.example"]))

    def client(self, limits: Limits | None = None, token: str | None = None, edits: bool = True) -> TestClient:
        return client_of(lambda: self.app(limits, token, edits))

    @cached_property
    def image(self) -> Path:
        """A test image that has an answer."""
        paths = (sample.path for sample in self.tests.samples)
        return next(path for path in paths if self.model.predict(path).similar_case)


@dataclass
class Uncased:
    """A model without cases, and a photograph."""

    file: Path
    model: Model
    image: Path

    def app(self) -> Guard:
        return create_app(Engine(self.model, "small", None), None)

    def client(self) -> TestClient:
        return client_of(self.app)


def draw_splits(root: Path) -> Path:
    """train, val and test of class folders, from one drawing of birds."""
    drawn = draw_folders(root / "all", CLASSES, 24, SIZE)
    for folder in sorted(drawn.iterdir()):
        for number, file in enumerate(sorted(folder.iterdir())):
            split = "train" if number < 12 else "val" if number < 18 else "test"
            (root / split / folder.name).mkdir(parents=True, exist_ok=True)
            file.rename(root / split / folder.name / file.name)
    shutil.rmtree(drawn)
    return root


def make_model(
    folder: Path,
    root: Path,
    task: Task = "single",
    loss: Loss = "bce",
    preprocessing: Preprocessing = SQUASHED,
) -> Served:
    """Random weights, supports chosen as in training; T such that answers lie on both sides of 50 %."""
    data = sic.data.open(root)
    config = Config("resnet_tiny", list(data.classes), task, preprocessing, SUPPORTS, 1.0, latent=16, loss=loss)
    torch.manual_seed(0)
    classifier = directory.build(config, CLASSES * SUPPORTS)
    pixels = [preprocessing(sic.data.read_image(sample.path)) for sample in data.splits["train"]]
    views = torch.stack([sic.data.to_tensor(one) for one in pixels])
    settle(classifier, views)
    with torch.no_grad():
        latents = classifier.encoder(views)
        own: dict[int, list[int]] = {}
        for row, sample in enumerate(data.splits["train"]):
            own.setdefault(sample.labels[0], []).append(row)
        rows, labels = select(latents.numpy(), own, SUPPORTS)
        classifier.set_supports(latents[torch.from_numpy(rows)], torch.from_numpy(labels))
        evidence = classifier.logits(classifier.evidence(latents)) - classifier.bias
    config.temperature = classifier.temperature = _temperature(evidence, classifier.bias, loss)
    supports = [
        Support(int(label), data.splits["train"][row].id, pixels[row]) for row, label in zip(rows, labels, strict=True)
    ]
    Model(classifier, config, supports).save(folder)
    record = {
        "data": {"opened_with": data.opened_with},
        "train": [sample.id for sample in data.splits["train"]],
        "validation": [sample.id for sample in data.splits["val"]],
        "skipped": [],
    }
    (folder / "run.json").write_text(json.dumps(record))
    return reopen(folder)


def _temperature(evidence: torch.Tensor, bias: float, loss: Loss) -> float:
    """At which the best probability of half of the images is above 50 %; `evidence`: of classes, at T = 1."""
    if loss == "bce":
        return evidence.max(dim=1).values.median().item() / -bias
    candidates = torch.logspace(-4, 2, 200).tolist()
    return min(candidates, key=lambda t: abs((evidence / t).softmax(dim=1).amax(dim=1).median().item() - 0.5))


def reopen(folder: Path) -> Served:
    model = load(folder)
    return Served(folder, model, HeldOutImages.find(model))


@pytest.fixture(scope="session")
def bird_splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("served data"))


@pytest.fixture(scope="session")
def served(bird_splits: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return make_model(tmp_path_factory.mktemp("served") / "small", bird_splits)


@pytest.fixture(scope="session")
def served_multi(bird_splits: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The same as a model of several labels per image."""
    return make_model(tmp_path_factory.mktemp("served") / "several", bird_splits, "multi")


@pytest.fixture(scope="session")
def uncased(tmp_path_factory: pytest.TempPathFactory) -> Uncased:
    folder = tmp_path_factory.mktemp("uncased")
    origin = {"teacher": "resnet50 (own)", "top1": {"student": 0.6, "teacher": 0.7}, "terms": TERMS}
    file = small_distilled(folder / "small.safetensors", **origin)
    Image.fromarray(load_sample_image("flower.jpg")).save(folder / "flower.png")
    return Uncased(file, load(file), folder / "flower.png")


@pytest.fixture
def client(served: Served) -> Iterator[TestClient]:
    with served.client() as client:
        yield client


@pytest.fixture
def own_copy(served: Served, tmp_path: Path) -> Served:
    """A model that a test may change."""
    shutil.copytree(served.folder, tmp_path / "small")
    return reopen(tmp_path / "small")


@pytest.fixture
def running(own_copy: Served) -> Iterator[tuple[Served, str]]:
    """A real server on a free port of this machine, and its address."""
    with listening(own_copy.app()) as address:
        yield own_copy, address


@contextmanager
def listening(app: Guard) -> Iterator[str]:
    """Serve an application; gives its address."""
    import uvicorn

    server = uvicorn.Server(configuration(app, Limits(), host="127.0.0.1", port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4").reshape(SIZE, SIZE)


def address_of(server: subprocess.Popen[str]) -> str:
    """The address that `sic serve --json` prints once it listens."""
    assert server.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = server.stdout.readline()
        assert line, server.communicate()[1]
        text += line
    return str(json.loads(text)["address"])
