"""The HTTP interface's own conventions: what a request may contain, and how answers and refusals look."""

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from sic.errors import SicError
from sic.serve.clinic import ServedClinic
from sic.serve.decoder import Decoder
from sic.serve.engine import Engine
from sic.serve.limits import Limits, Refused
from sic.serve.metrics import Metrics
from sic.serve.schemas import Error
from sic.serve.work import Worker

V1 = "/api/v1"


@dataclass
class Site:
    """What the routes of one server share."""

    engine: Engine
    clinic: ServedClinic
    limits: Limits
    worker: Worker
    decoder: Decoder
    metrics: Metrics


IMAGES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                },
                "encoding": {"image": {"contentType": "image/png, image/jpeg, application/dicom"}},
            },
            **{
                kind: {"schema": {"type": "string", "format": "binary"}}
                for kind in ("image/png", "image/jpeg", "application/dicom", "application/octet-stream")
            },
        },
    }
}
"""OpenAPI of a body with images: files in a form, or one image as it is."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request cannot be read."},
    401: {"model": Error, "description": "The token is missing or wrong."},
    413: {"model": Error, "description": "Too many bytes, pixels or images."},
    415: {"model": Error, "description": "Not a picture of a known format."},
    422: {"model": Error, "description": "A picture that cannot be decoded, or an unknown class."},
    503: {"model": Error, "description": "Busy: come back after the seconds in Retry-After."},
}


def wants_png(request: Request, format: str | None) -> bool:
    """`?format=png`, or an Accept header that names PNG and not JSON."""
    if format is not None:
        return format == "png"
    accept = request.headers.get("accept", "")
    return "image/png" in accept and "application/json" not in accept and "text/html" not in accept


def image_answer(data: bytes) -> Response:
    return Response(data, media_type="image/png")


def error_answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def answer_errors(app: FastAPI) -> None:
    """Every refusal is one sentence; nothing of the request is repeated, nothing of the server shown."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return error_answer(error.status, error.sentence, error.headers)

    @app.exception_handler(SicError)
    async def unusable(_: Request, error: SicError) -> JSONResponse:
        return error_answer(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return error_answer(422, f"{where}: {first['msg']}.")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        sentences = {
            404: "There is nothing here.",
            405: "This address is asked in another way; see /api/v1/openapi.json.",
        }
        return error_answer(
            error.status_code, sentences.get(error.status_code, str(error.detail)), dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return error_answer(500, "This should not have happened; the server's terminal shows where.")
