"""Decodes uploads in a process of its own, which can be ended: no picture holds the server's worker for long.

`python -m sic.serve.decoder` is that process. It reads a line of JSON and a file from standard input; it answers with
a line of JSON and the pixels, or with a refusal.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from PIL import Image

import sic
from sic.serve.limits import Limits, Refused
from sic.serve.pictures import Upload, decode
from sic.serve.work import Check

COMMAND = [sys.executable, "-P", "-m", "sic.serve.decoder"]
STEP = 0.1
"""Seconds between two looks at whether anybody still waits for the picture."""


class Decoder:
    """Starts its process when the first picture comes, and another one after it had to be ended. For one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "sic-decoder")

    def __call__(self, upload: Upload, check: Check) -> Image.Image:
        """Upright RGB; `check` is called while the process is at work."""
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
            except (OSError, ValueError):  # the process is gone: a decoder that a file was made to break
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
        """End the process, whatever it is doing."""
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
    """What a line says, and as many bytes after it; ValueError if they end early."""
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
    """Decode until standard input ends, which it does with the server."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a decoder prints is no answer
    for line in iter(sys.stdin.buffer.readline, b""):
        asked, data = _receive(sys.stdin.buffer, line)
        _send(answers, *_decode(asked["name"], data, Limits(pixels=asked["pixels"])))


if __name__ == "__main__":
    main()
