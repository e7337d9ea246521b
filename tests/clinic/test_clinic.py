"""What the clinic says must be what the plain model does afterwards; undo leads back; a failure changes nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sic
from sic.calibration import Calibration, Promise
from sic.clinic import Clinic, Edit, Outcome
from sic.clinic.edits import plan
from sic.data import open as open_data
from sic.data.dataset import Sample
from sic.data.labels import average_precisions, mean_precision, targets
from sic.directory import RUN
from tests.clinic.colours import draw, make


def validation(folder: Path) -> list[Sample]:
    """As the run recorded them."""
    run = json.loads((folder / RUN).read_text())
    opened = open_data(run["data"]["opened_with"]["where"])
    return [sample for sample in opened.splits["train"] if sample.id in run["validation"]]


def answers(folder: Path) -> dict[str, list[str]]:
    """What the model in a directory says about the validation images, from the files on."""
    samples = validation(folder)
    predictions = sic.load(folder).predict_many([sample.path for sample in samples])
    return {sample.id: prediction.labels for sample, prediction in zip(samples, predictions, strict=True)}


def accuracy(folder: Path) -> float:
    classes, said = sic.load(folder).classes, answers(folder)
    right = [said[sample.id] == [classes[sample.labels[0]]] for sample in validation(folder)]
    return sum(right) / len(right)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def free(clinic: Clinic, label: str) -> str:
    """A typical image of a class that is no support."""
    return next(candidate.id for candidate in clinic.candidates(label) if not candidate.support)


EDITS = [
    Edit.drop(4),
    Edit.replace(0, "blue/07.png"),
    Edit.replace(5, "green/01.png", force=True),
    Edit.replace(1, "red/04.png", force=True),
    Edit.reselect("green", 3),
    Edit.reselect("yellow", 1),
    Edit.reselect("red", 2, varied=True),
    Edit.pin(2),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.action}-{edit.support}-{edit.label}")
def test_what_is_said_is_what_the_plain_model_does_then(model: Path, edit: Edit) -> None:
    clinic = Clinic(model)
    before, right_before = answers(model), accuracy(model)
    preview = clinic.preview(edit)
    assert answers(model) == before
    outcome = clinic.apply(edit)
    assert outcome == preview
    after = answers(model)
    assert outcome.before["accuracy"] == pytest.approx(right_before)
    assert outcome.after["accuracy"] == pytest.approx(accuracy(model))
    flips = {flip.id: (flip.before, flip.after) for flip in outcome.flips}
    assert flips == {id: (before[id], after[id]) for id in before if before[id] != after[id]}
    loaded = sic.load(model)
    truth = {sample.id: [loaded.classes[sample.labels[0]]] for sample in validation(model)}
    assert set(outcome.ids("to_right")) == {id for id in flips if after[id] == truth[id]}
    assert set(outcome.ids("to_wrong")) == {id for id in flips if before[id] == truth[id]}
    assert loaded.config.figures["validation"]["accuracy"] == outcome.after["accuracy"]
    # The vectors are those of the images that the supports are said to be.
    with torch.no_grad():
        pictures = torch.stack([loaded.tensor(Image.fromarray(np.asarray(s.image))) for s in loaded.supports])
        torch.testing.assert_close(loaded.classifier.encoder(pictures), loaded.classifier.support_vectors)
    opened = open_data(json.loads((model / RUN).read_text())["data"]["opened_with"]["where"])
    paths = {sample.id: sample.path for sample in opened.splits["train"]}
    for support in loaded.supports:
        np.testing.assert_array_equal(support.image, np.asarray(Image.open(paths[support.source])))


def test_an_edit_ends_the_promise_until_it_is_undone(model: Path) -> None:
    """Pins change no answer. Figures without copies of training images stay beside the others."""
    record = json.loads((model / RUN).read_text())
    (model / RUN).write_text(json.dumps({**record, "copies": {"validation": record["validation"][:2]}}))
    loaded, promise = sic.load(model), Promise(1.5, 0.05, 0.95, 80, 70, 1)
    loaded.config.calibration = Calibration(2.0, -0.5, 80, promise)
    loaded.save(model)
    for edit, expected in ((Edit.pin(2), promise), (Edit.drop(4), None)):
        Clinic(model).apply(edit)
        assert sic.load(model).config.calibration == Calibration(2.0, -0.5, 80, expected)
        figures = sic.load(model).config.figures
        assert figures["validation_without_copies"]["images"] == figures["validation"]["images"] - 2
    Clinic(model).undo()
    assert sic.load(model).promise == promise


def test_the_edits_of_the_test_above_change_answers(model: Path) -> None:
    """Else it would compare nothing with nothing."""
    clinic = Clinic(model)
    changed = [len(clinic.preview(edit).flips) for edit in EDITS]
    assert sum(number > 0 for number in changed) >= 3


def test_several_labels(several: Path) -> None:
    clinic = Clinic(several)
    samples = validation(several)
    edit = Edit.replace(0, free(clinic, "yellow"), force=True)

    def figure() -> float:
        model = sic.load(several)
        scores = [list(p.probabilities.values()) for p in model.predict_many([sample.path for sample in samples])]
        return mean_precision(average_precisions(torch.tensor(scores), targets(samples, len(model.classes))))

    def wrong() -> dict[str, int]:
        names = sic.load(several).classes
        said = answers(several)
        return {sample.id: len(set(said[sample.id]) ^ {names[label] for label in sample.labels}) for sample in samples}

    map_before, wrong_before, said_before = figure(), wrong(), answers(several)
    outcome = clinic.apply(edit)
    assert outcome.before["map"] == pytest.approx(map_before)
    assert outcome.after["map"] == pytest.approx(figure())
    assert outcome.after["map"] < outcome.before["map"]
    said = answers(several)
    assert {flip.id for flip in outcome.flips} == {id for id in said if said[id] != said_before[id]}
    assert set(outcome.ids("to_wrong")) == {id for id, number in wrong().items() if number > wrong_before[id]}
    assert set(outcome.ids("to_right")) == {id for id, number in wrong().items() if number < wrong_before[id]}


def test_undo_leads_back_to_the_very_same_model(model: Path) -> None:
    original = sic.load(model)
    clinic = Clinic(model)
    figures = clinic.preview(Edit.pin(0)).before
    clinic.apply(Edit.drop(5))
    clinic.apply(Edit.replace(0, free(clinic, "blue")))
    clinic = Clinic(model)  # as a new process would
    clinic.apply(Edit.reselect("yellow", 3))
    clinic.apply(Edit.pin(1))
    clinic.undo()
    assert not any(info.pinned for info in clinic.list())
    outcome = clinic.undo(3)
    assert outcome.after == figures
    assert outcome.labels == ["blue", "red", "yellow"]
    restored = sic.load(model)
    assert torch.equal(restored.classifier.support_vectors, original.classifier.support_vectors)
    assert torch.equal(restored.classifier.support_classes, original.classifier.support_classes)
    for mine, theirs in zip(restored.supports, original.supports, strict=True):
        assert (mine.label, mine.source, mine.pinned) == (theirs.label, theirs.source, theirs.pinned)
        np.testing.assert_array_equal(mine.image, theirs.image)
    with pytest.raises(sic.SicError, match="There is nothing to undo"):
        clinic.undo()


def test_history_is_kept_with_the_model(model: Path) -> None:
    clinic = Clinic(model)
    new = free(clinic, "blue")
    first = clinic.apply(Edit.replace(0, new))
    clinic.apply(Edit.replace(2, "red/01.png", force=True))
    clinic.undo()
    clinic.apply(Edit.drop(3))
    written = json.loads((model / "config.json").read_text())["edits"]
    assert [entry["action"] for entry in written] == ["replace", "replace", "drop"]
    assert [entry["undone"] is None for entry in written] == [True, False, True]
    assert written[0]["label"] == "blue" and written[0]["added"] == [new]
    assert written[0]["before"] == first.before and written[0]["after"] == first.after
    assert written[1]["forced"] and not written[0]["forced"]
    assert [record.action for record in Clinic(model).history()] == ["replace", "replace", "drop"]
    assert "edited after training (2 edits" in (model / "README.md").read_text()
    # Undo now goes past what was taken back before.
    clinic.undo(2)
    assert all(entry["undone"] for entry in json.loads((model / "config.json").read_text())["edits"])


def test_an_image_can_be_added_and_dropped_again(model: Path) -> None:
    """A wrong one is found; dropping it leads back to the very same supports."""
    clinic = Clinic(model)
    before, weights = clinic.list(), (model / "model.safetensors").read_bytes()
    with pytest.raises(sic.SicError, match="shows red, not yellow; use --force"):
        clinic.preview(Edit.add("yellow", "red/11.png"))
    with pytest.raises(sic.SicError, match="is a support of yellow already"):
        clinic.preview(Edit.add("yellow", before[6].source))
    outcome = clinic.apply(Edit.add("yellow", "red/11.png", force=True))
    assert outcome.added == ["red/11.png"] and outcome.removed == []
    assert [info.source for info in clinic.list()] == [*(info.source for info in before), "red/11.png"]
    told = sic.load(model)
    assert told.supports[-1].source == "red/11.png" and len(told.sic.support_vectors) == len(before) + 1
    assert any(finding.title == "A support of the wrong class" for finding in clinic.diagnose())
    dropped = clinic.apply(Edit.drop("red/11.png"))
    assert dropped.after == outcome.before
    assert clinic.list() == before and (model / "model.safetensors").read_bytes() == weights


def test_an_untouched_class_is_selected_as_training_did(colour_images: Path, tmp_path: Path) -> None:
    clinic = Clinic(make(tmp_path / "model", colour_images, per_class=3))
    for name in ("blue", "green", "red", "yellow"):
        outcome = clinic.apply(Edit.reselect(name))
        assert outcome.labels == outcome.flips == []
    assert clinic.history() == []


def test_supports_are_selected_in_the_way_of_training(colour_images: Path, tmp_path: Path) -> None:
    """By k-means on latents, or on their directions, unless the user says how."""
    folder, names = make(tmp_path / "model", colour_images, per_class=3), ("blue", "green", "red", "yellow")
    loaded, different = sic.load(folder), 0
    for selection in ("nearest", "varied"):
        loaded.config.training["inference_supports"] = selection
        loaded.save(folder)
        clinic = Clinic(folder)
        for name in names:
            chosen, near, far = (
                plan(Edit.reselect(name, varied=how), clinic.examined)[1] for how in (None, False, True)
            )
            assert chosen == (far if selection == "varied" else near)
            different += near != far
    assert different


def test_reselect_keeps_the_pinned_and_avoids_what_was_taken_out(model: Path) -> None:
    clinic = Clinic(model)
    farthest = [candidate.id for candidate in clinic.candidates("red") if not candidate.support][-1]
    dropped = clinic.list()[5].source
    clinic.apply(Edit.replace(5, farthest))
    clinic.apply(Edit.pin(farthest))
    for number in (2, 3, 5):
        clinic.apply(Edit.reselect("red", number))
        chosen = [info for info in clinic.list() if info.label == "red"]
        assert len({info.source for info in chosen}) == number
        assert [info.source for info in chosen if info.pinned] == [farthest]
        assert dropped not in [info.source for info in chosen]
    clinic.apply(Edit.replace(farthest, dropped))
    clinic.apply(Edit.replace(dropped, farthest))
    clinic.apply(Edit.reselect("red", 7))
    assert dropped not in [info.source for info in clinic.list()]
    assert farthest in [info.source for info in clinic.list()]  # put back, so it is wanted again
    clinic.apply(Edit.pin(farthest))
    clinic.apply(Edit.unpin(farthest))
    clinic.apply(Edit.reselect("red", 1))
    assert farthest not in [info.source for info in clinic.list()]
    clinic.apply(Edit.pin(4))
    with pytest.raises(sic.SicError, match="not 0"):
        Edit.reselect("red", 0)
    with pytest.raises(sic.SicError, match="has 7 images that can be supports, not 30"):
        clinic.preview(Edit.reselect("red", 30))


def refusal(clinic: Clinic, edit: Edit) -> str:
    before = files(clinic.folder)
    with pytest.raises(sic.SicError) as caught:
        clinic.apply(edit)
    assert files(clinic.folder) == before
    return str(caught.value)


def test_refusals(model: Path, colour_images: Path) -> None:
    clinic = Clinic(model)
    clinic.apply(Edit.drop(0))
    assert "last support of blue" in refusal(clinic, Edit.drop(0))
    assert "shows red, not blue; use --force" in refusal(clinic, Edit.replace(0, "red/02.png"))
    assert "is a validation image" in refusal(clinic, Edit.replace(0, "blue/00.png"))
    assert "is a validation image" in refusal(
        clinic, Edit.replace(0, str(colour_images / "blue" / "00.png"), force=True)
    )
    assert "No training image" in refusal(clinic, Edit.replace(0, "blue/99.png", force=True))
    assert "a support of green already" in refusal(clinic, Edit.replace(1, clinic.list()[2].source))
    assert "no class 'pink'" in refusal(clinic, Edit.reselect("pink"))
    assert "numbered 0 to 6" in refusal(clinic, Edit.drop(7))
    assert "No support is 'x.png'" in refusal(clinic, Edit.drop("x.png"))
    assert "not pinned" in refusal(clinic, Edit.unpin(0))
    clinic.apply(Edit.pin(1))
    assert "pinned already" in refusal(clinic, Edit.pin(1))
    clinic.apply(Edit.pin(2))
    assert "2 pinned supports" in refusal(clinic, Edit.reselect("green", 1))


def test_pinned_supports_stay_although_their_images_are_gone(model: Path, colour_images: Path, tmp_path: Path) -> None:
    Clinic(model).apply(Edit.pin(2))
    source = Clinic(model).list()[2].source
    data = shutil.copytree(colour_images, tmp_path / "fewer")
    (data / source).unlink()
    clinic = Clinic(model, data)
    clinic.apply(Edit.reselect("green", 1))
    assert [info.source for info in clinic.list() if info.label == "green"] == [source]


def test_an_image_of_two_supports_is_named_by_number(model: Path) -> None:
    clinic = Clinic(model)
    source = clinic.list()[0].source
    clinic.apply(Edit.replace(2, source, force=True))
    assert "give its number: 0 or 2" in refusal(clinic, Edit.drop(source))


def test_an_image_with_several_labels_is_no_support(several: Path) -> None:
    clinic = Clinic(several)
    pair = next(sample for sample in clinic.images.splits["train"] if len(sample.labels) == 2)
    assert "only an image of exactly one class" in refusal(clinic, Edit.replace(0, pair.id, force=True))
    assert pair.id not in [candidate.id for name in clinic.classes for candidate in clinic.candidates(name)]


def test_files_that_broke_since(model: Path, tmp_path: Path) -> None:
    data = shutil.copytree(json.loads((model / RUN).read_text())["data"]["opened_with"]["where"], tmp_path / "data")
    (data / "red" / "02.png").write_text("no image")
    (data / "red" / "03.png").unlink()
    (data / "green" / "00.png").write_bytes(b"")
    clinic = Clinic(model, data)
    assert "red/02.png can no longer be used: not an image." in clinic.problems
    assert any("1 of the 16 validation images" in problem for problem in clinic.problems)
    assert "red/02.png cannot be a support: not an image" in refusal(clinic, Edit.replace(4, "red/02.png"))
    assert clinic.preview(Edit.pin(0)).before["images"] == 14


def test_a_model_without_its_images(model: Path, colour_images: Path, tmp_path: Path) -> None:
    run = json.loads((model / RUN).read_text())
    run["data"]["opened_with"]["where"] = str(tmp_path / "gone")
    (model / RUN).write_text(json.dumps(run))
    with pytest.raises(sic.SicError, match=r"are not at .*gone; say where they are: --data PATH"):
        Clinic(model)
    assert Clinic(model, colour_images).list()
    other = draw(tmp_path / "other", images=3)
    (other / "red").rename(other / "pink")
    with pytest.raises(sic.SicError, match="other classes than"):
        Clinic(model, other)
    (model / RUN).unlink()
    with pytest.raises(sic.SicError, match="say where they are: --data PATH"):
        Clinic(model)
    with pytest.raises(sic.SicError, match="not known which images"):
        Clinic(model, colour_images)
    split = tmp_path / "split"
    for part in ("train", "val"):
        shutil.copytree(colour_images, split / part)
    assert len(Clinic(make(tmp_path / "m", split), split).list()) == 8


def test_images_that_only_have_the_same_names_are_refused(model: Path, colour_images: Path, tmp_path: Path) -> None:
    others = shutil.copytree(colour_images, tmp_path / "others")
    for file in others.rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(file))).save(file)
    with pytest.raises(sic.SicError, match="are not those that the model was trained on"):
        Clinic(model, others)


def test_supports_that_are_no_single_images_are_refused(model: Path) -> None:
    file = model / "supports" / "supports.json"
    entries = json.loads(file.read_text())
    file.write_text(json.dumps([{**entry, "source": "mean of some images"} for entry in entries]))
    with pytest.raises(sic.SicError, match="not single training images"):
        Clinic(model)


def test_a_failed_write_changes_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Clinic(model)
    before, infos = files(model), clinic.list()

    def full(*_: object) -> bytes:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("sic.directory.save_tensors", full)
        with pytest.raises(OSError, match="disk full"):
            clinic.apply(Edit.drop(0))
    assert files(model) == before
    assert clinic.list() == infos and clinic.history() == []
    clinic.apply(Edit.drop(0))
    assert len(sic.load(model).supports) == 7


def test_two_who_edit_at_once(model: Path) -> None:
    one, other = Clinic(model), Clinic(model)
    one.apply(Edit.pin(0))
    assert "Somebody else has changed" in refusal(other, Edit.drop(3))
    outcome: Outcome = Clinic(model).apply(Edit.drop(3))
    assert outcome.labels == ["green"]


def test_models_without_pictures_stay_without(tmp_path: Path, colour_images: Path) -> None:
    folder = make(tmp_path / "hidden", colour_images, keep_images=False)
    clinic = Clinic(folder)
    clinic.apply(Edit.replace(0, free(clinic, "blue")))
    assert not list((folder / "supports").glob("*.png"))
    assert clinic.diagnose() == []


def test_candidates_from_near_to_far(model: Path) -> None:
    clinic = Clinic(model)
    found = clinic.candidates("green")
    own = [sample for sample in clinic.examined.splits["train"] if sample.id.startswith("green/")]
    plain = sic.load(model)
    with torch.no_grad():
        latents = plain.classifier.encoder(torch.stack([plain.tensor(sample.path) for sample in own]))
    distances = dict(zip([s.id for s in own], (latents - latents.mean(0)).norm(dim=1).tolist(), strict=True))
    assert {one.id: one.distance for one in found} == pytest.approx(distances, abs=1e-4)
    assert [one.distance for one in found] == sorted(one.distance for one in found)
    assert {one.id for one in found if one.support} == {info.source for info in clinic.list() if info.label == "green"}
    assert clinic.candidates("green", near=2)[0].id == clinic.list()[2].source


def test_who_relies_on_a_support(model: Path) -> None:
    clinic = Clinic(model)
    plain = sic.load(model)
    paths = {sample.id: sample.path for sample in validation(model)}

    def accepted(id: str) -> list[str]:
        """The answer, if it has a similar case."""
        prediction = plain.predict(paths[id])
        return prediction.labels if prediction.similar_case else []

    for index, info in enumerate(clinic.list()):
        relying = clinic.relying_on(index)
        assert {one.id for one in relying} == {id for id in paths if accepted(id) == [info.label]}
        assert [one.evidence for one in relying] == sorted((one.evidence for one in relying), reverse=True)
        for one in relying:
            evidence = plain.predict(paths[one.id]).evidence
            own = {entry.source: entry.value for entry in evidence if entry.label == info.label}
            assert one.evidence == pytest.approx(own[info.source], abs=1e-4)
            assert one.share == pytest.approx(own[info.source] / sum(own.values()), abs=1e-4)
    decisive = {one.id for one in clinic.relying_on(4) if one.decisive}
    before = {id: accepted(id) for id in paths}
    clinic.apply(Edit.drop(4))
    plain = sic.load(model)
    assert decisive == {id for id in paths if before[id] == ["red"] != accepted(id)}
