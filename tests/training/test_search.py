"""The books of a search, with trials that only pretend to train."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import lock_descriptor
from PIL import Image

from sic.data.images import Preprocessing
from sic.directory import FORMAT, Config
from sic.errors import SicError
from sic.training import Settings, Silent
from sic.training.grid import Point, Trial, best, default_axes, draw
from sic.training.presets import PRESETS
from sic.training.search import Search
from sic.training.watch import LatentHealth, collapse
from sic.training.worker import LOST, environment

pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.training.search.LOOK", 0.05)


SETTINGS = Settings("resnet_tiny", Preprocessing(32, 32), 2, 3e-3, 1.0, 8, "scratch", "none")
DATA = {"classes": ["a", "b"], "task": "single", "images": {"train": 10}}

# What `sic train` does, less the training: run.json when it begins, config.json at its end, a sentence where it fails.
PRETENDER = """
import json, os, signal, sys, time
from pathlib import Path
folder, settings, config, act = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
with open(folder.parent / "calls.txt", "a") as calls:
    print(folder.name, act, "resume" if (folder / "run.json").exists() else "new", file=calls)
if act == "refuse":
    sys.exit("sic: --weights is not there; name another.")
folder.mkdir(exist_ok=True)
(folder / "new").write_text(json.dumps({"settings": json.loads(settings)}))
(folder / "new").rename(folder / "run.json")  # all of it or nothing, as `sic train` does
if act == "nan":
    sys.exit("sic: The loss became NaN or infinite in epoch 1; try a lower --lr (it was 9).")
if act == "full":
    sys.exit("sic: The disk is full; free some space and run the command again (training: with --resume).")
if act == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "collapse":
    print("! " + sys.argv[5], flush=True)
if act in ("sleep", "collapse"):
    time.sleep(60)
(folder / "config.json").write_text(config)
"""


def pretend(act: dict[Point, str], scores: dict[Point, float] | None = None, more: str = "") -> Any:
    def command(point: Point, folder: Path, goes_on: bool) -> list[str]:
        config = asdict(Config("resnet_tiny", ["a", "b"], "single", SETTINGS.preprocessing, 3, point[1]))
        accuracy = (scores or {}).get(point, 0.5)
        config["figures"] = {"validation": {"accuracy": accuracy}, "test": {"accuracy": 1 - accuracy}}
        content = json.dumps({"format": FORMAT, "weights_sha256": "", **config})
        settings = json.dumps(asdict(replace(SETTINGS, lr=point[0], temperature=point[1])))
        assert goes_on == (folder / "run.json").is_file()
        return [sys.executable, "-S", "-c", PRETENDER, str(folder), settings, content, act.get(point, "train"), more]

    return command


def begun(out: Path, points: list[Point], url: str | None = None) -> Search:
    search = Search(out, url)
    search.begin({"epochs": 2}, SETTINGS, DATA)
    search.add(points)
    return search


def states(search: Search) -> dict[Point, str]:
    return {trial.point: trial.state for trial in search.trials()}


def calls(out: Path) -> list[str]:
    return (out / "trials" / "calls.txt").read_text().splitlines()


POINTS: list[Point] = [(1e-3, 10.0), (1e-3, 30.0), (1e-4, 10.0)]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_point_is_tried_once(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "a search #1"
    scores = {POINTS[0]: 0.5, POINTS[1]: 0.75, POINTS[2]: 0.25}
    search = begun(out, POINTS)
    search.run(pretend({}, scores), workers, Silent())
    assert {trial.point: trial.score for trial in search.trials()} == scores  # of validation images, not of test ones
    winner = best(search.trials())
    assert winner is not None and winner.point == POINTS[1]
    assert winner.model == str(out / "trials" / "lr0.001-T30")
    assert sorted(calls(out)) == sorted(f"{name} train new" for name in ("lr0.001-T10", "lr0.001-T30", "lr0.0001-T10"))
    again = begun(out, [*POINTS, (1e-4, 30.0)])
    again.run(pretend({}, scores), workers, Silent())
    assert len(calls(out)) == 4 and calls(out)[-1] == "lr0.0001-T30 train new"


def test_failures_have_their_sentence_and_the_search_goes_on(tmp_path: Path) -> None:
    sentence = collapse(LatentHealth(0.9, 1.0), 1.0, 0.5, 0.5, 200)
    assert sentence is not None
    points: list[Point] = [(9.0, 1.0), (1.0, 1.0), (0.1, 1.0), (0.01, 1.0), (0.001, 1.0)]
    acts = dict(zip(points, ("nan", "collapse", "full", "die", "train"), strict=True))
    search = begun(tmp_path, points)
    started = time.monotonic()
    search.run(pretend(acts, more=sentence), 1, Silent())
    assert time.monotonic() - started < 30  # a collapsed fit is not waited for
    reasons = {trial.lr: trial.reason for trial in search.trials()}
    assert [t.state for t in search.trials()] == ["failed"] * 4 + ["finished"]
    assert str(reasons[9.0]).startswith("The loss became NaN or infinite in epoch 1")
    assert str(reasons[1.0]).startswith("The fit has collapsed: after 200 steps") and "stop it" not in str(reasons[1.0])
    assert "disk is full" in str(reasons[0.1])
    assert "killed (signal 9)" in str(reasons[0.01])
    # What would end in the same way is not tried again; what may have gone away is.
    done = len(calls(tmp_path))
    again = begun(tmp_path, points)
    again.run(pretend({}), 1, Silent())
    assert sorted(calls(tmp_path)[done:]) == ["lr0.01-T1 train resume", "lr0.1-T1 train resume"]
    assert [t.state for t in again.trials() if t.lr <= 0.1] == ["finished"] * 3
    assert [t.state for t in again.trials() if t.lr > 0.1] == ["failed"] * 2


def test_both_sentences_about_nan_are_known() -> None:
    from sic.training import base, cases

    assert all(Path(module.__file__).read_text().count("became NaN") == 1 for module in (base, cases))
    assert LOST.search("sic: The latents became NaN in epoch 3; try a lower --lr.")


def test_what_no_trial_can_start_with_stops_the_search(tmp_path: Path) -> None:
    search = begun(tmp_path, POINTS)
    with pytest.raises(SicError, match="--weights is not there"):
        search.run(pretend(dict.fromkeys(POINTS, "refuse")), 1, Silent())
    assert set(states(search).values()) == {"waiting"} and len(calls(tmp_path)) == 1
    search.run(pretend({}), 1, Silent())
    assert set(states(search).values()) == {"finished"}


def test_an_interrupt_puts_back_what_ran(tmp_path: Path) -> None:
    def interrupted(point: Point, folder: Path, goes_on: bool) -> list[str]:
        if point == POINTS[1]:
            raise KeyboardInterrupt
        return pretend({point: "sleep"})(point, folder, goes_on)

    search = begun(tmp_path, POINTS)
    with pytest.raises(KeyboardInterrupt):
        search.run(interrupted, 2, Silent())
    assert set(states(search).values()) == {"waiting"}
    after = begun(tmp_path, POINTS)
    after.run(pretend({}), 2, Silent())
    assert set(states(after).values()) == {"finished"}


def test_a_killed_search_is_continued_but_not_what_still_runs(tmp_path: Path) -> None:
    """The process of the search is killed, its trial lives on: only when that ends it is taken over."""
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from sic.training import Silent
        from tests.training.test_search import POINTS, begun, pretend
        begun(Path({str(tmp_path)!r}), POINTS[:1]).run(pretend({{POINTS[0]: "sleep"}}), 1, Silent())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    log = tmp_path / "trials" / "lr0.001-T10.log"
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "trials" / "lr0.001-T10" / "run.json").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        search = begun(tmp_path, POINTS[:1])
        search._take_back()
        assert states(search) == {POINTS[0]: "running"}
        with log.open() as file:
            assert not lock_descriptor(file.fileno(), blocking=False)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    search.run(pretend({}), 1, Silent())
    assert states(search) == {POINTS[0]: "finished"}
    assert calls(tmp_path) == ["lr0.001-T10 sleep new", "lr0.001-T10 train resume"]


def test_two_places_share_a_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    here, there = (begun(tmp_path / place / "birds", POINTS, url) for place in ("here", "there"))
    assert len(here.trials()) == 3
    taken = there._start(pretend(dict.fromkeys(POINTS, "sleep")), 0, 1, Silent())
    assert taken is not None
    here._take_back()
    assert list(states(here).values()).count("running") == 1  # not ours, and not silent for long enough
    taken.process.kill()
    taken.process.wait()
    taken.log.close()
    monkeypatch.setattr("sic.training.search.SILENT", 1.0)
    here.run(pretend({}), 1, Silent())
    assert set(states(here).values()) == {"finished"}
    assert all(str(trial.model).startswith(str(tmp_path / "here")) for trial in here.trials())
    # The other one had only slept; what is finished by now stays as it is.
    before = here.trials()
    there._put_back(taken.number)
    there._set(taken.number, "COMPLETE", 0.1)
    assert here.trials() == before


def test_other_settings_data_and_leftovers_are_refused(tmp_path: Path) -> None:
    begun(tmp_path / "a", POINTS).run(pretend({}), 1, Silent())
    with pytest.raises(SicError, match="has epochs 2, here it would be 3"):
        Search(tmp_path / "a").begin({}, replace(SETTINGS, epochs=3), DATA)
    with pytest.raises(SicError, match="size 32, here it would be 16|resize 32, here it would be 16"):
        Search(tmp_path / "a").begin({}, replace(SETTINGS, preprocessing=Preprocessing(16, 16)), DATA)
    with pytest.raises(SicError, match="images"):
        Search(tmp_path / "a").begin({}, SETTINGS, {**DATA, "classes": ["a", "c"]})
    (tmp_path / "a" / "search.db").unlink()
    search = Search(tmp_path / "a")
    search.begin({}, replace(SETTINGS, epochs=5), DATA)
    search.add(POINTS)
    with pytest.raises(SicError, match="other settings"):
        search.run(pretend({}), 1, Silent())


def test_storages_that_cannot_be_used(tmp_path: Path) -> None:
    for url in ("nonsense", "mysql://someone:secret@127.0.0.1:1/none", "redis://x"):
        with pytest.raises(SicError, match="--storage") as caught:
            Search(tmp_path / "a", url)
        assert "secret" not in str(caught.value)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "search.db").write_text("not a database, certainly not" * 100)
    with pytest.raises(SicError, match="search.db"):
        Search(tmp_path / "b")


def test_the_papers_grid() -> None:
    photographs = replace(SETTINGS, weights="imagenet", recipe="paper", lr=1e-4, temperature=30.0)
    assert default_axes(photographs) == ((2.2e-3, 1e-3, 2.2e-4, 1e-4, 2.2e-5, 1e-5), (10, 30))
    assert default_axes(replace(SETTINGS, lr=3e-4, temperature=50.0)) == ((1e-2, 3e-3, 1e-3, 3e-4), (10, 30, 50))
    assert default_axes(SETTINGS)[1] == (1, 10, 30, 50)  # with what is chosen where nothing is said


@pytest.mark.parametrize("name", sorted(name for name, preset in PRESETS.items() if preset.method == "sic"))
def test_the_papers_best_settings_are_on_its_grid(name: str) -> None:
    preset = PRESETS[name]
    settings = replace(SETTINGS, lr=preset.lr, temperature=preset.temperature, weights=preset.weights)
    rates, temperatures = default_axes(settings)
    assert len(rates) * len(temperatures) == 12
    assert preset.lr in rates and preset.temperature in temperatures


def test_each_worker_has_a_gpu_while_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [environment(slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["5", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(0, 10_000)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(0, 1)


def test_the_picture_of_a_grid(tmp_path: Path) -> None:
    trials = [
        Trial(0, 1e-3, 10.0, "finished", 0.9),
        Trial(1, 1e-3, 30.0, "finished", 0.4),
        Trial(2, 1e-4, 10.0, "failed", reason="The loss became NaN."),
        Trial(3, 2.2e-5, 30.0, "running"),
    ]
    draw(trials, "Accuracy", tmp_path / "grid.png")
    draw(trials[2:], "Accuracy", tmp_path / "none.png")
    for name in ("grid", "none"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert min(picture.size) > 250
    assert best(trials[2:]) is None
