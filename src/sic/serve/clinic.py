"""The clinic of the served model and its routes. It is opened on request, because it embeds every training image."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from sic.clinic import Clinic, Edit, Outcome
from sic.clinic.edits import standing
from sic.data.dataset import Sample
from sic.directory import stamp
from sic.errors import SicError
from sic.explain.picture import png
from sic.model import load
from sic.serve import schemas
from sic.serve.engine import Engine
from sic.serve.limits import Limits, Refused, Worker
from sic.serve.messages import V1, image_answer, receive_json
from sic.supports import by_position, find_support

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": schemas.EditRequest.model_json_schema()}},
    }
}
EMPTY: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
SHOWN = 60
"""The most candidates listed."""


class ServedClinic:
    """The clinic of a server. An edit changes the model directory and the engine, or neither."""

    def __init__(
        self, folder: Path, engine: Engine, allowed: bool = True, known: tuple[int, int] | None = None
    ) -> None:
        """`known`: the `stamp` of the folder before the model was loaded; by default that of now."""
        self.folder, self.engine, self.allowed = folder, engine, allowed
        self.state: Literal["closed", "opening", "open", "failed"] = "closed"
        self.error: str | None = None
        self.done, self.total = 0, 0
        self._clinic: Clinic | None = None
        self._samples: dict[str, Sample] = {}
        self._known = known or stamp(self.folder)
        self._examined: tuple[int, int] | None = None
        """The `stamp` of the folder that the clinic has examined."""
        self._lock = threading.Lock()
        """Held while the clinic is replaced."""
        self._edited = False
        """Whether the supports have changed since the server started."""

    @property
    def outdated(self) -> bool:
        """Whether another process, such as `sic supports`, has changed the model since."""
        return stamp(self.folder) not in (
            None,
            self._known,
        )  # if it was moved or deleted, the loaded model stays in use

    def catch_up(self) -> None:
        """Load the supports that the model has on disk now."""
        now = stamp(self.folder)
        if now == self._known:
            return
        model = load(self.folder, self.engine.model.device)
        old, new = self.engine.classifier.encoder.state_dict(), model.sic.encoder.state_dict()
        if old.keys() != new.keys() or not all(torch.equal(old[name], new[name]) for name in new):
            raise Refused(409, "The directory has another model now; restart sic serve.")
        self.engine.use(model)
        with self._lock:
            if self.state == "open" and self._examined != now:
                self._clinic, self.state = None, "closed"
        self._known, self._edited = now, True

    def open(self) -> None:
        """Start to open the clinic in a thread, so that requests about images need not wait."""
        self._allow()
        if self.state in ("closed", "failed"):
            self.state, self.error = "opening", None
            threading.Thread(target=self._open, name="sic-clinic", daemon=True).start()

    def _open(self) -> None:
        def progress(done: int, total: int) -> None:
            self.done, self.total = done, total

        while True:
            before = stamp(self.folder)
            try:
                clinic = Clinic(self.folder, progress=progress)
            except Exception as error:  # the page must not wait for ever, whatever the error
                known = isinstance(error, SicError)
                self.error = str(error) if known else f"The clinic cannot be opened ({type(error).__name__}: {error})."
                self.state = "failed"
                return
            with self._lock:
                if stamp(self.folder) == before:  # otherwise another process has edited the model: open it again
                    self._samples = {sample.id: sample for split in clinic.examined.splits.values() for sample in split}
                    self._clinic, self._examined, self.state = clinic, before, "open"
                    return

    def _allow(self) -> None:
        if not self.allowed:
            raise Refused(
                403,
                "Supports can only be edited on the server's own machine; see --allow-edits.",
            )

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
        """An image of the data by its id; unknown ids are refused, so no id is used as a path."""
        self.clinic  # noqa: B018 - refuses if it is not open
        if id not in self._samples:
            raise Refused(404, "The data of the model has no such image.")
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
        self._known = self._examined = stamp(self.folder)
        self._edited = True
        return asdict(outcome)

    def _same(self, edit: Edit, source: str | None) -> None:
        """Refuse an edit by number from an outdated list: numbers change when a support is dropped."""
        if edit.support is None or not by_position(edit.support):
            return
        if source is None and self._edited:
            raise Refused(
                409, "The supports were edited and their numbers have changed; give the image of the support."
            )
        if source is None:
            return
        examined, changed = self.clinic.examined, Refused(409, "The supports have changed; load the page again.")
        try:
            index = find_support(examined.supports, edit.support, examined.classes)
        except SicError:
            raise changed from None
        if examined.supports[index].source != source:
            raise changed


async def _read_edit(request: Request, limits: Limits) -> tuple[Edit, str | None]:
    """An edit, and the id of the image that its support must still have."""
    try:
        wanted = schemas.EditRequest.model_validate_json(await receive_json(request, limits))
    except ValidationError as error:
        raise Refused(422, f"This is not an edit: {error.errors()[0]['msg']}.") from None
    return Edit(wanted.action, wanted.support, wanted.image, wanted.label), wanted.source


def add_clinic(app: FastAPI, clinic: ServedClinic, worker: Worker, limits: Limits) -> None:
    """Add the routes of the clinic to the application."""

    @app.get(f"{V1}/clinic", tags=["clinic"], response_model=schemas.ClinicState, summary="The supports and all edits")
    async def state() -> Any:
        return await worker.run(lambda _: clinic.describe())

    @app.post(f"{V1}/clinic/open", tags=["clinic"], openapi_extra=EMPTY, summary="Start to embed the training images")
    async def open_clinic(request: Request) -> dict[str, str]:
        await receive_json(request, limits)
        clinic.open()
        return {"state": clinic.state}

    @app.get(
        f"{V1}/clinic/candidates",
        tags=["clinic"],
        response_model=schemas.Candidates,
        summary="Training images that could be supports of a class",
    )
    async def candidates(
        label: Annotated[str, Query(alias="class")],
        near: Annotated[int | None, Query(description="Nearest to this support instead of to the mean.")] = None,
    ) -> Any:
        return await worker.run(lambda _: clinic.candidates(label, near))

    @app.get(f"{V1}/clinic/image", tags=["clinic"], summary="An image of the model's data as the model sees it")
    def image(id: str) -> Response:  # does not use the model, so it need not wait in line
        return image_answer(png(clinic.engine.model.tensor(clinic.sample(id).path)))

    _add_edits(app, clinic, worker, limits)


def _add_edits(app: FastAPI, clinic: ServedClinic, worker: Worker, limits: Limits) -> None:
    @app.post(
        f"{V1}/clinic/preview",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=BODY,
        summary="Measure an edit without saving it",
    )
    async def preview(request: Request) -> Any:
        edit, source = await _read_edit(request, limits)
        return await worker.run(lambda _: clinic.preview(edit, source))

    @app.post(
        f"{V1}/clinic/apply",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=BODY,
        summary="Edit the supports, here and in the model directory",
    )
    async def apply(request: Request) -> Any:
        edit, source = await _read_edit(request, limits)
        return await worker.run(lambda _: clinic.apply(edit, source), whole=True)

    @app.post(
        f"{V1}/clinic/undo",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=EMPTY,
        summary="Undo the last edit that is in effect",
    )
    async def undo(request: Request) -> Any:
        await receive_json(request, limits)
        return await worker.run(lambda _: clinic.undo(), whole=True)
