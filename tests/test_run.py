"""What a model was trained on; which images it is judged by, and with whose labels."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import sic
from sic.calibration import Calibration
from sic.clinic import Clinic
from sic.data.dataset import Box, ImageData, Sample
from sic.directory import RUN, read_config
from sic.errors import SicError
from sic.run import NOT_FOUND, SEEN, HeldOut, ImagesNotFound, Run, held_out
from sic.serve.engine import HeldOutImages
from tests.cli.conftest import Sic, here
from tests.clinic.colours import draw, make


def data(**splits: list[Sample]) -> ImageData:
    return ImageData("birds", Path("birds"), "class folders", ("a", "b", "c"), splits)


CHOSEN_ON = "The best epoch was chosen on these images: expect less on new ones."
ONE, TWO = Sample("1", Path("1"), (0,)), Sample("2", Path("2"), (2,), (Box(1, 0, 0, 1, 1, True), Box(2, 0, 0, 1, 1)))


def test_the_fairest_images_at_hand() -> None:
    classes = ["a", "b", "c"]
    assert held_out(data(train=[ONE], test=[TWO]), classes, ["1"], CHOSEN_ON) == HeldOut(
        "test images of birds", None, [TWO]
    )
    given = held_out(data(train=[ONE], val=[TWO]), classes, decided=CHOSEN_ON)
    assert given == HeldOut("validation images of birds", CHOSEN_ON, [TWO])
    assert held_out(data(train=[ONE, TWO]), classes, ["2"], CHOSEN_ON) == given
    assert held_out(data(train=[ONE, TWO]), classes, (), CHOSEN_ON) == HeldOut("images of birds", SEEN, [ONE, TWO])


def test_validation_images_that_nothing_was_chosen_on_are_a_fair_test() -> None:
    # The run held the first one out itself.
    found = held_out(data(train=[ONE], val=[TWO]), ["a", "b", "c"], ["1"], CHOSEN_ON)
    assert found == HeldOut("validation images of birds", None, [TWO])
    assert held_out(data(train=[ONE], val=[TWO]), ["a", "b", "c"], ["2"], CHOSEN_ON).caution == CHOSEN_ON


def test_the_caution_says_what_the_validation_images_decided(model: Path) -> None:
    plain = read_config(model)[0]
    trained = replace(plain, training={"recipe": "paper", "epochs": 4, "check_every": 1, "best_epoch": 2})
    fitted = replace(plain, calibration=Calibration(2.0, images=60))
    cautions = [Run(model, config).held_out(Run(model, config).open()).caution for config in (plain, trained, fitted)]
    assert cautions == [
        None,
        "The best epoch was chosen on these images: expect less on new ones.",
        "The probabilities were fitted on these images: expect less on new ones.",
    ]


def test_labels_are_the_models() -> None:
    (only,) = held_out(data(test=[ONE, TWO]), ["c", "b"]).samples  # the model does not know what the first one shows
    assert only.labels == (0,) and [box.label for box in only.boxes] == [1, 0]
    assert only.unsure == (1,)
    with pytest.raises(SicError, match="none of the model's classes"):
        held_out(data(test=[ONE]), ["x", "y"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with its images beside it."""
    return make(tmp_path / "model", draw(tmp_path / "images", images=6))


def find(model: Path) -> list[Callable[[], object]]:
    """Everything that needs the images that a model was trained on."""
    config = read_config(model)[0]
    return [
        lambda: Run(model, config).open(),
        lambda: Run(model, config).images(),
        lambda: Clinic(model),
        lambda: HeldOutImages.find(sic.load(model)),
    ]


def refused(arguments: list[object]) -> str:
    return Sic(here).refuse(*arguments)


@pytest.mark.parametrize("change", ["gone", "unknown", "older"])
def test_images_that_are_gone_are_refused_in_one_way(model: Path, tmp_path: Path, change: str) -> None:
    if change == "gone":
        (tmp_path / "images").rename(tmp_path / "elsewhere")
        sentence = f"The images that {model} was trained on are not at {tmp_path / 'images'}"
    elif change == "unknown":
        (model / RUN).unlink()
        sentence = f"{model} does not record where its training images are"
    else:
        record = json.loads((model / RUN).read_text())
        del record["data"]["opened_with"]
        (model / RUN).write_text(json.dumps(record))
        sentence = f"{model} does not record where its training images are"
    for attempt in find(model):
        with pytest.raises(ImagesNotFound) as error:
            attempt()
        assert str(error.value).startswith(sentence) and "say where they are: --data PATH" in str(error.value)
    for command in ("evaluate", "verify"):
        told = refused([command, model])
        assert sentence in told and told.endswith(f"say where they are: sic {command} {model} DATA.")


def test_images_of_a_run_that_were_moved(model: Path, tmp_path: Path) -> None:
    config = read_config(model)[0]
    before = Run(model, config).images()
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    after = Run(model, config).images(tmp_path / "elsewhere")
    for split in ("train", "validation", "test"):
        assert [sample.id for sample in after.splits[split]] == [sample.id for sample in before.splits[split]]
    assert after.root == tmp_path / "elsewhere" and not after.problems


def test_its_own_data_and_other_data(model: Path, tmp_path: Path) -> None:
    run = Run(model, read_config(model)[0])
    own = run.open()
    assert run.is_own(own) and run.is_own(run.open_other(tmp_path / "images"))
    assert not run.is_own(run.open_other(draw(tmp_path / "others", images=3)))
    judged = run.held_out(own)
    assert [sample.id for sample in judged.samples] == run.record["validation"]
    assert judged.caution is None  # nothing was chosen, and no probabilities were fitted
    assert len(run.held_out(own, 3).samples) == 3
    assert run.cut([tmp_path / "x.png"]) == [tmp_path / "x.png"]


def test_other_data_is_compared_with_the_training_images(model: Path, tmp_path: Path) -> None:
    run = Run(model, read_config(model)[0])
    others = draw(tmp_path / "others", images=3, seed=9)
    fair = run.compare(run.held_out(run.open_other(others)))
    assert fair.caution is None and not fair.copies  # not the general warning
    original = run.images().splits["train"][0]
    copy = others / Path(original.id).parent / "copy.png"
    shutil.copy(original.path, copy)
    found = run.compare(run.held_out(run.open_other(others)))
    assert found.copies == {copy.relative_to(others).as_posix()} and len(found.samples) == len(fair.samples) + 1
    assert found.caution is not None and f"1 of these {len(found.samples)} images is a copy" in found.caution
    assert original.id in found.caution
    said = Sic(here).json("evaluate", model, others, "--only", "accuracy")
    assert said["caution"] == found.caution
    assert said["accuracy"]["images"] == said["accuracy"]["without_copies"]["images"] + 1
    everything = draw(tmp_path / "copied", images=2, seed=9)
    for sample in run.open_other(everything).splits["train"]:
        shutil.copy(original.path, sample.path)
    caution = run.compare(run.held_out(run.open_other(everything))).caution
    assert caution is not None and caution.endswith("There are no others.")
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert run.compare(run.held_out(run.open_other(others))).caution == SEEN
    fair_images = HeldOut("test images", None, found.samples)  # nothing else is wrong with them
    assert run.compare(fair_images).caution == NOT_FOUND and not run.compare(fair_images).copies


def test_copies_that_a_training_found_are_left_out_of_the_second_figures(model: Path) -> None:
    record = json.loads((model / RUN).read_text())
    record["copies"] = {"validation": record["validation"][:1]}
    (model / RUN).write_text(json.dumps(record))
    run = Run(model, read_config(model)[0])
    assert run.held_out(run.open()).copies == {record["validation"][0]}
    said = Sic(here).json("evaluate", model, "--only", "accuracy")
    assert said["accuracy"]["without_copies"]["images"] == said["accuracy"]["images"] - 1
