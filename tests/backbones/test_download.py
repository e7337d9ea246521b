"""Fetching weights, from a server on this machine that misbehaves on demand."""

import errno
import hashlib
import io
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from sic.backbones import download
from sic.backbones.download import CHUNK, fetch
from sic.errors import SicError

CONTENT = random.Random(0).randbytes(2 * CHUNK + CHUNK // 2)
HASH = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` under every path; the attributes say how it misbehaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/release/weights.pth"
        self.content = CONTENT
        self.cuts: list[int] = []  # bytes sent by the first, second, … answer before the connection breaks
        self.stalls: list[float] = []  # seconds that the first, second, … answer pauses half-way
        self.ranges = True
        self.says_length = True
        self.shift = 0  # a partial answer starts this much later than asked for
        self.status = 200
        self.location = ""
        self.asked: list[str | None] = []  # the Range header of every request


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, size, asked = self.server, len(self.server.content), self.headers["Range"]
        server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if server.location or server.status != 200:
            self.send_response(302 if server.location else server.status)
            self.send_header("Location", server.location)
        elif start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
        else:
            start += server.shift if start else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            if server.says_length:
                self.send_header("Content-Length", str(size - start))
            self.end_headers()
            self.send_body(server.content[start:])
            return
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_body(self, body: bytes) -> None:
        if self.server.cuts:
            body = body[: self.server.cuts.pop(0)]
        half = len(body) // 2
        self.wfile.write(body[:half])
        if self.server.stalls:
            time.sleep(self.server.stalls.pop(0))
        self.wfile.write(body[half:])

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has had enough, as some tests want
            super().handle()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights.pth belongs."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "hub" / "checkpoints" / "weights.pth"


@pytest.fixture
def part(target: Path) -> Path:
    """Where its beginning waits for the rest; the folder exists."""
    target.parent.mkdir(parents=True)
    return target.with_name("weights.pth.part")


def only_the_file_is_left(target: Path) -> bool:
    return target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]


def test_a_file_is_fetched_once(server: Server, target: Path) -> None:
    steps: list[tuple[int, int]] = []
    assert fetch(server.url, HASH[:8], lambda here, total: steps.append((here, total))) == target
    assert only_the_file_is_left(target)
    assert steps == [(here, len(CONTENT)) for here in (CHUNK, 2 * CHUNK, len(CONTENT))]
    assert fetch(server.url, HASH[:10].upper()) == target
    assert server.asked == [None]


def test_torch_finds_it_where_it_looks_itself(server: Server, target: Path) -> None:
    torch.save({"weight": torch.arange(3)}, target.parent.parent.parent / "state")
    server.content = (target.parent.parent.parent / "state").read_bytes()
    fetch(server.url, hashlib.sha256(server.content).hexdigest())
    state = torch.hub.load_state_dict_from_url(server.url, weights_only=True)
    assert state["weight"].tolist() == [0, 1, 2]
    assert len(server.asked) == 1


def test_a_file_that_is_there_needs_no_network(part: Path, target: Path) -> None:
    target.write_bytes(CONTENT)
    assert fetch("https://weights.invalid/weights.pth", HASH) == target


def test_a_wrong_file_is_named_and_kept(server: Server, part: Path, target: Path) -> None:
    target.write_bytes(b"mine")
    with pytest.raises(SicError, match=rf"{target} is not .* delete it or put the right one there"):
        fetch(server.url, HASH)
    assert target.read_bytes() == b"mine"
    assert server.asked == []


def test_a_part_is_resumed(server: Server, part: Path, target: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    steps: list[tuple[int, int]] = []
    fetch(server.url, HASH, lambda here, total: steps.append((here, total)))
    assert only_the_file_is_left(target)
    assert server.asked == ["bytes=1000-"]
    assert steps[0] == (1000 + CHUNK, len(CONTENT))


def test_a_server_without_ranges_starts_over(server: Server, part: Path, target: Path) -> None:
    server.ranges = False
    part.write_bytes(CONTENT[:1000] + bytes(2 * len(CONTENT)))  # longer than what comes
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)


def test_a_complete_part_needs_no_network(part: Path, target: Path) -> None:
    part.write_bytes(CONTENT)
    fetch("https://weights.invalid/weights.pth", HASH)
    assert only_the_file_is_left(target)


@pytest.mark.parametrize("surplus", [0, 5])
def test_a_stale_part_that_is_too_long_is_replaced(server: Server, part: Path, target: Path, surplus: int) -> None:
    part.write_bytes(bytes(len(CONTENT) + surplus))
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked == [f"bytes={len(CONTENT) + surplus}-", None]


def test_another_range_than_asked_for_is_not_appended(server: Server, part: Path, target: Path) -> None:
    server.shift = 7
    part.write_bytes(CONTENT[:1000])
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked == ["bytes=1000-", None]


def test_a_broken_connection_is_resumed(server: Server, target: Path) -> None:
    server.cuts = [CHUNK + 10, 500]
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked == [None, f"bytes={CHUNK + 10}-", f"bytes={CHUNK + 510}-"]


def test_after_three_attempts_the_rest_waits_for_next_time(server: Server, part: Path, target: Path) -> None:
    server.cuts = [100, 100, 100]
    with pytest.raises(SicError, match=rf"broke after 300 of .* fetch {server.url} on another .* at {target}\.$"):
        fetch(server.url, HASH)
    assert not target.exists()
    assert part.read_bytes() == CONTENT[:300]
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked[-1] == "bytes=300-"


def test_a_silent_server_is_asked_again(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    server.stalls = [0.6]
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked[:2] == [None, f"bytes={CHUNK}-"]


def test_a_server_that_does_not_say_how_much(server: Server, target: Path) -> None:
    server.says_length = False
    steps: list[tuple[int, int]] = []
    fetch(server.url, HASH, lambda here, total: steps.append((here, total)))
    assert only_the_file_is_left(target)
    assert steps[-1] == (len(CONTENT), 0)


def test_wrong_bytes_are_removed(server: Server, part: Path, target: Path) -> None:
    server.content = CONTENT[::-1]
    with pytest.raises(SicError, match=rf"What {server.url} sent is not the right file .* removed; .* at {target}\.$"):
        fetch(server.url, HASH)
    assert not part.exists()
    assert not target.exists()


def test_no_server(target: Path) -> None:
    with Server() as server:
        pass
    with pytest.raises(
        SicError,
        match=rf"^weights.pth could not be downloaded \(Connection refused\); "
        rf"fetch {server.url} on another machine and put it at {target}\.$",
    ):
        fetch(server.url, HASH)


def test_a_refusal_keeps_the_part(server: Server, part: Path, target: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    server.status = 404
    with pytest.raises(SicError, match=rf"\(HTTP 404 Not Found\); fetch {server.url} .* put it at {target}\.$"):
        fetch(server.url, HASH)
    assert len(server.asked) == 1
    assert part.read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("url", ["http://weights.invalid/w", "http://127.0.0.1.invalid/w", "ftp://127.0.0.1/w"])
def test_only_https(server: Server, url: str) -> None:
    with pytest.raises(SicError, match=rf"{url} is not an https address"):
        fetch(url, HASH)
    server.location = url  # nor by way of a redirection
    with pytest.raises(SicError, match=rf"{url} is not an https address"):
        fetch(server.url, HASH)


def test_a_local_file_is_no_address() -> None:
    with pytest.raises(SicError, match="https only"):
        fetch(Path(__file__).as_uri(), HASH)


def test_a_hash_that_tells_nothing_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match="too short"):
        fetch(server.url, "")


def test_a_full_disk(server: Server, part: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.BufferedRandom):
        def write(self, data: Any) -> int:
            if self.tell() >= CHUNK:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def open_there(path: Path, mode: str = "r") -> IO[Any]:
        return FullDisk(io.FileIO(path, mode)) if mode == "r+b" else open(path, mode)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", open_there)
        with pytest.raises(SicError, match="^The disk is full: free some space .* TORCH_HOME"):
            fetch(server.url, HASH)
    assert part.read_bytes() == CONTENT[:CHUNK]
    assert len(server.asked) == 1
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)


def test_a_folder_that_cannot_be_made(server: Server, target: Path) -> None:
    target.parent.parent.write_text("a file in the folder's place")
    with pytest.raises(SicError, match=rf"{target} cannot be used \(Not a directory\).* TORCH_HOME"):
        fetch(server.url, HASH)


def test_ctrl_c_leaves_the_part(server: Server, part: Path, target: Path) -> None:
    def interrupt(here: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server.url, HASH, interrupt)
    assert part.read_bytes() == CONTENT[:CHUNK]
    fetch(server.url, HASH)
    assert only_the_file_is_left(target)
    assert server.asked == [None, f"bytes={CHUNK}-"]


def test_who_comes_second_waits_for_the_first(server: Server, target: Path) -> None:
    """Threads stand for processes: the lock belongs to the opened file, not to the process."""
    server.stalls = [0.3]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: fetch(server.url, HASH), range(3))) == [target] * 3
    assert only_the_file_is_left(target)
    assert server.asked == [None]
