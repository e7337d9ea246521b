"""From the bytes of an uploaded file to a picture, and the refusal of everything that is not plainly one.

Runs in a process of its own (see `sic.serve.decoder`), so it needs neither torch nor the web framework.
"""

import io
import logging
import warnings
from dataclasses import dataclass

from PIL import Image

from sic.data.images import UnreadableImage, open_picture, reasons, upright_rgb
from sic.serve.limits import Limits, Refused

for talkative in ("PIL", "pydicom"):
    logging.getLogger(talkative).setLevel(logging.CRITICAL)  # they quote what is wrong with an upload

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
            with open_picture(io.BytesIO(data), unsigned=False) as image:
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
    usual = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = limits.pixels // 2  # for pictures inside the file; Pillow refuses twice this number
    try:
        return read_dicom(io.BytesIO(upload.data))
    finally:
        Image.MAX_IMAGE_PIXELS = usual


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
        raise svg()
    found = next((what for mark, what in STARTS.items() if lower.startswith(mark)), None)
    found = found or next((what for mark, what in PROGRAMS.items() if mark in lower), None)
    if found is None and PDF in upload.data[:PDF_REACH]:
        found = "a document"
    if found is None and ZIP_END in upload.data[-ZIP_REACH:]:
        found = "an archive"
    if found is not None:
        raise Refused(415, f"{upload.name} is, or hides, {found}; send a picture that is nothing else.")


def svg() -> Refused:
    return Refused(415, f"SVG is a drawing that may contain programs; send a picture ({KNOWN}).")
