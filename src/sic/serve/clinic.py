"""The clinic of the served model: opened when it is asked for, because it looks at every image of the training."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from sic.clinic import Clinic, Edit, Outcome
from sic.clinic.edits import standing
from sic.data.dataset import Sample
from sic.directory import stamp
from sic.errors import SicError
from sic.model import load
from sic.serve.engine import Engine
from sic.serve.limits import Refused
from sic.supports import by_position, find_support

SHOWN = 60
"""Candidates named at once."""


class ServedClinic:
    """Edits go to the model directory and to the engine, or to neither."""

    def __init__(self, folder: Path, engine: Engine, allowed: bool = True) -> None:
        self.folder, self.engine, self.allowed = folder, engine, allowed
        self.state: Literal["closed", "opening", "open", "failed"] = "closed"
        self.error: str | None = None
        self.done, self.total = 0, 0
        self._clinic: Clinic | None = None
        self._samples: dict[str, Sample] = {}
        self._known = stamp(self.folder)
        self._edited = False
        """Whether the supports are others than when the server was started."""

    @property
    def outdated(self) -> bool:
        """Whether somebody else, such as `sic supports`, has changed the model since."""
        return stamp(self.folder) not in (None, self._known)  # moved or deleted: what is loaded goes on answering

    def catch_up(self) -> None:
        """Go on with the supports that the model has on disk."""
        now = stamp(self.folder)
        if now == self._known:
            return
        model = load(self.folder, self.engine.model.device)
        old, new = self.engine.classifier.encoder.state_dict(), model.sic.encoder.state_dict()
        if old.keys() != new.keys() or not all(torch.equal(old[name], new[name]) for name in new):
            raise Refused(409, "There is another model in this place now; start sic serve again.")
        self.engine.use(model)
        if self.state == "open":
            self._clinic, self.state = None, "closed"
        self._known, self._edited = now, True

    def open(self) -> None:
        """Begin to open it, in a thread of its own: answers about images need not wait for that."""
        self._allow()
        if self.state in ("closed", "failed"):
            self.state, self.error = "opening", None
            threading.Thread(target=self._open, name="sic-clinic", daemon=True).start()

    def _open(self) -> None:
        def progress(done: int, total: int) -> None:
            self.done, self.total = done, total

        try:
            clinic = Clinic(self.folder, progress=progress)
        except Exception as error:  # whatever it is, the page must not wait for ever
            known = isinstance(error, SicError)
            self.error = str(error) if known else f"The clinic cannot be opened ({type(error).__name__}: {error})."
            self.state = "failed"
            return
        self._samples = {sample.id: sample for split in clinic.examined.splits.values() for sample in split}
        self._clinic = clinic
        self.state = "open"

    def _allow(self) -> None:
        if not self.allowed:
            raise Refused(403, "Supports can be edited on the server's own machine only; --allow-edits changes that.")

    @property
    def clinic(self) -> Clinic:
        self._allow()
        if self._clinic is None:
            raise Refused(409, "The clinic is not open yet: POST /api/v1/clinic/open first.")
        return self._clinic

    def describe(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "allowed": self.allowed,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "error": self.error,
        }
        if self._clinic is None or not self.allowed:
            return about
        clinic, shown = self._clinic, self._clinic.examined.model.supports
        records = clinic.history()
        return about | {
            "problems": clinic.problems,
            "figures": clinic.examined.predictions("validation").quality,
            "supports": [asdict(info) | {"shown": shown[info.index].image is not None} for info in clinic.list()],
            "history": [asdict(record) for record in records],
            "can_undo": len(standing(records)),
        }

    def candidates(self, label: str, near: int | None) -> dict[str, Any]:
        found = self.clinic.candidates(label, near)
        images = [{"id": c.id, "distance": c.distance, "support": c.support} for c in found[:SHOWN]]
        return {"total": len(found), "images": images}

    def sample(self, id: str) -> Sample:
        """An image by its id in the data; an id that is not known is no path to anything."""
        self.clinic  # noqa: B018 - refuses where it is not open
        if id not in self._samples:
            raise Refused(404, "The model's data has no such image.")
        return self._samples[id]

    def preview(self, edit: Edit, source: str | None) -> dict[str, Any]:
        self._same(edit, source)
        return asdict(self.clinic.preview(edit))

    def apply(self, edit: Edit, source: str | None) -> dict[str, Any]:
        self._same(edit, source)
        return self._changed(self.clinic.apply(edit))

    def undo(self) -> dict[str, Any]:
        return self._changed(self.clinic.undo())

    def _changed(self, outcome: Outcome) -> dict[str, Any]:
        self.engine.use(self.clinic.examined.model)
        self._known, self._edited = stamp(self.folder), True
        return asdict(outcome)

    def _same(self, edit: Edit, source: str | None) -> None:
        """Numbers move when a support is dropped: whoever still looks at an old list must not hit another one."""
        if edit.support is None or not by_position(edit.support):
            return
        if source is None and self._edited:
            raise Refused(409, "The supports have been edited, so numbers have moved; name the support by its image.")
        if source is None:
            return
        examined, changed = self.clinic.examined, Refused(409, "The supports have changed; load the page again.")
        try:
            index = find_support(examined.supports, edit.support, examined.classes)
        except SicError:
            raise changed from None
        if examined.supports[index].source != source:
            raise changed
