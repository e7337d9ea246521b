"""From a request to the files that it brings, in memory only."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sic.serve.limits import Limits, Refused
from sic.serve.pictures import Upload, svg

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what is wrong with an upload

PATIENCE, SLOWEST = 10.0, 16_000
"""Seconds that an upload may hesitate, and the bytes a second that it must bring beyond that."""


async def receive(request: Request, limits: Limits) -> list[Upload]:
    """The files of a request: the parts of a form, or the body itself."""
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
        raise Refused(400, "The upload was broken off.") from None
    if not uploads:
        raise Refused(400, "The form holds no file; send at least one image in a field called image.")
    return uploads


async def receive_json(request: Request, limits: Limits) -> bytes:
    """A small body that says it is JSON, which web pages elsewhere cannot send."""
    small = replace(limits, upload_bytes=min(limits.upload_bytes, 2**16))
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "Send JSON (Content-Type: application/json).")
    try:
        async with asyncio.timeout(limits.seconds):
            return b"".join([chunk async for chunk in _limited(request, small)])
    except (TimeoutError, ClientDisconnect):
        raise Refused(408, "The request was not sent to its end.") from None


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
            raise Refused(408, "The upload comes too slowly; send it again.", {"Connection": "close"}) from None
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
            raise Refused(413, f"At most {limits.images} images go into one request.") from None
        raise Refused(400, "The form cannot be read; it may hold files only, each in a field called image.") from None
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
    """A file's name, which is only ever shown; one that points somewhere else is refused."""
    if any(mark in name for mark in "/\\\0") or name in (".", "..") or not name.isprintable() or len(name) > 255:
        raise Refused(400, "A file name must be plain: no folders, no control characters, at most 255 letters.")
    return name


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"A request may hold at most {limits.upload_bytes / 2**20:g} MB.", {"Connection": "close"})
