"""Eight clients at once against `sic serve` with a B-cos ResNet50 of random weights: errors, memory, waiting times.

    python benchmarks/serve_load.py --seconds 60

At the same time others misbehave: 210 connections stay half open (they are opened again when the server closes them),
and four uploads trickle in, byte by byte. Every answer must be a 200, or a 503 that says when to come back. Memory at
the end, that of the process that decodes included, must be within 10 % of what it was after the warm-up. Prints one
JSON object; exit code 1 if one of these fails.
"""

import argparse
import http.client
import io
import json
import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from sic import directory
from sic.data import Preprocessing
from sic.directory import Config
from sic.methods import SIC
from sic.model import Model
from sic.supports import Support

CLASSES, SUPPORTS, SIZE = 10, 3, 224
PATHS = ["/api/v1/predict"] * 3 + ["/api/v1/explain?maps=true&pictures=true"]
"""Three predictions for each explanation."""


def make_model(folder: Path, backbone: str) -> None:
    torch.manual_seed(0)
    config = Config(
        backbone,
        [f"class {label}" for label in range(CLASSES)],
        "single",
        Preprocessing(SIZE, SIZE, "squash"),
        SUPPORTS,
        30.0,
    )
    classifier = directory.build(config, CLASSES * SUPPORTS, measure=True).eval()
    assert isinstance(classifier, SIC)
    labels = [label for label in range(CLASSES) for _ in range(SUPPORTS)]
    images = np.random.default_rng(0).integers(0, 256, (len(labels), SIZE, SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        views = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        vectors = torch.cat([classifier.encoder(view[None]) for view in views])
    classifier.set_supports(vectors, torch.tensor(labels))
    supports = [
        Support(label, f"{label}/{n}.png", image) for n, (label, image) in enumerate(zip(labels, images, strict=True))
    ]
    Model(classifier, config, supports).save(folder)


def form(image: bytes) -> tuple[bytes, dict[str, str]]:
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + image + b"\r\n--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


def picture(number: int) -> bytes:
    """A JPEG of 1200×900 pixels."""
    small = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((1200, 900)).save(buffer, "JPEG")
    return buffer.getvalue()


class Client(threading.Thread):
    """Asks one question after the other; after a 503 it waits as told."""

    def __init__(self, address: str, number: int, until: float) -> None:
        super().__init__()
        self.host, self.until = urlsplit(address).netloc, until
        self.statuses: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {path: [] for path in PATHS}
        self.random = random.Random(number)
        self.bodies = [form(picture(10 * number + n)) for n in range(4)]

    def run(self) -> None:
        while time.monotonic() < self.until:
            path = self.random.choice(PATHS)
            body, headers = self.random.choice(self.bodies)
            start = time.monotonic()
            try:
                connection = http.client.HTTPConnection(self.host, timeout=120)
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                answer.read()
                connection.close()
            except OSError as error:
                self.statuses[type(error).__name__] += 1
                continue
            self.statuses[str(answer.status)] += 1
            if answer.status == 200:
                self.seconds[path].append(time.monotonic() - start)
            elif answer.status == 503:
                time.sleep(float(answer.headers["Retry-After"]))


class HalfOpen(threading.Thread):
    """Keeps so many connections open that never send a whole request."""

    def __init__(self, address: str, number: int, until: float) -> None:
        super().__init__()
        self.place, self.number, self.until = urlsplit(address), number, until
        self.opened = 0

    def run(self) -> None:
        held: list[socket.socket] = []
        while time.monotonic() < self.until:
            ended, _, _ = select.select(held, [], [], 0)
            for connection in ended:
                connection.close()
            held = [connection for connection in held if connection not in ended]
            try:
                while len(held) < self.number:
                    held.append(socket.create_connection((self.place.hostname, self.place.port), timeout=10))
                    held[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
                    self.opened += 1
            except OSError:
                pass
            time.sleep(1)
        for connection in held:
            connection.close()


class Trickle(threading.Thread):
    """Uploads a picture a byte at a time, again and again; counts how often the server ends it."""

    def __init__(self, address: str, until: float) -> None:
        super().__init__()
        self.place, self.until = urlsplit(address), until
        self.given_up = 0

    def run(self) -> None:
        head = (
            f"POST {PATHS[0]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 90000\r\n\r\n"
        )
        while time.monotonic() < self.until:
            try:
                with socket.create_connection((self.place.hostname, self.place.port), timeout=10) as connection:
                    connection.sendall(head.encode())
                    while time.monotonic() < self.until and not select.select([connection], [], [], 0.5)[0]:
                        connection.sendall(b"x")
                    self.given_up += 1
            except OSError:
                self.given_up += 1


def load(address: str, clients: int, seconds: float) -> list[Client]:
    until = time.monotonic() + seconds
    started = [Client(address, number, until) for number in range(clients)]
    for client in started:
        client.start()
    for client in started:
        client.join()
    return started


def resident(process: int) -> float:
    """MB, of a process and those that it started."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    threads = Path(f"/proc/{process}/task").iterdir()
    children = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    return int(fields["VmRSS"].split()[0]) / 1024 + sum(map(resident, children))


def measure(folder: Path, said: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "sic", "serve", str(folder), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += server.stdout.readline()
        address = json.loads(text)["address"]
        load(address, said.clients, said.warm_up)
        before = resident(server.pid)
        until = time.monotonic() + said.seconds
        half_open = HalfOpen(address, said.half_open, until)
        trickling = [Trickle(address, until) for _ in range(said.trickling)]
        for nuisance in (half_open, *trickling):
            nuisance.start()
        clients = load(address, said.clients, said.seconds)
        after = resident(server.pid)
        for nuisance in (half_open, *trickling):
            nuisance.join()
    finally:
        server.terminate()
        server.wait()
    statuses: Counter[str] = sum((client.statuses for client in clients), Counter())
    times = {
        path.split("/")[-1].split("?")[0]: sorted(second for client in clients for second in client.seconds[path])
        for path in dict.fromkeys(PATHS)
    }
    return {
        "backbone": said.backbone,
        "clients": said.clients,
        "seconds": said.seconds,
        "half_open": said.half_open,
        "half_open_opened": half_open.opened,
        "trickling": said.trickling,
        "trickling_given_up": sum(one.given_up for one in trickling),
        "statuses": dict(statuses),
        "answers_per_second": round(statuses["200"] / said.seconds, 2),
        **{f"{name}_median_s": round(found[len(found) // 2], 2) for name, found in times.items() if found},
        **{f"{name}_p95_s": round(found[int(0.95 * (len(found) - 1))], 2) for name, found in times.items() if found},
        "resident_mb_after_warm_up": round(before),
        "resident_mb_at_the_end": round(after),
        "passed": set(statuses) <= {"200", "503"} and statuses["200"] > 0 and after <= 1.1 * before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--half-open", type=int, default=210)
    parser.add_argument("--trickling", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=20)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", said.backbone)
        result = measure(Path(folder) / "model", said)
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()
