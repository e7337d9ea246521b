"""Turns the bytes of an upload into a picture, and refuses everything that is not plainly one.

Decoding runs in a process of its own that can be ended, so no picture holds the server's worker for long.
`python -m sic.serve.decoder` is that process: it reads a line of JSON and a file from standard input, and writes a line
of JSON and the pixels, or a refusal. It needs neither torch nor the web framework.
"""

import io
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from PIL import Image

import sic
from sic.data.images import UnreadableImage, open_picture, reasons, upright_rgb
from sic.serve.limits import Check, Limits, Refused

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
"""Marks of other formats, in lower case, which polyglot files hide anywhere in a picture. They are long enough not to
occur by chance in millions of compressed bytes."""
STARTS = {
    b"mz": "a program",
    b"\x7felf": "a program",
    b"#!": "a program",
    b"pk\x03\x04": "an archive",
}
"""Marks that must not be at the start of a file, where DICOM has 128 free bytes."""
ZIP_END, ZIP_REACH = b"PK\x05\x06\0\0\0\0", 65_557
"""The mark of an archive, and how far from the end of the file it can be."""
PDF, PDF_REACH = b"%PDF-", 1024
DEFLATED = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.8.1")
"""DICOM transfer syntaxes that can unpack to any size before the header can be read."""
COMMAND = [sys.executable, "-P", "-m", "sic.serve.decoder"]
STEP = 0.1
"""How often to check whether anybody still waits for the picture, in seconds."""


@dataclass(frozen=True)
class Upload:
    """One file of a request."""

    name: str
    data: bytes


def decode(upload: Upload, limits: Limits) -> Image.Image:
    """Decode an upload to upright RGB."""
    data = upload.data
    if not data:
        raise Refused(400, f"{upload.name} is empty.")
    _refuse_two_faces(upload)
    try:
        if data[128:132] == b"DICM":
            return _dicom(upload, limits)
        # Pillow warns at half of its own limit; ours is lower.
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
    except Exception:  # malicious files make decoders fail in any way
        raise Refused(422, f"{upload.name} cannot be used: it cannot be decoded.") from None


def _dicom(upload: Upload, limits: Limits) -> Image.Image:
    from sic.data.dicom import dicom_size, read_dicom

    if any(syntax in upload.data for syntax in DEFLATED):
        raise Refused(415, f"{upload.name} is a deflated DICOM file, which is not supported; save it uncompressed.")
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
            f"{name} has {size[0]}×{size[1]} pixels; at most {limits.pixels / 1e6:g} million are allowed. "
            "Reduce it first.",
        )


def _refuse_two_faces(upload: Upload) -> None:
    """Refuse files that are not pictures, or pictures and something else at once."""
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
        raise Refused(415, f"{upload.name} is, or contains, {found}; send a plain image.")


def svg() -> Refused:
    return Refused(415, f"SVG files can contain programs; send an image ({KNOWN}).")


class Decoder:
    """Starts its process for the first picture, and a new one if that had to be ended. For one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "sic-decoder")

    def __call__(self, upload: Upload, check: Check) -> Image.Image:
        """Decode an upload to upright RGB; `check` is called while the process works."""
        process = self._running()
        waiting = self._thread.submit(_ask, process, upload, self.limits)
        deadline = time.monotonic() + self.limits.decoding
        while True:
            try:
                answer, pixels = waiting.result(STEP)
                break
            except TimeoutError:
                try:
                    check()
                except BaseException:
                    self.close()
                    raise
                if time.monotonic() > deadline:
                    self.close()
                    sentence = f"decoding it takes longer than {self.limits.decoding:g} seconds"
                    raise Refused(422, f"{upload.name} cannot be used: {sentence}.") from None
            except (OSError, ValueError):  # the process crashed, on a malicious file perhaps
                self.close()
                raise Refused(422, f"{upload.name} cannot be used: it cannot be decoded.") from None
        if "sentence" in answer:
            raise Refused(answer["status"], answer["sentence"])
        return Image.frombytes("RGB", tuple(answer["size"]), pixels)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            package = str(Path(sic.__file__).parents[1])
            known = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if os.environ.get("SIC_DEBUG") else subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(known), "OMP_NUM_THREADS": "1"},
            )
        return self._process

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _ask(process: "subprocess.Popen[bytes]", upload: Upload, limits: Limits) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None and process.stdout is not None
    _send(process.stdin, {"name": upload.name, "bytes": len(upload.data), "pixels": limits.pixels}, upload.data)
    return _receive(process.stdout, process.stdout.readline())


def _send(pipe: IO[bytes], about: dict[str, Any], data: bytes) -> None:
    pipe.write(json.dumps(about).encode() + b"\n")
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes], line: bytes) -> tuple[dict[str, Any], bytes]:
    """The content of a line of JSON, and the bytes that follow it; ValueError if there are too few."""
    about = dict(json.loads(line))
    data = pipe.read(about["bytes"])
    if len(data) < about["bytes"]:
        raise ValueError("the other process is gone")
    return about, data


def _decode(name: str, data: bytes, limits: Limits) -> tuple[dict[str, Any], bytes]:
    try:
        image = decode(Upload(name, data), limits)
    except Refused as error:
        return {"bytes": 0, "status": error.status, "sentence": error.sentence}, b""
    pixels = image.tobytes()
    return {"bytes": len(pixels), "size": image.size}, pixels


def main() -> None:
    """Decode pictures until standard input ends, which it does with the server."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # decoders may print
    for line in iter(sys.stdin.buffer.readline, b""):
        asked, data = _receive(sys.stdin.buffer, line)
        _send(answers, *_decode(asked["name"], data, Limits(pixels=asked["pixels"])))


if __name__ == "__main__":
    main()
