"""`sic search`: what it says, writes and survives. Most of it with trials that only pretend to train."""

import csv
import inspect
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sic.card import caution, models_compared
from sic.cli import jobs
from sic.cli.compare import compare
from sic.cli.console import Talker
from sic.cli.search import _begin, _is_running, _record_rivals, _result, _run, search
from sic.cli.train import train
from sic.clinic import Clinic
from sic.data import open as open_data
from sic.data.images import Preprocessing
from sic.data.loading import view_batches
from sic.directory import FORMAT, Config, build, read_config
from sic.errors import SicError
from sic.model import Model, load
from sic.settings import Settings, table
from sic.supports import Edit, Support
from sic.training.search import Point, Search, best, name_of
from sic.training.sic import LatentHealth, collapse
from tests.cli.conftest import Sic
from tests.models import settle, small_settings
from tests.waiting import LONG, wait_until

SMALL = ["--epochs", 2, "--backbone", "resnet_tiny", "--size", 32, "--batch-size", 16, "--seed", 3]
SETTINGS = small_settings()
DATA = {"classes": ["a", "b"], "task": "single", "images": {"train": 10}}

# What `sic train` does, less the training: run.json when it begins, config.json at its end, a sentence where it fails.
PRETENDER = """
import json, os, signal, sys, time
from pathlib import Path
arguments = sys.argv[1:]
folder = Path(arguments[arguments.index("--out") + 1])
told = json.loads((folder.parent.parent / "pretend.json").read_text())[folder.name]
act = told["act"]
with open(folder.parent / "calls.txt", "a") as calls:
    print(folder.name, act, "resume" if "--resume" in arguments else "new", file=calls)
assert ("--resume" in arguments) == (folder / "run.json").exists()
if act == "refuse":
    sys.exit("sic: --weights is not there; name another.")
folder.mkdir(exist_ok=True)
(folder / "new").write_text(json.dumps({"settings": told["settings"]}))
(folder / "new").rename(folder / "run.json")  # all of it or nothing, as `sic train` does
if act == "nan":
    sys.exit("sic: The loss became NaN or infinite in epoch 1; try a lower --lr (it was 9).")
if act == "full":
    sys.exit("sic: The disk is full; free some space and run the command again (training: with --resume).")
if act == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "collapse":
    print("! " + told["sentence"], flush=True)
if act in ("sleep", "collapse"):
    time.sleep(3600)
(folder / "new").write_text(json.dumps(told["config"]))
(folder / "new").rename(folder / "config.json")
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LOOK", 0.05)


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_train(monkeypatch.setattr)


def pretend_to_train(set_attribute: Any) -> None:
    set_attribute(jobs, "PROGRAM", (sys.executable, "-S", "-c", PRETENDER))


def at(lr: float, temperature: float = 1.0) -> Point:
    return {"lr": lr, "temperature": temperature}


POINTS = [at(1e-3, 10.0), at(1e-3, 30.0), at(1e-4, 10.0)]


def begun(out: Path, points: list[Point], settings: Settings = SETTINGS) -> Search:
    found = Search(out, _is_running)
    found.begin({"epochs": 2}, settings, DATA)
    found.add(points)
    return found


def run(found: Search, acts: dict[str, str], workers: int = 1, sentence: str = "", scores: Any = None) -> None:
    """Train at all points that are left; `acts` and `scores`: by the name of the trial."""
    told = {}
    for point in found.points:
        config = asdict(Config("resnet_tiny", ["a", "b"], "single", Preprocessing(32, 32), 3, point["temperature"]))
        accuracy = (scores or {}).get(name_of(point), 0.5)
        config["figures"] = {"validation": {"accuracy": accuracy}, "test": {"accuracy": 1 - accuracy}}
        told[name_of(point)] = {
            "act": acts.get(name_of(point), "train"),
            "settings": asdict(replace(SETTINGS, **point)),
            "config": {"format": FORMAT, "weights_sha256": "", **config},
            "sentence": sentence,
        }
    (found.out / "pretend.json").write_text(json.dumps(told))
    _run(found, "data", {"epochs": 2}, workers, Talker())


def states(found: Search) -> list[str]:
    return [trial.state for trial in found.trials()]


def calls(out: Path) -> list[str]:
    return (out / "trials" / "calls.txt").read_text().splitlines()


def test_every_setting_is_an_option_of_train_search_and_compare() -> None:
    of_the_run = {"data", "layout", "group", "roi", "out", "workers", "devices", "nodes", "resume", "json"}
    of_the_run |= {"fine_tune"}  # short for a value of --recipe
    assert set(inspect.signature(train).parameters) - of_the_run == set(table())
    assert set(table()) <= set(inspect.signature(search).parameters)
    assert set(table()) - set(inspect.signature(compare).parameters) == {"seed", "method", "attribution"}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.usefixtures("pretending")
def test_every_point_is_tried_once(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "a search #1"
    scores = {"lr0.001-T10": 0.5, "lr0.001-T30": 0.75, "lr0.0001-T10": 0.25}
    found = begun(out, POINTS)
    run(found, {}, workers, scores=scores)
    # Of validation images, not of test ones.
    assert {name_of(trial.point): trial.score for trial in found.trials()} == scores
    winner = best(found.trials())
    assert winner is not None and winner.point == POINTS[1]
    assert winner.model == str(out / "trials" / "lr0.001-T30")
    assert sorted(calls(out)) == sorted(f"{name} train new" for name in scores)
    run(begun(out, [*POINTS, at(1e-4, 30.0)]), {}, workers, scores=scores)
    assert len(calls(out)) == 4 and calls(out)[-1] == "lr0.0001-T30 train new"


@pytest.mark.usefixtures("pretending")
def test_failures_have_their_sentence_and_the_search_goes_on(tmp_path: Path) -> None:
    sentence = collapse(LatentHealth(0.9, 1.0), 1.0, 0.5, 0.5, 200)
    assert sentence is not None
    points = [at(lr) for lr in (9.0, 1.0, 0.1, 0.01, 0.001)]
    acts = dict(zip(map(name_of, points), ("nan", "collapse", "full", "die", "train"), strict=True))
    found = begun(tmp_path, points)
    run(found, acts, sentence=sentence)  # a collapsed fit, which sleeps for an hour, is not waited for
    reasons = {trial.point["lr"]: str(trial.reason) for trial in found.trials()}
    assert states(found) == ["failed"] * 4 + ["finished"]
    assert reasons[9.0].startswith("The loss became NaN or infinite in epoch 1")
    assert reasons[1.0].startswith("The fit has collapsed: after 200 steps") and "stop it" not in reasons[1.0]
    assert "disk is full" in reasons[0.1]
    assert "killed (signal 9)" in reasons[0.01]
    # What would end in the same way is not tried again; what may have gone away is.
    done = len(calls(tmp_path))
    again = begun(tmp_path, points)
    run(again, {})
    assert sorted(calls(tmp_path)[done:]) == ["lr0.01-T1 train resume", "lr0.1-T1 train resume"]
    assert states(again) == ["failed"] * 2 + ["finished"] * 3


@pytest.mark.usefixtures("pretending")
def test_what_no_trial_can_start_with_stops_the_search(tmp_path: Path) -> None:
    found = begun(tmp_path, POINTS)
    with pytest.raises(SicError, match="--weights is not there"):
        run(found, dict.fromkeys(map(name_of, POINTS), "refuse"))
    assert set(states(found)) == {"waiting"} and len(calls(tmp_path)) == 1
    run(found, {})
    assert set(states(found)) == {"finished"}


@pytest.mark.usefixtures("pretending")
def test_an_interrupt_leaves_trials_that_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = begun(tmp_path, POINTS)
    resumes = found.resumes

    def interrupted(point: Point) -> bool:
        if point == POINTS[1]:
            wait_until(lambda: (found.folder(POINTS[0]) / "run.json").is_file())
            raise KeyboardInterrupt
        return resumes(point)

    monkeypatch.setattr(found, "resumes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(found, dict.fromkeys(map(name_of, POINTS), "sleep"), 2)
    assert set(states(found)) == {"waiting"}
    after = begun(tmp_path, POINTS)
    run(after, {}, 2)
    assert set(states(after)) == {"finished"}
    assert calls(tmp_path)[0] == "lr0.001-T10 sleep new" and "lr0.001-T10 train resume" in calls(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("pretending")
def test_a_killed_search_is_continued_but_not_what_still_runs(tmp_path: Path) -> None:
    """The process of the search is killed, its trial lives on: only when that ends it is taken over."""
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from tests.cli.test_search import POINTS, begun, pretend_to_train, run
        pretend_to_train(setattr)
        run(begun(Path({str(tmp_path)!r}), POINTS[:1]), {{"lr0.001-T10": "sleep"}})
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "trials" / "lr0.001-T10" / "run.json").exists(), process)
        process.kill()
        process.wait()
        found = begun(tmp_path, POINTS[:1])
        assert states(found) == ["running"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: states(found) == ["waiting"])
    run(found, {})
    assert states(found) == ["finished"]
    assert calls(tmp_path) == ["lr0.001-T10 sleep new", "lr0.001-T10 train resume"]


def finished_model(found: Search, point: Point, data: Path) -> Path:
    """A trial of a network that tells two colours apart without a mistake, and promises so after two epochs."""
    folder, opened = found.folder(point), open_data(data)
    samples, view = opened.splits["train"], Preprocessing(32, 32, "squash")
    config = Config("resnet_tiny", list(opened.classes), "single", view, 1, 0.001, latent=16)
    config.training = asdict(replace(found.settings, **point))
    torch.manual_seed(0)
    classifier = build(config, 2)
    chosen = [next(sample for sample in samples if sample.labels == (label,)) for label in (0, 1)]
    views = torch.cat(list(view_batches([sample.path for sample in chosen], view)))
    settle(classifier.encoder, views)
    with torch.no_grad():
        classifier.set_supports(classifier.encoder(views), torch.tensor([0, 1]))
    supports = [Support(label, sample.id, None) for label, sample in enumerate(chosen)]
    model = Model(classifier.eval(), config, supports)
    predictions = model.predictions(samples)
    model.calibrate(predictions, models_compared(config.training))
    config.figures = replace(predictions, calibration=config.calibration).measured("validation")
    model.save(folder)
    ids = [sample.id for sample in samples]
    content = {
        "settings": config.training,
        "data": {"opened_with": opened.opened_with},
        "train": ids,
        "validation": ids,
    }
    (folder / "run.json").write_text(json.dumps(content))
    found.note(point, None, 1.0)
    return folder


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images, which is enough for a promise if two models were compared, and not if four were."""
    folder = tmp_path_factory.mktemp("colours")
    for name, colour in (("green", (0, 200, 0)), ("red", (200, 0, 0))):
        (folder / name).mkdir()
        for number in range(40):
            Image.new("RGB", (32, 32), colour).save(folder / name / f"{number}.png")
    return folder


CHOSEN = "the model was chosen and the probabilities were fitted on these images"


def with_note(figures: dict[str, Any], note: str) -> dict[str, Any]:
    return {**figures, "validation": {**figures["validation"], "note": note}}


def test_the_promise_of_a_winner_allows_for_all_trials(
    tmp_path: Path, colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = begun(tmp_path / "search", POINTS[:1])
    folder = finished_model(found, POINTS[0], colours)
    before = read_config(folder)[0]
    with Talker() as talker:
        _record_rivals(found, talker)
        assert before.calibration.promise is not None and read_config(folder)[0] == before  # it was compared with none
        found.add(POINTS)
        for point in POINTS[1:]:
            finished_model(found, point, colours)
        for told in (True, False):  # the second time, there is nothing to do
            _record_rivals(found, talker)
            said = " ".join(capsys.readouterr().err.split())
            assert ("promises nothing about new images: 6 models" in said) == told
            after = read_config(folder)[0]
            assert models_compared(after.training) == 3 * 2 and after.training["compared"] == 2 * 2
            assert after.calibration == replace(before.calibration, promise=None)
            assert after.figures == with_note(before.figures, CHOSEN)
    again = shlex.split(_result(found, str(colours), {"epochs": 2})["command"])
    assert again[again.index("--compared") + 1] == "4"


def test_the_promise_of_a_winner_that_holds_stays(
    tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = begun(tmp_path / "search", POINTS[:2])
    folders = [finished_model(found, point, colours) for point in POINTS[:2]]
    before = read_config(folders[0])[0]
    devices = []

    def loaded(folder: Path, device: str = "cpu") -> Model:
        devices.append(device)
        return load(folder, device)

    monkeypatch.setattr("sic.calibration.WRONG", 0.1)  # for which 80 images are plenty
    monkeypatch.setattr("sic.machines.best_device", lambda: "cpu:0")
    monkeypatch.setattr("sic.model.load", loaded)
    with Talker() as talker:
        _record_rivals(found, talker)
    after, other = (read_config(folder)[0] for folder in folders)
    assert devices == ["cpu:0"]  # where the trials were trained
    assert models_compared(after.training) == 2 * 2 and models_compared(other.training) == 2
    assert after.calibration.promise is not None and before.calibration.promise is not None
    assert after.calibration.promise.answered == before.calibration.promise.answered == 80
    assert after.calibration.promise.wrong == 0.1  # it was made anew


def test_models_compared_before_the_search_count_once(tmp_path: Path, colours: Path) -> None:
    found = begun(tmp_path / "search", POINTS, replace(SETTINGS, compared=5))
    folders = [finished_model(found, point, colours) for point in POINTS]
    with Talker() as talker:
        _record_rivals(found, talker)
    assert found.compared_with(POINTS[0]) == read_config(folders[0])[0].training["compared"] == 5 + 2 * 2
    again = shlex.split(_result(found, str(colours), {"epochs": 2, "compared": 5})["command"])
    assert again.count("--compared") == 1 and again[again.index("--compared") + 1] == "9"


def test_a_winner_without_a_promise_says_what_it_was_chosen_on(tmp_path: Path, colours: Path) -> None:
    """As those for several labels; its images are not needed."""
    found = begun(tmp_path / "search", POINTS[:2])
    folder, _ = (finished_model(found, point, colours) for point in POINTS[:2])
    model = load(folder)
    model.config.calibration = replace(model.config.calibration, promise=None)
    model.config.figures["validation"]["note"] = "the probabilities were fitted on these images"
    model.save(folder)
    (folder / "run.json").unlink()
    with Talker() as talker:
        _record_rivals(found, talker)
    after = read_config(folder)[0]
    assert after.training["compared"] == 2
    assert after.figures == with_note(model.config.figures, CHOSEN)
    assert str(caution(CHOSEN)) in (folder / "README.md").read_text()


def test_undo_restores_no_promise_that_a_search_has_ended(tmp_path: Path, colours: Path) -> None:
    found = begun(tmp_path / "search", POINTS[:1])
    folder = finished_model(found, POINTS[0], colours)
    Clinic(folder).apply(Edit.replace(0, "green/7.png"))
    edited = read_config(folder)[0]
    assert edited.calibration.promise is None and edited.edits[0]["promise"] is not None
    found.add(POINTS)
    for point in POINTS[1:]:
        finished_model(found, point, colours)
    with Talker() as talker:
        _record_rivals(found, talker)
    after = read_config(folder)[0]
    assert after.training["compared"] == 4 and "supports were edited" in after.figures["validation"]["note"]
    Clinic(folder).undo()
    undone = read_config(folder)[0]
    assert undone.edits[0]["undone"] is not None and undone.calibration.promise is None
    assert undone.calibration.images == edited.calibration.images
    assert undone.figures["validation"]["note"] == CHOSEN


def test_a_search_whose_images_were_moved_ends_with_its_results(sic: Sic, tmp_path: Path, colours: Path) -> None:
    """The promise of the winner allows for itself alone, and cannot be fitted again."""
    before, moved, out = tmp_path / "before", tmp_path / "moved", tmp_path / "search"
    shutil.copytree(colours, before)
    said = {"epochs": 2, "backbone": "resnet_tiny", "size": 32, "recipe": "scratch"}
    with Talker() as talker:
        found, _ = _begin(str(before), out, said, {"lr": (1e-3, 1e-4), "temperature": (10.0,)}, talker)
    folder, _ = (finished_model(found, point, before) for point in found.points)
    assert read_config(folder)[0].calibration.promise is not None
    before.rename(moved)
    done = sic("search", moved, "--out", out, "--json")
    result, warned = json.loads(done.stdout), " ".join(done.stderr.split())
    assert [trial["state"] for trial in result["trials"]] == ["finished"] * 2
    assert Path(result["table"]).is_file() and Path(result["plot"]).is_file()
    assert "promises nothing about new images" in warned and f"are not at {before}" in warned and "--data" not in warned
    after = read_config(folder)[0]
    assert after.calibration.promise is None and after.training["compared"] == 2


def test_the_results_are_written_before_the_winner_is_touched(sic: Sic, tmp_path: Path, colours: Path) -> None:
    said = {"epochs": 2, "backbone": "resnet_tiny", "size": 32, "recipe": "scratch"}
    with Talker() as talker:
        found, _ = _begin(str(colours), tmp_path, said, {"lr": (1e-3, 1e-4), "temperature": (10.0,)}, talker)
    folder, _ = (finished_model(found, point, colours) for point in found.points)
    (folder / "model.safetensors").write_bytes(b"")
    assert "model.safetensors" in sic.refuse("search", colours, "--out", tmp_path)
    assert (tmp_path / "search.csv").is_file() and (tmp_path / "search.png").is_file()


@pytest.mark.slow
def test_wrong_calls_get_one_sentence_and_leave_nothing(sic: Sic, bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for flags, words in (
        (["--lr", "fast"], "--lr"),
        (["--lr", "0.1,,0.2"], "--lr"),
        (["-T", "10,-3"], "--temperature"),
        (["--recipe", "magic"], "--recipe"),
        (["--backbone", "resnet9000"], "resnet9000"),
    ):
        said = sic.refuse("search", bird_folders, "--out", out, *flags)
        assert words in said and "Unexpected error" not in said
        assert not out.exists()
    assert "inside the dataset" in sic.refuse("search", bird_folders, "--out", bird_folders / "search")
    assert not (bird_folders / "search").exists()


@pytest.mark.slow
def test_a_search_from_end_to_end(sic: Sic, bird_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "a search"
    flags = ["--out", out, "--no-antialias", "--no-support-images"]
    said = sic.json("search", bird_folders, *flags, *SMALL, "--lr", "3e-3,1e-4", "-T", 1, "--workers", 2)
    assert said["score"] == "accuracy" and len(said["trials"]) == 2
    assert [(t["lr"], t["temperature"], t["state"]) for t in said["trials"]] == [
        (0.003, 1, "finished"),
        (0.0001, 1, "finished"),
    ]
    assert said["best"]["score"] == max(t["score"] for t in said["trials"])
    for trial in said["trials"]:
        model = Path(trial["model"])
        assert _figures(model)["validation"]["accuracy"] == trial["score"]
        assert not list((model / "supports").glob("*.png"))
    with Image.open(said["plot"]) as picture:
        assert min(picture.size) > 250
    rows = list(csv.DictReader(Path(said["table"]).read_text().splitlines()))
    assert [float(row["score"]) for row in rows] == [t["score"] for t in said["trials"]]
    # The command that it gives makes the winner again.
    command = shlex.split(said["command"])
    assert command[0] == "sic" and command[command.index("--compared") + 1] == "2"
    sic(*command[1:])
    assert _figures(out / "best")["validation"]["accuracy"] == said["best"]["score"]
    # Nothing is left to do; the flags need not be said again, and others are refused.
    before = (out / "trials" / "lr0.003-T1" / "config.json").stat().st_mtime_ns
    done = sic("search", bird_folders, "--out", out)
    assert "finished" in done.stdout and "sic train" in done.stdout
    assert (out / "trials" / "lr0.003-T1" / "config.json").stat().st_mtime_ns == before
    assert "--epochs" in sic.refuse("search", bird_folders, "--out", out, "--epochs", 9)


def _figures(model: Path) -> dict[str, Any]:
    from sic.directory import read_config

    return read_config(model)[0].figures


@pytest.mark.slow
def test_an_interrupted_search_continues_to_the_uninterrupted_result(
    sic: Sic, bird_folders: Path, tmp_path: Path
) -> None:
    """Of SIGTERM, see `test_what_ends_it_ends_all_of_them`."""
    flags = ["--epochs", 6, "--backbone", "resnet_tiny", "--size", 40, "--batch-size", 4, "--lr", 0.003, "-T", 1]
    command = [sys.executable, "-m", "sic", "search", bird_folders, "--out", tmp_path / "search", *flags]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    trial = tmp_path / "search" / "trials" / "lr0.003-T1"
    wait_until((trial / "history.csv").is_file, process)
    process.send_signal(signal.SIGINT)  # to the search alone: it ends its trials
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert "same command" in said.splitlines()[-1]
    assert {each.state for each in Search(tmp_path / "search", _is_running).trials()} == {"waiting"}
    assert not (trial / "pixels.bin").exists()
    found = sic.json("search", bird_folders, "--out", tmp_path / "search")
    assert [t["state"] for t in found["trials"]] == ["finished"]
    assert "Resuming" in (trial.parent / f"{trial.name}.log").read_text()
    whole = sic.json("train", bird_folders, "--out", tmp_path / "whole", *flags)
    assert found["trials"][0]["score"] == whole["accuracy"]
    weights = [folder / "model.safetensors" for folder in (tmp_path / "whole", Path(found["trials"][0]["model"]))]
    assert weights[0].read_bytes() == weights[1].read_bytes()
