"""Editing supports over HTTP: what is told is what the model then does, and undo leads back."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import sic
from sic.clinic import Edit
from sic.directory import stamp
from sic.serve.app import create_app
from sic.serve.clinic import ServedClinic
from sic.serve.engine import Engine
from tests.serve.conftest import Served, client_of

CLINIC = "/api/v1/clinic"


def opened(client: TestClient) -> Any:
    assert client.post(f"{CLINIC}/open", json={}).status_code == 200
    deadline = time.monotonic() + 600
    while (state := client.get(CLINIC).json())["state"] == "opening":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert state["state"] == "open", state
    return state


def measured(folder: Path) -> float:
    """Accuracy on the validation images of the model that is on disk now, one image after the other."""
    model, validation = sic.load(folder), sic.data.open(_data(folder)).splits["val"]
    right = [model.predict(sample.path).labels[0] == model.classes[sample.labels[0]] for sample in validation]
    return sum(right) / len(right)


def _data(folder: Path) -> str:
    import json

    return str(json.loads((folder / "run.json").read_text())["data"]["opened_with"]["where"])


def test_drop_and_undo(own_copy: Served) -> None:
    with own_copy.client() as client:
        before = opened(client)
        assert before["figures"]["accuracy"] == pytest.approx(measured(own_copy.folder))
        previews = {}
        for one in before["supports"]:
            edit = {"action": "drop", "support": one["index"], "source": one["source"]}
            previews[one["index"]] = client.post(f"{CLINIC}/preview", json=edit).json()
        number = next(n for n, p in previews.items() if p["after"]["accuracy"] != p["before"]["accuracy"])
        assert client.get(CLINIC).json() == before  # nothing happened yet
        source = before["supports"][number]["source"]
        image = own_copy.image.read_bytes()
        answer = client.post("/api/v1/predict", files={"image": image}).json()
        outcome = client.post(f"{CLINIC}/apply", json={"action": "drop", "support": number, "source": source}).json()
        assert outcome == previews[number]
        after = client.get(CLINIC).json()
        assert after["figures"]["accuracy"] == pytest.approx(outcome["after"]["accuracy"])
        assert measured(own_copy.folder) == pytest.approx(outcome["after"]["accuracy"])
        assert outcome["removed"] == [source] and source not in [one["source"] for one in after["supports"]]
        assert len(client.get("/api/v1/supports").json()["supports"]) == len(before["supports"]) - 1
        told = client.post("/api/v1/predict", files={"image": image}).json()["images"][0]
        assert told["probabilities"] == pytest.approx(sic.load(own_copy.folder).predict(own_copy.image).probabilities)
        back = client.post(f"{CLINIC}/undo", json={}).json()
        assert back["added"] == [source]
        restored = client.get(CLINIC).json()
        assert restored["supports"] == before["supports"] and restored["figures"] == before["figures"]
        assert restored["can_undo"] == 0 and restored["history"][0]["undone"]
        assert client.post("/api/v1/predict", files={"image": image}).json() == answer
        assert client.post(f"{CLINIC}/undo", json={}).status_code == 422


def test_edits_from_elsewhere_are_taken_over(own_copy: Served) -> None:
    """`sic supports` in a terminal while the server runs: it must not go on with cases that were taken out."""
    with own_copy.client() as client:
        first = opened(client)["supports"]
        sic.Clinic(own_copy.folder).apply(Edit.drop(0))
        left = [one["source"] for one in client.get("/api/v1/supports").json()["supports"]]
        assert left == [one["source"] for one in first][1:]
        told = client.post("/api/v1/predict", files={"image": own_copy.image.read_bytes()}).json()["images"][0]
        assert told["probabilities"] == pytest.approx(sic.load(own_copy.folder).predict(own_copy.image).probabilities)
        assert client.get(CLINIC).json()["state"] == "closed"
        assert [one["source"] for one in opened(client)["supports"]] == left
        assert client.post(f"{CLINIC}/undo", json={}).json()["added"] == [first[0]["source"]]


def test_edits_while_the_model_was_loaded_are_taken_over(own_copy: Served) -> None:
    """An edit between reading the model and serving it: the server knows which version it has read."""
    known = stamp(own_copy.folder)
    number = len(own_copy.model.supports)
    sic.Clinic(own_copy.folder).apply(Edit.drop(0))
    engine = Engine(own_copy.model, "small", own_copy.tests)
    with client_of(lambda: create_app(engine, ServedClinic(own_copy.folder, engine, known=known))) as client:
        assert len(client.get("/api/v1/supports").json()["supports"]) == number - 1


def test_edits_while_the_clinic_opens_are_taken_over(own_copy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with: list[int] = []

    def open_clinic(folder: Path, **options: Any) -> sic.Clinic:
        clinic = sic.Clinic(folder, **options)
        opened_with.append(len(clinic.examined.supports))
        if len(opened_with) == 1:
            sic.Clinic(folder).apply(Edit.drop(0))
        return clinic

    monkeypatch.setattr("sic.serve.clinic.Clinic", open_clinic)
    with own_copy.client() as client:
        number = len(own_copy.model.supports)
        listed = opened(client)["supports"]
        assert opened_with == [number, number - 1] and len(listed) == number - 1


def test_another_model_in_its_place_is_refused(own_copy: Served) -> None:
    with own_copy.client() as client:
        model = sic.load(own_copy.folder)
        next(model.sic.encoder.parameters()).data.mul_(2)
        model.save(own_copy.folder)
        refused = client.get("/api/v1/supports")
        assert refused.status_code == 409 and "restart sic serve" in refused.json()["error"]


def test_a_model_that_was_moved_goes_on_answering(own_copy: Served) -> None:
    with own_copy.client() as client:
        before = client.get("/api/v1/supports").json()
        own_copy.folder.rename(own_copy.folder.with_name("elsewhere"))
        assert client.get("/api/v1/supports").json() == before


def test_replace_pin_and_reselect(own_copy: Served) -> None:
    with own_copy.client() as client:
        first = opened(client)["supports"][0]
        found = client.get(f"{CLINIC}/candidates", params={"class": first["label"], "near": 0}).json()
        assert found["images"][0]["id"] == first["source"] and found["images"][0]["support"]
        other = next(image["id"] for image in found["images"] if not image["support"])
        assert client.get(f"{CLINIC}/image", params={"id": other}).headers["content-type"] == "image/png"
        picture = client.get("/api/v1/supports/0/picture").content
        alike = client.get("/api/v1/overview").json()["support_similarity"]
        edit = {"action": "replace", "support": 0, "source": first["source"], "image": other}
        outcome = client.post(f"{CLINIC}/apply", json=edit).json()
        assert outcome["added"] == [other] and outcome["removed"] == [first["source"]]
        assert client.get("/api/v1/supports/0/picture").content != picture
        assert client.get("/api/v1/overview").json()["support_similarity"] != alike
        stale = client.post(f"{CLINIC}/apply", json=edit)
        assert stale.status_code == 409 and "changed" in stale.json()["error"]
        now = next(one for one in client.get(CLINIC).json()["supports"] if one["source"] == other)
        edit = {"action": "pin", "support": now["index"], "source": other}
        assert client.post(f"{CLINIC}/apply", json=edit).status_code == 200
        assert client.get(CLINIC).json()["supports"][now["index"]]["pinned"]
        assert client.post(f"{CLINIC}/apply", json={"action": "reselect", "label": first["label"]}).status_code == 200
        assert other in [one["source"] for one in client.get(CLINIC).json()["supports"]]


def test_wrong_edits_get_a_sentence(own_copy: Served) -> None:
    with own_copy.client() as client:
        early = client.post(f"{CLINIC}/apply", json={"action": "drop", "support": 0})
        assert early.status_code == 409 and "not open" in early.json()["error"]
        opened(client)
        for edit in (
            {"action": "drop"},
            {"action": "drop", "support": 99},
            {"action": "replace", "support": 0, "image": "../../../etc/passwd"},
            {"action": "reselect", "label": "dodo"},
            {"action": "explode", "support": 0},
            {"support": 0},
            [],
        ):
            answer = client.post(f"{CLINIC}/apply", json=edit)
            assert answer.status_code == 422 and answer.json()["error"].endswith("."), edit
        assert client.post(f"{CLINIC}/apply", data={"action": "drop"}).status_code == 415


def test_others_may_not_edit(own_copy: Served) -> None:
    with own_copy.client(edits=False) as client:
        assert client.get(CLINIC).json()["allowed"] is False
        for path, content in (("open", {}), ("apply", {"action": "drop", "support": 0}), ("undo", {})):
            assert client.post(f"{CLINIC}/{path}", json=content).status_code == 403


def test_without_its_data_the_clinic_says_why(own_copy: Served) -> None:
    record = (own_copy.folder / "run.json").read_text()
    (own_copy.folder / "run.json").write_text(record.replace(_data(own_copy.folder), "/nowhere/at all"))
    shutil.rmtree(own_copy.folder / "latents.safetensors", ignore_errors=True)
    with own_copy.client() as client:
        client.post(f"{CLINIC}/open", json={})
        deadline = time.monotonic() + 600
        while (state := client.get(CLINIC).json())["state"] == "opening" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state["state"] == "failed" and "/nowhere/at all" in state["error"]


def test_numbers_that_have_moved_do_not_hit_another_support(own_copy: Served) -> None:
    with own_copy.client() as client:
        first, second, *_ = opened(client)["supports"]
        assert client.post(f"{CLINIC}/preview", json={"action": "drop", "support": 0}).status_code == 200
        assert client.post(f"{CLINIC}/apply", json={"action": "drop", "support": 0}).json()["removed"] == [
            first["source"]
        ]
        late = client.post(f"{CLINIC}/apply", json={"action": "drop", "support": 0})
        assert late.status_code == 409 and "numbers have changed" in late.json()["error"]
        for support in (0, "0"):
            edit = {"action": "pin", "support": support, "source": first["source"]}
            assert client.post(f"{CLINIC}/apply", json=edit).status_code == 409
        named = client.post(f"{CLINIC}/apply", json={"action": "pin", "support": second["source"]})
        assert named.status_code == 200
        now = client.get(CLINIC).json()["supports"]
        assert [one["source"] for one in now if one["pinned"]] == [second["source"]]
