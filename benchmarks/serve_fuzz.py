"""Malformed requests against a server: none may be answered with a 5xx, and the server must live on.

python benchmarks/serve_fuzz.py --number 2000

Truncated and mutated pictures, pictures that claim any size, JPEGs of thousands of scans, PostScript, bodies that are
no form, odd names, and headers that are no addresses. Without a model directory: a small model of random weights.
"""

import argparse
import io
import json
import os
import random
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from serve_load import make_model, resident

FORMATS = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF"]
KINDS = ["image/png", "image/jpeg", "application/dicom", "application/octet-stream", "image/svg+xml", "text/html", ""]
ORIGINS = ["http://[", "http://evil.example", "null", "//", "http://localhost:99999999", "[", "\x7f", "http://[::1"]
HOSTS = ["evil.example", "[", "localhost:port", "", "127.0.0.1.evil.example", "localhost\x7f"]
NAMES = ["a.png", "../../etc/passwd", "a\\b.png", "", "x" * 300, "a\0b.png", "ä.dcm", ".."]


def picture(side: int = 48) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((side, side), Image.Resampling.BILINEAR)


def encoded(format: str) -> bytes:
    buffer = io.BytesIO()
    picture().save(buffer, format)
    return buffer.getvalue()


def dicom(width: int, height: int) -> bytes:
    """A grey 16-bit picture."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    dataset.SOPClassUID, dataset.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    dataset.Rows, dataset.Columns = height, width
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 0
    values = np.random.default_rng(0).integers(0, 4096, (height, width)).astype("<u2")
    dataset.PixelData = values.tobytes()
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be a picture of this size, with checksums that are right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated: a few bytes for each time that a decoder goes over it again."""
    buffer = io.BytesIO()
    picture(side).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - data[:last].count(b"\xff\xda")) + data[-2:]


def mutated(good: bytes, rng: random.Random) -> bytes:
    """Truncated, with bits flipped, bytes inserted, removed or overwritten, or put together from two."""
    data = bytearray(good)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        for _ in range(rng.choice([1, 4, 32, 256])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:  # in the header, where sizes and types are
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(min(len(data), 200))] = rng.randrange(256)
    elif kind == 3:
        place = rng.randrange(len(data))
        data[place:place] = rng.randbytes(rng.randrange(1, 64))
    elif kind == 4:
        place = rng.randrange(len(data))
        del data[place : place + rng.randrange(1, 200)]
    else:
        place = rng.randrange(len(data))
        data[place:] = rng.choice([b"\xff", b"\0", rng.randbytes(7)]) * (len(data) - place)
    return bytes(data)


def requests(number: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Keyword arguments of `post`, all of them wrong in one way or another."""
    rng = random.Random(seed)
    good = [encoded(format) for format in FORMATS] + [dicom(40, 30)]
    slow, postscript = many_scans(256, 24_000), encoded("EPS")
    for index in range(number):
        way = index % 10
        if way < 5:
            data = mutated(rng.choice(good), rng)
            for _ in range(rng.randrange(2)):
                data = mutated(data, rng) if data else data
        elif way == 5:
            data = huge_png(rng.choice([1, 65_535, 2**31 - 1]), rng.choice([50_000, 65_535, 2**31 - 1]))
        elif way == 6:
            data = rng.choice(
                [
                    b"",
                    rng.randbytes(500),
                    b"<svg xmlns='http://www.w3.org/2000/svg'/>",
                    b"GIF89a<script>",
                    slow,
                    postscript,
                ]
            )
        elif way == 7:
            data = rng.choice(good)[:200] + rng.choice(good)[200:]  # the start of one format, the rest of another
        else:
            data = rng.choice(good)
        if way == 8:  # a body that is no form, or none of a known kind
            boundary = rng.choice(["", "; boundary=", "; boundary=x", "; boundary=" + "y" * 100])
            body = rng.choice([data, b"--x\r\n\r\n" + data, b'--x\r\nContent-Disposition: form-data; name="image"'])
            yield {"content": body, "headers": {"Content-Type": "multipart/form-data" + boundary}}
        elif way == 9:
            yield {"files": [("image", (rng.choice(NAMES), data, rng.choice(KINDS) or None))] * rng.choice([1, 3, 40])}
        elif way == 7 and rng.random() < 0.5:
            headers = rng.choice([{"Origin": rng.choice(ORIGINS)}, {"Host": rng.choice(HOSTS)}, {"Cookie": "x" * 5000}])
            yield {"files": {"image": ("a.png", data)}, "headers": headers}
        elif rng.random() < 0.5:
            yield {"content": data, "headers": {"Content-Type": rng.choice(KINDS[:4])}}
        else:
            yield {"files": {"image": ("a.png", data)}}


def fuzz(client: Any, number: int, seed: int = 0) -> Counter[int]:
    """Statuses by how often they came; raises where a request was answered with a 5xx, or the server is gone."""
    statuses: Counter[int] = Counter()
    paths = ["/api/v1/predict", "/api/v1/explain?maps=true&pictures=true", "/api/v1/share"]
    for index, request in enumerate(requests(number, seed)):
        answer = client.post(paths[0 if index % 8 else (index // 8) % 3], **request)
        statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            raise AssertionError(f"request {index} of seed {seed}: {answer.status_code} {answer.text}")
        if answer.status_code >= 400 and not answer.json()["error"].endswith("."):
            raise AssertionError(f"request {index} of seed {seed}: no sentence: {answer.text}")
    answer = client.post("/api/v1/predict", files={"image": ("good.png", encoded("PNG"))})
    if answer.status_code != 200 or client.get("/healthz").status_code != 200:
        raise AssertionError(f"the server does not answer any more: {answer.text}")
    return statuses


def run(model: Path, number: int, seed: int) -> dict[str, Any]:
    """What came of so many requests, and how much memory they left the server with."""
    from starlette.testclient import TestClient

    from sic.model import load
    from sic.serve.app import create_app
    from sic.serve.clinic import ServedClinic
    from sic.serve.engine import Engine

    engine = Engine(load(model), model.name, None)
    with TestClient(create_app(engine, ServedClinic(model, engine)), base_url="http://localhost") as client:
        fuzz(client, number // 10, seed + 1)  # libraries and caches are loaded
        before, start = resident(os.getpid()), time.monotonic()
        statuses = fuzz(client, number, seed)
        seconds, after = time.monotonic() - start, resident(os.getpid())
    return {
        "requests": number,
        "statuses": dict(sorted(statuses.items())),
        "seconds": round(seconds, 1),
        "resident_mb_before": round(before),
        "resident_mb_after": round(after),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = said.model or Path(folder) / "model"
        if said.model is None:
            make_model(model, "resnet_tiny")
        print(json.dumps(run(model, said.number, said.seed)))


if __name__ == "__main__":
    main()
