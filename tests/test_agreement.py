"""`predict`, `evaluate`, `report`, the clinic and the viewer say the same about the same images."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from sic.calibration import Calibration, Promise
from sic.clinic import Clinic
from sic.data.dataset import Task
from sic.report import gather
from sic.settings import Loss
from tests.cli.conftest import Sic, here
from tests.serve.conftest import Served, draw_splits, make_model, reopen

V1 = "/api/v1"
SIC = Sic(here)


@dataclass
class Said:
    """What one part of the program says about one image."""

    labels: list[str]
    similar_case: bool
    evidence: np.ndarray
    """By support."""


@dataclass
class Setting:
    """A model whose answers lie on both sides of 50 %, and what `sic predict` says about its test images."""

    served: Served
    expected: dict[str, Said]

    def agrees(self, others: dict[str, Said]) -> None:
        assert others.keys() == self.expected.keys()
        for name, one in self.expected.items():
            other = others[name]
            assert (other.labels, other.similar_case) == (one.labels, one.similar_case), name
            np.testing.assert_allclose(other.evidence, one.evidence, atol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("agreement data"))


@pytest.fixture(
    scope="module",
    # Every task with every loss, and both with and without a calibration.
    params=[
        *[("single", "bce"), ("multi", "ce")],
        *[("single", "bce", "calibrated"), ("single", "ce", "calibrated"), ("multi", "bce", "calibrated")],
    ],
    ids="-".join,
)
def setting(request: pytest.FixtureRequest, splits: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    task: Task
    loss: Loss
    task, loss, *calibrated = request.param
    served = make_model(tmp_path_factory.mktemp("agreement") / "model", splits, task, loss)
    if calibrated:
        served = _calibrated(served)
    paths = {str(sample.path): sample.id for sample in served.tests.samples}
    told = SIC.json("predict", served.folder, *paths)["images"]
    expected = {paths[entry["image"]]: _said(entry) for entry in told}
    assert len({said.similar_case for said in expected.values()}) == 2
    return Setting(served, expected)


def _calibrated(served: Served) -> Served:
    """The same model with other probabilities: some answers change."""
    model, samples = served.model, served.tests.samples
    plain = model.predictions(samples)
    best = plain.confidence.sort().values
    promise = Promise(best[len(best) // 2 :][:2].mean().item(), 0.05, 0.95, 100, 90, 1)
    place = len(best) * 3 // 4
    threshold = 0.0 if plain.loss == "ce" else best[place : place + 2].mean().item()
    for temperature in (1.1, 0.9, 1.3, 0.7, 0.5):
        calibration = Calibration(temperature, threshold, 100, promise)
        found = replace(plain, calibration=calibration)
        if not torch.equal(found.similar_case, plain.similar_case) and len(found.similar_case.unique()) == 2:
            break
    else:
        raise AssertionError("no calibration changes an answer")
    model.config.calibration = model.classifier.calibration = calibration
    model.save(served.folder)
    return reopen(served.folder)


def _said(entry: dict[str, Any]) -> Said:
    values = sorted((one["support"], one["value"]) for one in entry["evidence"])
    return Said(entry["labels"], entry["similar_case"], np.array([value for _, value in values]))


def _predictions(found: Any) -> dict[str, Said]:
    return {
        sample.id: Said(found.answer(row), bool(found.similar_case[row]), found.evidence[row].numpy())
        for row, sample in enumerate(found.samples)
    }


@pytest.fixture
def client(setting: Setting) -> Iterator[TestClient]:
    with setting.served.client() as client:
        yield client


def test_evaluate(setting: Setting, splits: Path) -> None:
    told = SIC.json("evaluate", setting.served.folder, "--only", "accuracy", "--device", "cpu")
    model, expected = setting.served.model, setting.expected
    truth = {sample.id: [model.classes[label] for label in sample.labels] for sample in setting.served.tests.samples}
    similar = np.mean([said.similar_case for said in expected.values()])
    assert told["images"] == len(expected) and told["accuracy"]["similar_case"] == pytest.approx(similar)
    right = np.mean([said.labels == truth[name] for name, said in expected.items()])
    assert told["accuracy"]["accuracy" if model.config.task == "single" else "exact_match"] == pytest.approx(right)
    for row in told["accuracy"]["per_class"]:
        found = [name for name in expected if row["class"] in truth[name]]
        recall = np.mean([row["class"] in expected[name].labels for name in found])
        assert row["recall"] == pytest.approx(recall)


def test_report(setting: Setting) -> None:
    model = setting.served.model
    page = gather(model, setting.served.folder, model.predictions(setting.served.tests.samples), examples=4)
    setting.agrees(_predictions(page.predictions))
    for group in page.groups:
        for case in group.examples:
            one = setting.expected[case.id]
            assert case.similar_case == one.similar_case and case.explanation.labels == one.labels
            for explained in case.explanation.classes:
                for shown in explained.cases:
                    assert shown.evidence == pytest.approx(one.evidence[shown.index], abs=1e-4)


def test_clinic(setting: Setting) -> None:
    clinic = Clinic(setting.served.folder)
    setting.agrees(_predictions(clinic.examined.predictions("test")))
    model = setting.served.model
    for index, support in enumerate(model.supports):
        relying = {one.id: one.evidence for one in clinic.relying_on(index) if one.split == "test"}
        expected = {
            name: said.evidence[index]
            for name, said in setting.expected.items()
            if said.similar_case and model.classes[support.label] in said.labels
        }
        assert relying == pytest.approx(expected, abs=1e-4)


def test_figures_of_an_edit_follow_the_rule(setting: Setting, tmp_path: Path) -> None:
    """An edit writes the figures of the new supports into `config.json`: as `sic evaluate` measures them."""
    import shutil

    folder = shutil.copytree(setting.served.folder, tmp_path / "edited")
    SIC.json("supports", folder, "drop", 0)
    told = SIC.json("evaluate", folder, "--only", "accuracy", "--device", "cpu")["accuracy"]
    from sic.directory import read_config

    written = read_config(folder)[0].figures["test"]
    assert written["similar_case"] == pytest.approx(told["similar_case"])
    score = "accuracy" if setting.served.model.config.task == "single" else "exact_match"
    assert written[score] == pytest.approx(told[score])


def test_serve(setting: Setting, client: TestClient) -> None:
    samples = setting.served.tests.samples
    uploads = {}
    for sample in samples:
        files = {"image": (sample.path.name, sample.path.read_bytes())}
        uploads[sample.id] = _said(client.post(f"{V1}/predict", files=files).json()["images"][0])
    setting.agrees(uploads)
    while (listed := client.get(f"{V1}/tests?limit=100").json())["looked_at"] < len(samples):
        pass
    for entry in listed["images"]:
        one = setting.expected[entry["name"]]
        assert (entry["answer"], entry["similar_case"]) == (one.labels, one.similar_case)
        assert entry["right"] == (one.labels == entry["truth"])


def test_viewer_and_clinic_name_the_same_reliance(setting: Setting, client: TestClient) -> None:
    clinic, samples = Clinic(setting.served.folder), setting.served.tests.samples
    while client.get(f"{V1}/tests").json()["looked_at"] < len(samples):
        pass
    for index in range(len(setting.served.model.supports)):
        told = client.get(f"{V1}/supports/{index}/relying").json()
        relying = {one.id: one.decisive for one in clinic.relying_on(index) if one.split == "test"}
        assert told["answers"] == len(relying) and told["needed"] == sum(relying.values())
        assert {image["name"]: image["needed"] for image in told["images"]}.items() <= relying.items()


@pytest.mark.usefixtures("undrawn")
def test_explain(setting: Setting, client: TestClient, tmp_path: Path) -> None:
    sample = setting.served.tests.samples[0]
    one = setting.expected[sample.id]
    alone = SIC.json("explain", setting.served.folder, sample.path, "--out", tmp_path / "why.png")["images"][0]
    shown = client.post(f"{V1}/explain?test=0").json()["images"][0]
    for told in (alone, shown):
        assert (told["labels"], told["similar_case"]) == (one.labels, one.similar_case)


def test_what_is_not_promised_is_refused(setting: Setting, client: TestClient) -> None:
    served = setting.served
    paths = {str(sample.path): sample.id for sample in served.tests.samples}
    promise = served.model.config.calibration.promise
    files = [("image", (Path(path).name, Path(path).read_bytes())) for path in [*paths][:16]]
    if promise is None:
        assert "makes no promise" in SIC.refuse("predict", served.folder, *paths, "--promise")
        refused = client.post(f"{V1}/predict?promise=true", files=files)
        assert refused.status_code == 422 and "makes no promise" in refused.json()["error"]
        assert not any(entry["promised"] for entry in client.post(f"{V1}/predict", files=files).json()["images"])
        return
    told = SIC.json("predict", served.folder, *paths, "--promise")["images"]
    for query, alone in (("?promise=true", told), ("", SIC.json("predict", served.folder, *paths)["images"])):
        served_answers = client.post(f"{V1}/predict{query}", files=files).json()["images"]
        for field in ("labels", "promised", "similar_case"):
            assert [entry[field] for entry in served_answers] == [entry[field] for entry in alone[:16]]
    explained = client.post(f"{V1}/explain", files=files[:6]).json()["images"]
    assert [entry["promised"] for entry in explained] == [entry["promised"] for entry in told[:6]]
    assert client.get(f"{V1}/model").json()["promise"] == str(promise)
    covered = served.model.predictions(served.tests.samples).promised.tolist()
    assert [entry["promised"] for entry in told] == covered and len(set(covered)) == 2
    for entry in told:
        assert entry["labels"] == (setting.expected[paths[entry["image"]]].labels if entry["promised"] else [])
    shown = SIC("predict", served.folder, *paths, "--promise").stdout
    assert "refused" in shown and "5%" in shown
