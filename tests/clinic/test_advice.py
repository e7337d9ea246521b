"""Every kind of advice of `sic supports MODEL check` is applied as printed, and helps."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import sic
from sic.calibration import Calibration
from sic.cli.main import main
from sic.clinic import Clinic, Edit, Finding, pixels
from sic.clinic import diagnostics as checks
from sic.clinic.advice import COST, Commands, first_that_helps
from sic.clinic.edits import plan
from sic.clinic.examined import Examined
from tests.clinic.colours import COLOURS, SIZE, draw, make

Scene = Callable[[Path, Path], object]
"""Changes images, and makes a model of them."""


def plain(file: Path, colour: tuple[int, int, int]) -> None:
    Image.new("RGB", (SIZE, SIZE), colour).save(file)


def copied(images: Path, source: str, *others: str) -> None:
    for other in others:
        (images / other).write_bytes((images / source).read_bytes())


def wrong_class(images: Path, model: Path) -> None:
    make(model, images)
    Clinic(model).apply(Edit.replace(6, "red/11.png", force=True))


def wrong_folder(images: Path, model: Path) -> None:
    copied(images, "red/02.png", "yellow/08.png")
    make(model, images)


def in_two_folders(images: Path, model: Path) -> None:
    copied(images, "blue/08.png", "green/04.png")
    make(model, images)


def copies(images: Path, model: Path) -> None:
    copied(images, "blue/08.png", "blue/11.png")
    make(model, images)


def one_image(images: Path, model: Path) -> None:
    """All images of a class are one; with one support fewer, answers are lost."""
    copied(images, "blue/08.png", *(f"blue/{number:02d}.png" for number in range(12)))
    make(model, images)


def one_image_but_no_matter(images: Path, model: Path) -> None:
    """The same, where one support is enough."""
    copied(images, "yellow/08.png", *(f"yellow/{number:02d}.png" for number in range(12)))
    make(model, images)


def odd(images: Path, model: Path) -> None:
    plain(images / "blue/08.png", (255, 0, 255))
    make(model, images)


def spoilt(images: Path, model: Path) -> None:
    """The last support is like nothing else, but a little like its class."""
    make(model, images)
    loaded = sic.load(model)
    vectors = loaded.sic.support_vectors
    unused = vectors.mean(dim=0).argmin()
    vectors[7] *= 0.1
    vectors[7, unused] = vectors[6].norm()
    loaded.save(model)


def hot(images: Path, model: Path) -> None:
    """Trained for so long that every answer is certain."""
    sic.fit(images, model, backbone="resnet_tiny", temperature=1.0, epochs=40, workers=0)


def hot_and_calibrated(images: Path, model: Path) -> None:
    make(model, images)
    loaded = sic.load(model)
    loaded.config.temperature /= 30
    loaded.sic.temperature /= 30
    loaded.config.calibration = loaded.sic.calibration = Calibration(1.0, 0.0, 100)
    loaded.save(model)


def mislabelled(images: Path, model: Path) -> None:
    copied(images, "red/02.png", "yellow/02.png")
    make(model, images)


def framed(images: Path, model: Path) -> None:
    """Colours are near the border alone."""
    for name in COLOURS:
        for file in (images / name).iterdir():
            picture = Image.open(file)
            ImageDraw.Draw(picture).rectangle((2, 2, SIZE - 3, SIZE - 3), (20, 20, 20))
            picture.save(file)
    make(model, images)


def healthy(images: Path, model: Path) -> None:
    make(model, images)


ADVICE = [
    pytest.param(wrong_class, "A support of the wrong class", "replace", id="wrong-class"),
    pytest.param(wrong_folder, "A support among another class", "drop", id="wrong-folder"),
    pytest.param(in_two_folders, "Supports of two classes coincide", "replace", id="coincide"),
    pytest.param(copies, "Supports that are the same", "reselect", id="same"),
    pytest.param(one_image_but_no_matter, "Supports that are the same", "--supports 1", id="fewer"),
    pytest.param(one_image, "Supports that are the same", None, id="nothing-but-one-image"),
    pytest.param(odd, "A support that dominates", "--varied", id="dominates"),
    pytest.param(spoilt, "A support that dominates", "supports", id="dominates-a-spoilt-one"),
    pytest.param(spoilt, "A support that never matters", "drop", id="never-matters"),
    pytest.param(hot, "Evidence that saturates", "-T", id="saturates", marks=pytest.mark.slow),
    pytest.param(hot_and_calibrated, "Evidence that saturates", None, id="saturates-though-calibrated"),
    pytest.param(mislabelled, "Labels to check", "explain", id="labels"),
    pytest.param(framed, "Evidence from the background", "explain", id="background"),
    pytest.param(healthy, "Supports made of negative contributions", None, id="negative"),
]


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def subject(found: Finding, clinic: Clinic) -> set[str]:
    """The classes that a finding is about."""
    return {clinic.classes[clinic.examined.supports[index].label] for index in found.supports}


def edited(clinic: Clinic, edit: Edit) -> Examined:
    return clinic.examined.with_supports(plan(edit, clinic.examined)[1])


@pytest.mark.parametrize(("scene", "title", "words"), ADVICE)
def test_advice_helps_as_printed(
    scene: Scene,
    title: str,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "a model"
    if scene is healthy:
        monkeypatch.setattr(pixels, "TOO_MUCH_NEGATIVE", 1e-4)
    scene(draw(tmp_path / "images"), model)
    clinic = Clinic(model)
    everything = clinic.diagnose()
    found, *_ = [one for one in everything if one.title == title]
    if words is None:
        assert found.command is None and found.tried == (scene is one_image)
        run(shlex.join(["sic", "supports", str(model), "check"]), monkeypatch)
        in_vain = [one for one in everything if one.tried and one.command is None]
        assert capsys.readouterr().out.count("No edit that was tried solves it.") == len(in_vain)
        if scene is one_image:
            for edit in (Edit.reselect("blue", varied=False), Edit.reselect("blue", varied=True)):
                assert title in [one.title for one in checks.identical(edited(clinic, edit), Commands(model))]
            fewer = clinic.preview(Edit.reselect("blue", 1))
            assert fewer.after["accuracy"] < fewer.before["accuracy"] - COST
        return
    assert found.command is not None and words in found.command
    run(found.command, monkeypatch)
    if words == "explain":  # it shows the problem
        written = tmp_path / f"why-{Path(found.command.split()[-1]).stem.removeprefix('why-')}.png"
        assert Image.open(written).size > (100, 100)
        return
    after = Clinic(shlex.split(found.command)[-1] if words == "-T" else model)
    left = [one for one in after.diagnose() if one.title == title and subject(one, after) & subject(found, clinic)]
    assert left == []
    titles = [[one.title for one in each if one.severity == "serious"] for each in (everything, after.diagnose())]
    assert len(titles[1]) <= len(titles[0])
    before, now = (each.preview(Edit.pin(0)).before["accuracy"] for each in (clinic, after))
    assert now >= before - COST


def test_edits_that_are_refused_are_not_tried(model: Path) -> None:
    examined, commands = Clinic(model).examined, Commands(model)
    refused, possible = Edit.replace(6, "red/11.png"), Edit.drop(6)
    for edits, tried in (([refused], False), ([refused, possible], True), ([], False)):
        advice = first_that_helps(examined, commands, edits, lambda after: True)
        assert (advice.command, advice.tried) == (None, tried)
    helpful = first_that_helps(examined, commands, [refused, possible], lambda after: False)
    assert helpful.tried and helpful.command == commands.edit(possible)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [one_image, hot_and_calibrated])
def test_a_report_says_where_edits_were_tried_in_vain(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, page = tmp_path / "a model", tmp_path / "report.html"
    scene(draw(tmp_path / "images"), model)
    run(shlex.join(["sic", "report", str(model), "--examples", "1", "--out", str(page)]), monkeypatch)
    in_vain = [one for one in Clinic(model).diagnose() if one.tried and one.command is None]
    assert bool(in_vain) == (scene is one_image)
    shown = page.read_text(encoding="utf-8")
    assert '<section id="findings"' in shown
    assert shown.count("No edit that was tried solves it.") == len(in_vain)
