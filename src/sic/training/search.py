"""A grid search: every trial is a `sic train` in a process and a folder of its own; Optuna keeps the books.

A trial that runs is alive as long as its log file is locked: the lock goes with its process, however that ends. Of
trials on other machines there is a beat in the storage instead.
"""

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from sic.data.labels import MAIN_SCORE
from sic.directory import RUN, read_config
from sic.errors import SicError
from sic.training.fit import HISTORY, recorded_settings
from sic.training.grid import Point, Trial
from sic.training.history import Reporter, read_history
from sic.training.settings import Settings, from_json
from sic.training.worker import LOST, TrialProcess, environment, locked_log, reason_of, stop

BOOKS, TRIALS = "search.db", "trials"
BEAT, SILENT = 15.0, 120.0
"""Seconds between two signs of life of a trial, and without any until another machine takes it over."""
LOOK = 0.5
"""Seconds between two looks at what runs."""
Command = Callable[[Point, Path, bool], list[str]]
"""The command that trains at a point into a folder; True: goes on with what is in there."""


class Search:
    """The trials below a folder and their state in an Optuna study named like the folder."""

    def __init__(self, out: Path, url: str | None = None) -> None:
        """Continue the search in `out`, or begin one there; `url` names a storage other than `out`'s own file."""
        self.out = out.resolve()
        self.place = f"{platform.node()}:{self.out}"
        self._seen: dict[int, tuple[int, float]] = {}
        """Of trials elsewhere: their last beat, and when we first saw it."""
        self.optuna = require_optuna()
        if url is None:
            (self.out / TRIALS).mkdir(parents=True, exist_ok=True)
        try:
            self.storage = self.optuna.storages.RDBStorage(url or f"sqlite:///{self.out / BOOKS}")
            self.study = self.optuna.create_study(
                study_name=self.out.name, storage=self.storage, direction="maximize", load_if_exists=True
            )
        except Exception as error:  # each database has its own; none may show the password in the URL
            where = f"{self.out / BOOKS}" if url is None else "--storage"
            reason = str(error).strip().splitlines()[0] if url is None else type(error).__name__
            raise SicError(f"{where} cannot be used for a search ({reason}); name another.") from None
        self.id = self.storage.get_study_id_from_name(self.out.name)

    @property
    def record(self) -> dict[str, Any]:
        """What the search was begun with: `flags`, `settings`, `data`; empty if it has not been yet."""
        return dict(self.study.user_attrs)

    def begin(self, flags: dict[str, Any], settings: Settings, data: dict[str, Any]) -> None:
        """Record what all trials have in common; who continues the search must come with the same."""
        self.settings = settings
        before = self.record
        if not before:
            for name, value in {"flags": flags, "data": data, "settings": asdict(settings)}.items():
                self.study.set_user_attr(name, value)
            return
        if before["data"] != json.loads(json.dumps(data)):
            raise SicError(
                f"The images are not those that the search in {self.out} was begun with; choose another --out."
            )
        ours, theirs = ({**asdict(s), **asdict(s.preprocessing)} for s in (settings, from_json(before["settings"])))
        for name in sorted(set(ours) - {"lr", "temperature", "preprocessing"}):
            if ours[name] != theirs[name]:
                raise SicError(
                    f"The search in {self.out} has {name.replace('_', ' ')} {theirs[name]}, here it would be "
                    f"{ours[name]}; say all settings that matter, and begin anew with another --out."
                )

    def add(self, points: Iterable[Point]) -> None:
        """Queue points that nobody has tried, and those that failed for reasons that may be gone."""
        any_value = self.optuna.distributions.FloatDistribution(1e-12, 1e12, log=True)
        settled = {t.point for t in self.trials() if t.state != "failed" or LOST.search(t.reason or "")}
        for lr, temperature in points:
            if (lr, temperature) not in settled:
                trial = self.optuna.trial.create_trial(
                    state=self.optuna.trial.TrialState.WAITING,
                    params={"lr": lr, "temperature": temperature},
                    distributions={"lr": any_value, "temperature": any_value},
                )
                self.study.add_trial(trial)

    def trials(self) -> list[Trial]:
        """One per point, the furthest where there were several, in the order of their numbers."""
        names = {"COMPLETE": "finished", "RUNNING": "running", "WAITING": "waiting", "FAIL": "failed"}
        order = list(names.values())
        found: dict[Point, Trial] = {}
        for frozen in self.study.get_trials(deepcopy=False):
            lr, temperature = frozen.params["lr"], frozen.params["temperature"]
            told = {name: frozen.user_attrs.get(name) for name in ("reason", "model", "seconds")}
            state: Any = names[frozen.state.name]
            score = frozen.value if state == "finished" else None
            trial = Trial(frozen.number, lr, temperature, state, score, **told)
            other = found.get(trial.point)
            if other is None or order.index(trial.state) <= order.index(other.state):
                found[trial.point] = trial
        return sorted(found.values(), key=lambda trial: trial.trial)

    def run(self, command: Command, workers: int, reporter: Reporter) -> None:
        """Work on the queue until it is empty, with `workers` processes; wait for trials that run elsewhere.

        Whatever ends it, what has not finished is in the queue again.
        """
        running: list[TrialProcess] = []
        beaten, waits = 0.0, False
        try:
            while True:
                self._take_back()
                while len(running) < workers:
                    slot = min(set(range(workers)) - {r.slot for r in running})
                    started = self._start(command, slot, workers, reporter)
                    if started is None:
                        break
                    running.append(started)
                if not running:
                    elsewhere = sum(t.state in ("running", "waiting") for t in self.trials())
                    if elsewhere == 0:
                        return
                    if not waits:
                        reporter.say(f"Waiting for {elsewhere} trials that run elsewhere.")
                    waits = True
                time.sleep(LOOK)
                if time.monotonic() - beaten > BEAT:
                    beaten = time.monotonic()
                    for one in running:
                        self._note(one.number, beat=int(beaten))
                for one in list(running):
                    if self._look(one, reporter):
                        running.remove(one)
        finally:
            stop([one.process for one in running])
            for one in running:
                self._put_back(one.number)
                one.log.close()

    def _start(self, command: Command, slot: int, workers: int, reporter: Reporter) -> TrialProcess | None:
        """Take a trial from the queue and begin or continue it; None if there is none to take."""
        state = self.optuna.trial.TrialState
        for frozen in self.study.get_trials(deepcopy=False, states=(state.WAITING,)):
            point = frozen.params["lr"], frozen.params["temperature"]
            folder = self.out / TRIALS / f"lr{point[0]:g}-T{point[1]:g}"
            log = locked_log(folder)
            if log is None:
                continue
            # Locked first: who sees that it runs must find it locked.
            if not self.storage.set_trial_state_values(self._id(frozen.number), state.RUNNING):
                log.close()
                continue
            reporter.say(f"Trial {frozen.number}: lr {point[0]:g}, T = {point[1]:g} → {folder}")
            start = log.tell()
            try:
                self._note(frozen.number, place=self.place, model=str(folder), reason=None, beat=0)
                process = self._process(command, point, folder, log, environment(slot, workers))
            except BaseException:
                self._put_back(frozen.number)
                log.close()
                raise
            return TrialProcess(frozen.number, point, folder, slot, process, log, start)
        return None

    def _process(
        self, command: Command, point: Point, folder: Path, log: IO[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        goes_on = (folder / RUN).is_file()
        wanted = replace(self.settings, lr=point[0], temperature=point[1])
        if goes_on and recorded_settings(folder, {}) != wanted:
            raise SicError(f"{folder} holds a run with other settings; move it away, or choose another --out.")
        arguments = command(point, folder, goes_on)
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _look(self, one: TrialProcess, reporter: Reporter) -> bool:
        """Tell how far a trial is; True if it has ended, which is in the books then."""
        rows = read_history(one.folder / HISTORY)
        if rows:
            note = f"validation {float(rows[-1]['val_score']):.1%}"
            reporter.advance(f"trial {one.number}", int(rows[-1]["epoch"]), self.settings.epochs, note)
        code = one.process.poll()
        said = one.said()  # after that: its last words are there
        lost = LOST.search(said)
        if code is None and lost is None:
            return False
        if code is None:
            stop([one.process])
        self._note(one.number, seconds=round(time.monotonic() - one.began, 1))
        if code == 0 and lost is None:
            score = _score(one.folder)
            self._set(one.number, "COMPLETE", score)
            reporter.say(f"Trial {one.number}: validation {score:.1%}")
        else:
            reason = lost.group() if lost else reason_of(said, code)
            if not (one.folder / RUN).is_file():  # not the fault of its point: the others would end in the same way
                raise SicError(f"No trial can start: {reason}")
            self._note(one.number, reason=reason)
            self._set(one.number, "FAIL")
            reporter.warn(f"Trial {one.number} failed: {reason}")
        one.log.close()
        ended = [t.state in ("finished", "failed") for t in self.trials()]
        reporter.advance("trials", sum(ended), len(ended))
        return True

    def _take_back(self) -> None:
        """Queue again what ran in a process that is no more."""
        for frozen in self.study.get_trials(deepcopy=False, states=(self.optuna.trial.TrialState.RUNNING,)):
            if frozen.user_attrs.get("place") == self.place:
                log = locked_log(Path(frozen.user_attrs["model"]))
                if log is not None:
                    self._put_back(frozen.number)
                    log.close()
                continue
            beat = frozen.user_attrs.get("beat", -1)
            known, since = self._seen.get(frozen.number, (None, 0.0))
            if beat != known:
                self._seen[frozen.number] = beat, time.monotonic()
            elif time.monotonic() - since > SILENT:
                self._put_back(frozen.number)

    # A machine that slept may find that another has finished its trial: that stands.

    def _put_back(self, number: int) -> None:
        self._note(number, place=None)
        self._set(number, "WAITING")

    def _set(self, number: int, state: str, score: float | None = None) -> None:
        with suppress(self.optuna.exceptions.UpdateFinishedTrialError):
            values = None if score is None else [score]
            self.storage.set_trial_state_values(self._id(number), self.optuna.trial.TrialState[state], values)

    def _note(self, number: int, **content: Any) -> None:
        with suppress(self.optuna.exceptions.UpdateFinishedTrialError):
            for name, value in content.items():
                self.storage.set_trial_user_attr(self._id(number), name, value)

    def _id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.id, number)


def require_optuna() -> ModuleType:
    """Optuna, or the sentence that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise SicError("A search needs Optuna: pip install 'sic[search]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _score(folder: Path) -> float:
    """The figure of a finished fit on its validation images."""
    config, _ = read_config(folder)
    return float(config.figures["validation"][MAIN_SCORE[config.task]])
