"""The HTTP interface gives the same numbers as the Python interface, and says what it gives."""

import base64
import io
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from sic.data import Preprocessing
from sic.explain import support_contributions
from sic.explain.prose import match_sentence
from tests.serve.conftest import SIZE, Served, floats, make_model

V1 = "/api/v1"


def send(client: TestClient, path: str, served: Served, **files: Any) -> Any:
    answer = client.post(f"{V1}/{path}", files=files or {"image": ("bird.png", served.image.read_bytes())})
    assert answer.status_code == 200, answer.text
    return answer


def all_looked_at(client: TestClient) -> None:
    deadline = time.monotonic() + 600
    while True:
        page = client.get(f"{V1}/tests?limit=1").json()
        if page["looked_at"] == page["of"]:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_predictions_are_those_of_the_model(client: TestClient, served: Served) -> None:
    paths = [sample.path for sample in served.tests.samples[:5]]
    answer = client.post(f"{V1}/predict", files=[("image", (path.name, path.read_bytes())) for path in paths]).json()
    assert [image["name"] for image in answer["images"]] == [path.name for path in paths]
    for image, path in zip(answer["images"], paths, strict=True):
        expected = served.model.predict(path)
        assert image["labels"] == expected.labels
        assert image["similar_case"] == expected.similar_case
        assert image["probabilities"] == pytest.approx(expected.probabilities, rel=1e-5)
        assert image["nearest"] == max(expected.probabilities, key=lambda name: expected.probabilities[name])
        ranked = {(evidence.support, evidence.source): evidence.value for evidence in expected.evidence}
        assert {(e["support"], e["source"]): e["value"] for e in image["evidence"]} == pytest.approx(ranked, rel=1e-4)


def test_an_image_may_be_the_body_itself(client: TestClient, served: Served) -> None:
    data = served.image.read_bytes()
    in_form = send(client, "predict", served).json()["images"][0]
    as_body = client.post(f"{V1}/predict", content=data, headers={"Content-Type": "image/png"}).json()["images"][0]
    assert as_body["probabilities"] == in_form["probabilities"]


def test_maps_are_raw_and_add_up_to_the_score(client: TestClient, served: Served) -> None:
    answer = send(client, "explain?maps=true", served).json()["images"][0]
    expected = served.model.explain(served.image)
    assert answer["text"].split(".")[0] == expected.text.split(".")[0]
    for found, wanted in zip(answer["classes"], expected.classes, strict=True):
        drawn = floats(base64.b64decode(found["map"]))
        np.testing.assert_allclose(drawn, wanted.contributions.maps.numpy(), atol=1e-6)
        assert drawn.astype(np.float64).sum() + found["constant"] == pytest.approx(found["logit"], abs=1e-5)
        parts = np.zeros((SIZE, SIZE))
        for case, other in zip(found["cases"], wanted.cases, strict=True):
            assert case["support"] == other.index
            assert case["evidence"] == pytest.approx(other.evidence, rel=1e-5)
            part = floats(base64.b64decode(case["map"]))
            np.testing.assert_allclose(part, other.evidence_map.numpy(), atol=1e-6)
            assert part.astype(np.float64).sum() == pytest.approx(case["pixels"], abs=1e-5)
            parts += part
        np.testing.assert_allclose(parts, drawn, atol=1e-5)


def test_maps_and_pictures_come_only_when_asked_for(client: TestClient, served: Served) -> None:
    plain = send(client, "explain", served).json()["images"][0]
    assert plain["image"] is None and plain["classes"][0]["map"] is None and plain["classes"][0]["picture"] is None
    full = send(client, "explain?pictures=true", served).json()["images"][0]
    view = np.asarray(Image.open(io.BytesIO(base64.b64decode(full["image"]))))
    wanted = (served.model.tensor(served.image) * 255).round().byte().permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(view, wanted)
    assert Image.open(io.BytesIO(base64.b64decode(full["classes"][0]["picture"]))).mode == "RGBA"


def test_other_classes_are_explained_on_request(client: TestClient, served: Served) -> None:
    names = [served.model.classes[2], served.model.classes[0]]
    query = "&".join(f"class={name}" for name in names)
    answer = send(client, f"explain?{query}", served).json()["images"][0]
    assert [found["name"] for found in answer["classes"]] == names
    unknown = client.post(f"{V1}/explain?class=dodo", files={"image": served.image.read_bytes()})
    assert unknown.status_code == 422 and "dodo" in unknown.json()["error"]


def test_regions_that_match_come_with_a_sentence(client: TestClient, served: Served) -> None:
    plain = send(client, "explain", served).json()["images"][0]["classes"][0]
    assert plain["words"] is None and plain["regions"] is None
    told = send(client, "explain?matches=true", served).json()["images"][0]["classes"][0]
    wanted = served.model.explain(served.image, matches=True).classes[0]
    assert wanted.matches is not None and wanted.matches.groups
    assert told["words"] == match_sentence(wanted) and told["words"].startswith("The strongest match is region")
    for found, case in zip(told["cases"], wanted.cases, strict=True):
        assert found["strength"] * found["likeness"] == pytest.approx(found["evidence"], rel=1e-5)
        assert found["likeness"] == pytest.approx(case.likeness, rel=1e-5)
        assert sum(part["evidence"] for part in found["regions"]) == pytest.approx(case.evidence, abs=1e-5)


def test_two_classes_are_compared_region_by_region(client: TestClient, served: Served) -> None:
    first, other = served.model.classes[1], served.model.classes[3]
    told = send(client, f"explain?class={first}&versus={other}", served).json()["images"][0]
    contrast, scores = told["contrast"], {one["name"]: one["logit"] for one in told["classes"]}
    assert list(scores) == [first, other] == [contrast["class"], contrast["versus"]]
    assert contrast["difference"] == pytest.approx(scores[first] - scores[other], abs=1e-5)
    assert len(contrast["regions"]) > 1
    for part in contrast["regions"]:
        assert part["difference"] == pytest.approx(part["evidence"] - part["versus"], abs=1e-6)
    assert sum(part["difference"] for part in contrast["regions"]) == pytest.approx(contrast["difference"], abs=1e-4)
    assert send(client, f"explain?class={first}", served).json()["images"][0]["contrast"] is None


def test_what_is_specific_to_a_class(client: TestClient, served: Served) -> None:
    names = served.model.classes
    asked = "&".join(f"class={name}" for name in names)
    told = send(client, f"explain?{asked}&specific=true&maps=true", served).json()["images"][0]["classes"]
    mean = sum(one["logit"] for one in told) / len(names)
    for one in told:
        specific = one["specific"]
        assert specific["value"] == pytest.approx(one["logit"] - mean, abs=1e-4)
        drawn = np.frombuffer(base64.b64decode(specific["map"]), "<f4")
        assert drawn.sum() == pytest.approx(specific["pixels"], abs=1e-3)
        assert specific["pixels"] + specific["constant"] == pytest.approx(specific["value"], abs=1e-4)
    assert send(client, "explain", served).json()["images"][0]["classes"][0]["specific"] is None


@pytest.mark.parametrize("path", ["explain", "share"])
def test_a_class_is_compared_with_another_one_that_exists(client: TestClient, served: Served, path: str) -> None:
    name = served.model.classes[0]
    for versus, words in ((name, "cannot be compared with itself"), ("dodo", "no class 'dodo'")):
        data = served.image.read_bytes()
        refused = client.post(f"{V1}/{path}", params={"class": name, "versus": versus}, files={"image": data})
        assert refused.status_code == 422 and words in refused.json()["error"]


def test_a_support_is_explained_as_it_was_kept(bird_splits: Path, tmp_path: Path) -> None:
    """Preprocessing it a second time would crop it again."""
    cropped = make_model(tmp_path / "cropped", bird_splits, preprocessing=Preprocessing(SIZE, SIZE + 12, "crop"))
    number, support = 5, cropped.model.supports[5]
    with cropped.client() as client:
        for path, image in (("predict", {}), ("explain", {"maps": "true"})):
            told = client.post(f"{V1}/{path}", params={"support": number, **image}).json()["images"][0]
            assert told["name"] == support.source
            if path == "predict":
                (own,) = (one for one in told["evidence"] if one["support"] == number)
            else:
                assert told["truth"] == cropped.model.classes[support.label] and told["right"] is None
        norm = cropped.model.sic.support_vectors[number].norm().item()
        assert own["value"] == pytest.approx(norm / cropped.model.sic.temperature, rel=1e-4)  # likeness 100 %
        uploaded = client.get(f"{V1}/supports/{number}/image").content
        again = client.post(f"{V1}/predict", files={"image": uploaded}).json()["images"][0]
        (other,) = (one for one in again["evidence"] if one["support"] == number)
        assert other["value"] != pytest.approx(own["value"], rel=1e-2)
        page = client.post(f"{V1}/share", params={"support": number})
        assert page.status_code == 200 and support.source in page.text
        assert client.post(f"{V1}/explain", params={"support": 99}).status_code == 404


def test_several_labels_are_answered_and_explained_together(served_multi: Served) -> None:
    with served_multi.client() as client:
        counts = set()
        for sample in served_multi.tests.samples[:8]:
            answer = client.post(f"{V1}/explain", files={"image": sample.path.read_bytes()}).json()["images"][0]
            found = [name for name, probability in answer["probabilities"].items() if probability >= 0.5]
            assert sorted(answer["labels"]) == sorted(found)
            shown = [one["name"] for one in answer["classes"]]
            assert sorted(shown) == sorted(found or [answer["nearest"]])
            counts.add(len(found))
        assert len(counts) > 1


@pytest.mark.parametrize("how", ["format", "accept"])
def test_the_figure_comes_as_png(client: TestClient, served: Served, how: str) -> None:
    path = f"{V1}/explain" + ("?format=png" if how == "format" else "")
    headers = {"Accept": "image/png"} if how == "accept" else {}
    answer = client.post(path, files={"image": served.image.read_bytes()}, headers=headers)
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size[0] > 300
    several = [("image", served.image.read_bytes())] * 2
    assert "shows one image" in client.post(path, files=several, headers=headers).json()["error"]
    told = client.post(f"{V1}/predict", files={"image": served.image.read_bytes()}, headers={"Accept": "image/png"})
    assert told.status_code == 406


def test_supports_and_what_they_are_made_of(client: TestClient, served: Served) -> None:
    listed = client.get(f"{V1}/supports").json()["supports"]
    assert [(one["label"], one["source"]) for one in listed] == [
        (served.model.classes[support.label], support.source) for support in served.model.supports
    ]
    number = 4
    stored = served.model.supports[number].image
    assert stored is not None
    image = np.asarray(Image.open(io.BytesIO(client.get(f"{V1}/supports/{number}/image").content)))
    np.testing.assert_array_equal(image, stored)
    view = torch.from_numpy(stored.copy()).permute(2, 0, 1)[None] / 255
    own = support_contributions(served.model.classifier, view, [number])
    drawn = floats(client.get(f"{V1}/supports/{number}/map").content)
    np.testing.assert_allclose(drawn, own.maps[0].numpy(), atol=1e-6)
    assert drawn.sum() == pytest.approx(listed[number]["norm"], rel=1e-4)
    assert client.get(f"{V1}/supports/99/map").status_code == 404


def test_test_images_with_truth_and_answer(client: TestClient, served: Served) -> None:
    all_looked_at(client)
    page = client.get(f"{V1}/tests?limit=100").json()
    assert page["matching"] == page["of"] == len(served.tests.samples)
    wrong, unlike = [], []
    for entry, sample in zip(page["images"], served.tests.samples, strict=True):
        expected = served.model.predict(sample.path)
        assert entry["name"] == sample.id
        assert entry["truth"] == [served.model.classes[label] for label in sample.labels]
        assert entry["answer"] == expected.labels and entry["similar_case"] == expected.similar_case
        if expected.labels[0] not in entry["truth"]:
            wrong.append(entry["test"])
        if not expected.similar_case:
            unlike.append(entry["test"])
    assert wrong and unlike
    for show, places in (("wrong", wrong), ("unlike", unlike)):
        found = client.get(f"{V1}/tests?limit=100&show={show}").json()
        assert [entry["test"] for entry in found["images"]] == places
    answer = client.post(f"{V1}/predict?test=3").json()["images"][0]
    assert answer["probabilities"] == pytest.approx(served.model.predict(served.tests.samples[3].path).probabilities)
    assert client.post(f"{V1}/predict?test=9999").status_code == 404
    for entry in page["images"][:3]:
        assert client.post(f"{V1}/explain?test={entry['test']}").json()["images"][0]["right"] == entry["right"]


def test_who_relies_on_a_support(client: TestClient, served: Served) -> None:
    """Against answers that are computed one by one, with and without the support."""
    all_looked_at(client)
    bias = served.model.classifier.bias
    found_any = False
    for number, support in enumerate(served.model.supports):
        name = served.model.classes[support.label]
        answers: dict[str, tuple[float, bool]] = {}
        for sample in served.tests.samples:
            prediction = served.model.predict(sample.path)
            if prediction.labels != [name] or not prediction.similar_case:
                continue
            scores = dict.fromkeys(served.model.classes, bias)
            for evidence in prediction.evidence:
                if evidence.support != number:
                    scores[evidence.label] += evidence.value
            adds = next(evidence.value for evidence in prediction.evidence if evidence.support == number)
            still = scores[name] >= 0 and max(scores, key=lambda label: scores[label]) == name
            answers[sample.id] = adds, not still
        told = client.get(f"{V1}/supports/{number}/relying").json()
        assert told["answers"] == len(answers) and told["needed"] == sum(needed for _, needed in answers.values())
        assert {image["name"]: image["needed"] for image in told["images"]} == {
            name: needed for name, (_, needed) in answers.items()
        }
        values = [image["evidence"] for image in told["images"]]
        assert values == sorted(values, reverse=True)
        found_any |= told["needed"] > 0
    assert found_any


def test_the_overview_is_the_models(client: TestClient, served: Served) -> None:
    all_looked_at(client)
    told = client.get(f"{V1}/overview").json()
    expected = served.model.overview(served.tests.samples)
    assert told["images"] == len(served.tests.samples)
    np.testing.assert_allclose(told["support_similarity"], expected.support_similarity, rtol=1e-5)
    np.testing.assert_allclose(told["image_similarity"], expected.image_similarity, rtol=1e-4)
    assert told["image_silhouette"]["overall"] == pytest.approx(expected.image_silhouette.overall, abs=1e-4)
    assert len(told["projection"]["points"]) == len(served.model.supports) + len(served.tests.samples)


def test_a_case_is_one_file_without_scripts(client: TestClient, served: Served) -> None:
    name = served.model.classes[1]
    text = send(client, f"share?class={name}", served, image=("<b>odd & name.png", served.image.read_bytes())).text
    explained = served.model.explain(served.image, [name]).classes[0]
    assert "&lt;b&gt;odd &amp; name.png" in text and "<b>" not in text
    assert f"{explained.logit:+.2f}" in text
    for case in explained.cases:
        assert case.support.source in text and f"{case.evidence:+.2f}" in text
    assert "<script" not in text and "http://" not in text and "https://" not in text
    assert text.count("data:image/webp;base64,") == 3 + 2 * len(explained.cases)


def test_a_shared_page_compares_two_classes(client: TestClient, served: Served) -> None:
    first, other = served.model.classes[1], served.model.classes[0]
    page = send(client, f"share?class={first}&versus={other}", served).text
    explained = served.model.explain(served.image, [first], versus=other)
    rows = re.findall(r"<tr data-region=.*?</tr>", page, re.DOTALL)
    assert len(rows) == len(explained.contrast) > 1
    for row, part in zip(rows, explained.contrast, strict=True):
        for value in (part.evidence, part.other, part.value):
            assert f"{value:+.2f}".replace("-", "−") in row
    difference = explained.classes[0].logit - explained.classes[1].logit
    assert f"<strong>{difference:+.2f}</strong>".replace("-", "−") in page
    assert "data-region" in (alone := send(client, f"share?class={first}", served).text)
    assert "<tr data-region" not in alone


def test_without_support_images_nothing_is_shown_and_everything_else_works(served: Served, own_copy: Served) -> None:
    from dataclasses import replace

    own_copy.model.supports = [replace(support, image=None) for support in own_copy.model.supports]
    with own_copy.client() as client:
        answer = send(client, "explain?maps=true", served).json()["images"][0]
        assert not any(case["shown"] for case in answer["classes"][0]["cases"])
        for what in ("image", "map", "picture"):
            assert client.get(f"{V1}/supports/0/{what}").status_code == 404
        assert client.post(f"{V1}/explain?support=0").status_code == 404
        first, other = served.model.classes[:2]
        refused = client.post(f"{V1}/explain", params={"class": first, "versus": other, "test": 0})
        assert refused.status_code == 422 and "does not keep the images" in refused.json()["error"]
        assert "not kept" in send(client, "share", served).text
        assert client.get(f"{V1}/overview").status_code == 200


def test_health_and_metrics(client: TestClient, served: Served) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    send(client, "predict", served)
    client.post(f"{V1}/predict", content=b"x", headers={"Content-Type": "text/plain"})
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert f'sic_requests_total{{route="{V1}/predict",status="200"}} 1' in text
    assert f'sic_requests_total{{route="{V1}/predict",status="415"}} 1' in text
    assert 'route="other",status="404"' in text and "nowhere" not in text
    assert 'sic_images_total{what="predict"} 1' in text
    assert f'sic_request_seconds_count{{route="{V1}/predict"}} 2' in text
    resident = next(line for line in text.splitlines() if line.startswith("sic_resident_bytes"))
    assert float(resident.split()[1]) > 1e7
    for line in text.splitlines():
        assert line.startswith(("# HELP sic_", "# TYPE sic_", "sic_"))


def test_openapi_describes_every_answer_with_examples(client: TestClient) -> None:
    described = client.get(f"{V1}/openapi.json").json()
    for path in ("predict", "explain", "supports", "overview"):
        assert f"{V1}/{path}" in described["paths"]
    body = described["paths"][f"{V1}/predict"]["post"]["requestBody"]["content"]
    assert {"multipart/form-data", "image/png", "application/dicom"} <= set(body)
    schema = described["components"]["schemas"]["Prediction"]["properties"]
    assert schema["nearest"]["examples"] and schema["probabilities"]["examples"]


def test_dicom_is_read(client: TestClient, served: Served) -> None:
    pytest.importorskip("pydicom")
    from serve_fuzz import dicom

    answer = send(client, "predict", served, image=("scan.dcm", dicom(40, 30))).json()["images"][0]
    assert set(answer["probabilities"]) == set(served.model.classes)
