"""From the bytes of a request to pictures, in memory only, and the refusal of everything that is not plainly one."""

import asyncio
import io
import logging
import warnings
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from PIL import Image
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sic.data.images import UnreadableImage, reasons, upright_rgb
from sic.serve.limits import Limits, Refused

for talkative in ("PIL", "pydicom", "python_multipart"):
    logging.getLogger(talkative).setLevel(logging.CRITICAL)  # they quote what is wrong with an upload

Image.init()
FORMATS: list[str] = [
    name for name in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP") if name in Image.OPEN
]
"""What Pillow may try: picture formats with a signature. None that runs a program (EPS) or reads other files."""
KNOWN = "JPEG, PNG, TIFF, WebP, AVIF, GIF, BMP or DICOM"
PROGRAMS = {
    b"<script": "a script",
    b"<!doctype": "a web page",
    b"<html>": "a web page",
    b"<html ": "a web page",
    b"</svg>": "a drawing (SVG)",
    b"<?php": "a program",
    b"rar!\x1a\x07": "an archive",
    b"7z\xbc\xaf\x27\x1c": "an archive",
}
"""What has no business anywhere in a picture, in lower case: files that are two things at once hide it there. Long
enough not to turn up by chance among millions of compressed bytes."""
STARTS = {
    b"mz": "a program",
    b"\x7felf": "a program",
    b"#!": "a program",
    b"pk\x03\x04": "an archive",
}
"""What else must not stand at the start, where DICOM has 128 bytes to spare."""
ZIP_END, ZIP_REACH = b"PK\x05\x06\0\0\0\0", 65_557
"""An archive is recognised by its end, which lies at most this far from the end of the file."""
PDF, PDF_REACH = b"%PDF-", 1024
DEFLATED = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.8.1")
"""DICOM transfer syntaxes that unpack to any size before the header can be read."""


@dataclass(frozen=True)
class Upload:
    """One file of a request."""

    name: str
    data: bytes


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
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limits.upload_bytes:
            raise _too_large(limits)
        yield chunk


async def _body(request: Request, kind: str, limits: Limits) -> bytes:
    if kind == "image/svg+xml":
        raise _svg()
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


def decode(upload: Upload, limits: Limits) -> Image.Image:
    """Upright RGB."""
    data = upload.data
    if not data:
        raise Refused(400, f"{upload.name} is empty.")
    _refuse_two_faces(upload)
    try:
        if data[128:132] == b"DICM":
            return _dicom(upload, limits)
        # Pillow warns of half of what it refuses; our own limit is lower.
        with warnings.catch_warnings(), reasons():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _refuse_many_pixels(upload.name, image.size, limits)
                return upright_rgb(image)
    except UnreadableImage as error:
        told = str(error)
        status = 413 if told.startswith("too many pixels") else 415 if told == "not an image" else 422
        told = f"it is not one of {KNOWN}" if status == 415 else told
        raise Refused(status, f"{upload.name} cannot be used: {told}.") from None
    except Refused:
        raise
    except Exception:  # decoders fail in any way on files that were made to break them
        raise Refused(422, f"{upload.name} cannot be used: it cannot be decoded.") from None


def _dicom(upload: Upload, limits: Limits) -> Image.Image:
    from sic.data.dicom import dicom_size, read_dicom

    if any(syntax in upload.data for syntax in DEFLATED):
        raise Refused(415, f"{upload.name} is a deflated DICOM file, which is not unpacked here; save it uncompressed.")
    _refuse_many_pixels(upload.name, dicom_size(io.BytesIO(upload.data)), limits)
    return read_dicom(io.BytesIO(upload.data))


def _refuse_many_pixels(name: str, size: tuple[int, int], limits: Limits) -> None:
    if size[0] * size[1] > limits.pixels:
        raise Refused(
            413,
            f"{name} has {size[0]}×{size[1]} pixels; at most {limits.pixels / 1e6:g} million are decoded here. "
            "Make it smaller first.",
        )


def _refuse_two_faces(upload: Upload) -> None:
    """Refuse files that are also, or only, something else than a picture."""
    lower = upload.data.lower()
    start = lower[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"<?xml", b"<svg", b"<!--")) and b"<svg" in lower:
        raise _svg()
    found = next((what for mark, what in STARTS.items() if lower.startswith(mark)), None)
    found = found or next((what for mark, what in PROGRAMS.items() if mark in lower), None)
    if found is None and PDF in upload.data[:PDF_REACH]:
        found = "a document"
    if found is None and ZIP_END in upload.data[-ZIP_REACH:]:
        found = "an archive"
    if found is not None:
        raise Refused(415, f"{upload.name} is, or hides, {found}; send a picture that is nothing else.")


def _svg() -> Refused:
    return Refused(415, f"SVG is a drawing that may contain programs; send a picture ({KNOWN}).")


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"A request may hold at most {limits.upload_bytes / 2**20:g} MB.", {"Connection": "close"})
