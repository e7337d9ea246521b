"""`/api/v1/clinic`: looking at the supports and changing them, with what that does to the answers."""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from sic.clinic import Edit
from sic.explain.picture import png
from sic.serve import schemas
from sic.serve.answers import V1, Site, image_answer
from sic.serve.limits import Refused
from sic.serve.uploads import receive_json

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": schemas.EditRequest.model_json_schema()}},
    }
}
EMPTY: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}


def add(app: FastAPI, site: Site) -> None:
    clinic, worker = site.clinic, site.worker

    async def read_edit(request: Request) -> tuple[Edit, str | None]:
        try:
            wanted = schemas.EditRequest.model_validate_json(await receive_json(request, site.limits))
        except ValidationError as error:
            raise Refused(422, f"This is not an edit: {error.errors()[0]['msg']}.") from None
        return Edit(wanted.action, wanted.support, wanted.image, wanted.label), wanted.source

    @app.get(f"{V1}/clinic", tags=["clinic"], response_model=schemas.ClinicState, summary="Supports and what was done")
    async def state() -> Any:
        return await worker.run(lambda _: clinic.describe())

    @app.post(f"{V1}/clinic/open", tags=["clinic"], openapi_extra=EMPTY, summary="Begin to look at the training images")
    async def open_clinic(request: Request) -> dict[str, str]:
        await receive_json(request, site.limits)
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
    def image(id: str) -> Response:  # not the model's work: it need not wait in line
        return image_answer(png(site.engine.model.tensor(clinic.sample(id).path)))

    @app.post(
        f"{V1}/clinic/preview",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=BODY,
        summary="What an edit would do",
    )
    async def preview(request: Request) -> Any:
        edit, source = await read_edit(request)
        return await worker.run(lambda _: clinic.preview(edit, source))

    @app.post(
        f"{V1}/clinic/apply",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=BODY,
        summary="Edit the supports of the model, here and in its directory",
    )
    async def apply(request: Request) -> Any:
        edit, source = await read_edit(request)
        return await worker.run(lambda _: clinic.apply(edit, source))

    @app.post(
        f"{V1}/clinic/undo",
        tags=["clinic"],
        response_model=schemas.Outcome,
        openapi_extra=EMPTY,
        summary="Take back the last edit that stands",
    )
    async def undo(request: Request) -> Any:
        await receive_json(request, site.limits)
        return await worker.run(lambda _: clinic.undo())
