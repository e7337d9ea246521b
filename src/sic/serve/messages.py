"""HTTP messages: reading the images or the JSON of a request, and writing answers and refusals."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from sic.errors import SicError
from sic.serve.decoder import Upload, svg
from sic.serve.limits import Limits, Refused
from sic.serve.schemas import Error

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what is wrong with an upload

PATIENCE, SLOWEST = 10.0, 16_000
"""Grace period of an upload in seconds, and the bytes per second that it must reach after that."""
V1 = "/api/v1"
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
"""OpenAPI description of a body with images: files in a form, or one image."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request cannot be read."},
    401: {"model": Error, "description": "The token is missing or wrong."},
    413: {"model": Error, "description": "Too many bytes, pixels or images."},
    415: {"model": Error, "description": "Not a picture of a known format."},
    422: {"model": Error, "description": "A picture that cannot be decoded, or an unknown class."},
    503: {"model": Error, "description": "Busy: retry after the seconds in Retry-After."},
}


async def receive(request: Request, limits: Limits) -> list[Upload]:
    """The files of a request: those of a form, or the body."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > limits.upload_bytes:
        raise _too_large(limits)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        async with asyncio.timeout(limits.seconds):
            if kind == "multipart/form-data":
                uploads = await _form(request, limits)
            else:
                uploads = [Upload("image", await _body(request, kind, limits))]
    except TimeoutError:
        raise Refused(408, f"The upload took longer than {limits.seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "The upload was interrupted.") from None
    if not uploads:
        raise Refused(400, "The form has no file; send at least one image in a field called image.")
    return uploads


async def receive_json(request: Request, limits: Limits) -> bytes:
    """A small JSON body. Other web pages cannot send this content type."""
    small = replace(limits, upload_bytes=min(limits.upload_bytes, 2**16))
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "Send JSON (Content-Type: application/json).")
    try:
        async with asyncio.timeout(limits.seconds):
            return b"".join([chunk async for chunk in _limited(request, small)])
    except (TimeoutError, ClientDisconnect):
        raise Refused(408, "The request was not complete.") from None


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    received, chunks = 0, request.stream()
    start = asyncio.get_running_loop().time()
    while True:
        try:
            async with asyncio.timeout_at(start + PATIENCE + received / SLOWEST):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refused(408, "The upload is too slow; send it again.", {"Connection": "close"}) from None
        received += len(chunk)
        if received > limits.upload_bytes:
            raise _too_large(limits)
        yield chunk


async def _body(request: Request, kind: str, limits: Limits) -> bytes:
    if kind == "image/svg+xml":
        raise svg()
    if not kind.startswith("image/") and kind not in ("application/dicom", "application/octet-stream"):
        raise Refused(415, "Send an image as the body (Content-Type image/…, application/dicom), or files in a form.")
    return b"".join([chunk async for chunk in _limited(request, limits)])


async def _form(request: Request, limits: Limits) -> list[Upload]:
    parser = MultiPartParser(request.headers, _limited(request, limits), max_files=limits.images, max_fields=0)
    parser.spool_max_size = limits.upload_bytes + 1  # beyond this size parts would go to a temporary file
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refused(413, f"A request can have at most {limits.images} images.") from None
        raise Refused(400, "The form cannot be read; send files only, each in a field called image.") from None
    except (ValueError, KeyError, LookupError, AssertionError):
        raise Refused(400, "The form cannot be read; send files in fields called image.") from None
    try:
        return [
            Upload(plain_name(part.filename or "image"), await part.read())
            for _, part in form.multi_items()
            if not isinstance(part, str)
        ]
    finally:
        await form.close()


def plain_name(name: str) -> str:
    """The name of a file, which is only displayed; paths are refused."""
    if any(mark in name for mark in "/\\\0") or name in (".", "..") or not name.isprintable() or len(name) > 255:
        raise Refused(400, "A file name must be plain: no folders, no control characters, at most 255 letters.")
    return name


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"A request can have at most {limits.upload_bytes / 2**20:g} MB.", {"Connection": "close"})


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
    """Answer every error with one sentence that repeats nothing of the request and shows nothing of the server."""

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
            404: "Not found.",
            405: "This address takes another method; see /api/v1/openapi.json.",
        }
        return error_answer(
            error.status_code, sentences.get(error.status_code, str(error.detail)), dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return error_answer(500, "Internal error; see the terminal of the server.")
