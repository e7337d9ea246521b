"""How often images go through the network: once for an upload and `sic explain`, and the report embeds none twice."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sic.bcos.explanation import is_explaining
from sic.clinic import Clinic
from sic.methods.sic import Encoder
from sic.model import Model
from tests.cli.conftest import Sic, here
from tests.serve.conftest import Served, draw_splits, make_model, reopen

V1 = "/api/v1"
SIC = Sic(here)


def name(view: Tensor) -> str:
    return hashlib.sha256((view.detach() * 255).round().to(torch.uint8).cpu().numpy().tobytes()).hexdigest()


@dataclass
class Passes:
    """Views by their content: how often each was embedded, and how often passed to be explained."""

    embedded: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)

    def of(self, view: Tensor) -> int:
        return self.embedded[name(view)] + self.explained[name(view)]


@contextmanager
def counted() -> Iterator[Passes]:
    passes, forward = Passes(), Encoder.forward

    def counting(encoder: Encoder, images: Tensor) -> Tensor:
        counter = passes.explained if is_explaining() else passes.embedded
        counter.update(name(image) for image in images if image.any())  # zeros only measure how much memory is needed
        return forward(encoder, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "forward", counting)
        yield passes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = draw_splits(tmp_path_factory.mktemp("passes data"))
    return make_model(tmp_path_factory.mktemp("passes") / "model", root)


@pytest.fixture
def served(made: Served, tmp_path: Path) -> Served:
    """A copy without latents."""
    return reopen(shutil.copytree(made.folder, tmp_path / "model"))


def test_an_upload_is_one_forward_pass(served: Served) -> None:
    view = served.model.tensor(served.image)
    with served.client() as client:
        for place in ("explain", "explain?maps=1&pictures=1", "predict", "share"):
            with counted() as passes:
                answer = client.post(f"{V1}/{place}", files={"image": ("a.png", served.image.read_bytes())})
            assert answer.status_code == 200 and passes.of(view) == 1
        with counted() as passes:
            client.post(f"{V1}/explain", files={"image": ("a.png", served.image.read_bytes())})
        assert passes.explained.total() == 1  # what its supports are made of is known by now


@pytest.mark.usefixtures("undrawn")
def test_explain_is_one_forward_pass(served: Served, tmp_path: Path) -> None:
    image = served.image
    with counted() as passes:
        SIC.json("explain", served.folder, image, "--out", tmp_path / "why.png")
    assert passes.of(served.model.tensor(image)) == 1
    files = [sample.path for sample in served.tests.samples[:3]]
    with counted() as passes:
        SIC.json("explain", served.folder, *files, "--out", tmp_path / "many")
    assert [passes.of(served.model.tensor(file)) for file in files] == [1, 1, 1]


def supports(model: Model) -> list[str]:
    return [
        name(torch.from_numpy(s.image.copy()).permute(2, 0, 1) / 255) for s in model.supports if s.image is not None
    ]


@pytest.mark.parametrize("read_only", [False, True])
def test_the_report_embeds_no_image_twice(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    if read_only:
        monkeypatch.setattr("sic.latents.write_atomically", refuse)
    arguments = ["report", served.folder, "--out", tmp_path / "report.html", "--cases", 2]
    with counted() as passes:
        SIC.json(*arguments)
    clinic = Clinic(served.folder)
    own = [served.model.tensor(sample.path) for samples in clinic.images.splits.values() for sample in samples]
    assert set(passes.embedded) == set(map(name, own)), "all images of the run"
    assert set(passes.embedded.values()) == {1}
    # Once for its own picture, and once for the regions that match in the examples.
    assert all(passes.explained[one] <= 2 for one in supports(served.model))
    with counted() as again:
        SIC.json(*arguments)
    assert bool(again.embedded) == read_only, "the second time all latents are known"


def test_the_viewer_starts_from_what_is_known(served: Served) -> None:
    Clinic(served.folder)
    served = reopen(served.folder)
    with counted() as passes, served.client() as client:
        while client.get(f"{V1}/tests").json()["looked_at"] < len(served.tests.samples):
            pass
    assert not passes.embedded


def test_the_viewer_keeps_what_it_embeds(served: Served) -> None:
    with counted() as passes, served.client() as client:
        while client.get(f"{V1}/tests").json()["looked_at"] < len(served.tests.samples):
            pass
    assert set(passes.embedded.values()) == {1} and len(passes.embedded) == len(served.tests.samples)
    with counted() as passes:
        reopen(served.folder).model.predictions(served.tests.samples, own=True)
    assert not passes.embedded
