"""What the server refuses, and what it never does."""

import asyncio
import http.client
import io
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serve_fuzz import dicom, encoded, fuzz, huge_png
from starlette.testclient import TestClient

import sic.serve
from sic.cli.serve import _refuse_open_doors
from sic.errors import SicError
from sic.serve.decoder import Decoder, Upload
from sic.serve.limits import Abandoned, Limits, Refused, Worker
from sic.serve.messages import plain_name
from tests.data.test_images import many_scans
from tests.serve.conftest import Served

PREDICT = "/api/v1/predict"
STATIC = Path(sic.serve.__file__).parent / "static"
TOKEN = "a1b2c3d4e5f6a7b8"


def png(side: int = 32, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "teal").save(buffer, "PNG", **options)
    return buffer.getvalue()


def refusal(client: TestClient, data: bytes, name: str = "a.png") -> tuple[int, str]:
    answer = client.post(PREDICT, files={"image": (name, data)})
    assert 400 <= answer.status_code < 500, answer.text
    sentence = str(answer.json()["error"])
    assert sentence.endswith(".") and "Traceback" not in sentence
    return answer.status_code, sentence


def test_malformed_uploads_never_break_it(client: TestClient) -> None:
    statuses = fuzz(client, 200)
    assert sum(count for status, count in statuses.items() if status >= 400) > 100


def test_pictures_of_too_many_pixels_are_not_decoded(client: TestClient) -> None:
    status, sentence = refusal(client, huge_png(65_000, 65_000))
    assert status == 413 and "too many pixels" in sentence
    status, sentence = refusal(client, huge_png(9000, 9000))
    assert status == 413 and "9000×9000" in sentence
    status, sentence = refusal(client, dicom(40, 30).replace(struct.pack("<H", 40), struct.pack("<H", 65_000)))
    assert status in (413, 422)
    rows = zlib.compress(bytes(3 * 6500 + 1) * 6500, 9)
    assert len(rows) < 200_000  # a bomb: small as a file, 127 MB as a picture
    status, _ = refusal(client, huge_png(6500, 6500).replace(zlib.compress(bytes(1000)), rows))
    assert status == 413


def test_a_jpeg_of_many_scans_is_refused_at_once(client: TestClient) -> None:
    data = many_scans(512, 24_000)
    assert len(data) < 500_000  # it would take the worker for most of a minute
    status, sentence = refusal(client, data)
    assert status == 422 and "more than 200 scans" in sentence
    assert client.post(PREDICT, files={"image": png()}).status_code == 200


SLOW_DECODER = "import os, sys, time; sys.stdin.buffer.read({read}); {act}"


@pytest.mark.parametrize(
    ("act", "words"), [("time.sleep(600)", "longer than 0.5 seconds"), ("os.abort()", "it cannot be decoded")]
)
def test_a_decoder_that_hangs_or_crashes_is_replaced(monkeypatch: pytest.MonkeyPatch, act: str, words: str) -> None:
    decoder, good = Decoder(Limits(decoding=0.5)), Upload("good.png", png())
    script = SLOW_DECODER.format(read=1, act=act)
    with monkeypatch.context() as patch:
        patch.setattr("sic.serve.decoder.COMMAND", [sys.executable, "-c", script])
        with pytest.raises(Refused, match=words) as refused:
            decoder(good, lambda: None)
        assert refused.value.status == 422
    decoder.limits = Limits()
    try:
        assert decoder(good, lambda: None).size == (32, 32)
    finally:
        decoder.close()


def test_a_decoder_is_ended_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, looks = Decoder(Limits()), 0
    monkeypatch.setattr(
        "sic.serve.decoder.COMMAND", [sys.executable, "-c", SLOW_DECODER.format(read=1, act="time.sleep(600)")]
    )
    processes = []

    def check() -> None:
        nonlocal looks
        looks += 1
        processes.append(decoder._process)
        if looks == 3:
            raise Abandoned

    with pytest.raises(Abandoned):
        decoder(Upload("good.png", png()), check)
    assert processes[0] is not None and processes[0].returncode is not None and decoder._process is None


def test_the_decoder_needs_no_torch() -> None:
    """It is there beside the server, and started again after a picture that it was ended for."""
    script = "import sys, sic.serve.decoder; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "fastapi", "starlette", "sklearn", "scipy"} & set(loaded)


def request(address: str, path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


HALVES = [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nG"]


def half_open(address: str, number: int) -> list[socket.socket]:
    host, port = address.removeprefix("http://").split(":")
    opened = []
    for index in range(number):
        opened.append(socket.create_connection((host, int(port)), timeout=30))
        opened[-1].sendall(HALVES[index % len(HALVES)])
    return opened


def test_half_open_connections_do_not_keep_others_out(running: tuple[Served, str]) -> None:
    _, address = running
    opened = half_open(address, 300)
    try:
        assert [request(address) for _ in range(5)] == [200] * 5
    finally:
        for connection in opened:
            connection.close()
    assert request(address) == 200


def test_sixty_requests_at_once_are_answered_or_told_to_come_back(running: tuple[Served, str]) -> None:
    _, address = running

    def ask(number: int) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
        connection.request("POST", PREDICT, png(32 + number), {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers["Retry-After"]

    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(ask, range(60)))
    assert {status for status, _ in answers} <= {200, 503} and answers.count((200, None)) > 0
    assert all(again is not None for status, again in answers if status == 503)
    assert request(address) == 200


def test_silent_connections_are_closed(running: tuple[Served, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.serve.gateway.SILENT_SECONDS", 0.3)
    _, address = running
    for connection in half_open(address, 8):
        received = b"x"
        try:
            while received:
                received = connection.recv(10_000)  # an answer to a whole request, then the end
        except ConnectionResetError:
            pass
        connection.close()
    assert request(address) == 200


def test_an_upload_that_trickles_is_given_up(running: tuple[Served, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sic.serve.messages.PATIENCE", 0.5)
    _, address = running
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 90000\r\n\r\n"
        connection.sendall(head.encode() + b"\x89PNG")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
    assert request(address) == 200


def test_deflated_dicom_is_not_unpacked(client: TestClient) -> None:
    plain = dicom(40, 30)
    syntax = b"1.2.840.10008.1.2.1\0"
    assert syntax in plain
    start = plain.index(b"\x02\x00\x00\x00UL\x04\x00")
    length = struct.unpack("<I", plain[start + 8 : start + 12])[0]
    body = start + 12 + length
    meta = plain[:body].replace(b"UI\x14\x00" + syntax, b"UI\x16\x001.2.840.10008.1.2.1.99")
    meta = meta[: start + 8] + struct.pack("<I", length + 2) + meta[start + 12 :]
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = meta + packer.compress(plain[body:] + bytes(50_000_000)) + packer.flush()
    status, sentence = refusal(client, bomb, "bomb.dcm")
    assert status == 415 and "deflated" in sentence


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("run.js", "alert(1)")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a picture with an archive behind it", png() + archive()),
        ("a picture with a script in a comment", encoded("GIF") + b"<script>alert(1)</script>"),
        ("a picture with a page behind it", encoded("JPEG") + b"<!DOCTYPE html><html><body>"),
        ("a picture that is a document", encoded("PPM")[:15] + b"%PDF-1.7\n" + encoded("PPM")[15:]),
        ("a program in the preamble of DICOM", b"MZ" + dicom(40, 30)[2:]),
        ("a program", b"#!/bin/sh\necho hello\n"),
        ("an archive", archive()),
    ],
)
def test_files_that_are_two_things_are_refused(client: TestClient, name: str, data: bytes) -> None:
    status, sentence = refusal(client, data)
    assert status == 415 and "is, or contains" in sentence, name


@pytest.mark.parametrize(
    "start", [b"", b"\xef\xbb\xbf", b"<?xml version='1.0'?>", b"<!-- a comment -->", b"  \n<?xml version='1.0'?>\n"]
)
def test_drawings_are_refused(client: TestClient, start: bytes) -> None:
    drawing = start + b"<svg xmlns='http://www.w3.org/2000/svg'><circle r='3'/></svg>"
    status, sentence = refusal(client, drawing, "a.svg")
    assert status == 415 and "SVG" in sentence
    answer = client.post(PREDICT, content=drawing, headers={"Content-Type": "image/svg+xml"})
    assert answer.status_code == 415 and "SVG" in answer.json()["error"]


@pytest.mark.parametrize("name", ["../a.png", "/etc/passwd", "a\\b.png", "..", "x" * 300])
def test_names_that_lead_elsewhere_are_refused(client: TestClient, name: str) -> None:
    status, sentence = refusal(client, png(), name)
    assert status == 400 and "name" in sentence


@pytest.mark.parametrize("name", ["a\x07.png", "a\0.png", "a\n.png", "\u202egnp.exe"])
def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        plain_name(name)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/common.css%00.html",
        "/api/v1/clinic/image?id=../../config.json",
    ],
)
def test_addresses_do_not_reach_the_disk(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (404, 409)


def test_bytes_images_and_fields_are_limited(served: Served) -> None:
    with served.client(Limits(upload_bytes=50_000, images=3)) as client:
        noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "PNG")
        status, sentence = refusal(client, buffer.getvalue())
        assert status == 413 and "MB" in sentence

        def without_length() -> Any:
            for start in range(0, len(buffer.getvalue()), 10_000):
                yield buffer.getvalue()[start : start + 10_000]

        answer = client.post(PREDICT, content=without_length(), headers={"Content-Type": "image/png"})
        assert answer.status_code == 413
        answer = client.post(PREDICT, files=[("image", ("a.png", png()))] * 4)
        assert answer.status_code == 413 and "3 images" in answer.json()["error"]
        assert client.post(PREDICT, files={"image": png()}, data={"more": "x"}).status_code == 400
        assert client.post(PREDICT, data={"image": "text"}).status_code in (400, 415)
        assert client.post("/api/v1/clinic/preview", content=b"[" * 100_000).status_code == 415
        headers = {"Content-Type": "application/json"}
        assert client.post("/api/v1/clinic/preview", content=b"[" * 100_000, headers=headers).status_code == 413
        assert client.post("/api/v1/clinic/preview", content=b"[" * 1000, headers=headers).status_code == 422


def test_other_names_of_this_machine_are_not_answered(client: TestClient) -> None:
    """DNS rebinding: a page of another site whose name now leads here."""
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::1", "sic.example.evil"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 421, host
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "sic.example:80"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize("path", [PREDICT, "/api/v1/clinic/open", "/api/v1/clinic/apply", "/api/v1/clinic/undo"])
def test_other_pages_cannot_post(client: TestClient, path: str) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://[::1"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = client.post(path, headers=headers)
        assert answer.status_code == 403, headers
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
    assert client.options(path, headers={"Origin": "http://evil.example"}).status_code == 403


def test_the_token_is_needed_and_enough(served: Served) -> None:
    with served.client(token=TOKEN) as client:
        for path in ("/", "/static/viewer.js", "/api/v1/model", "/metrics", "/api/v1/openapi.json"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "sic_token=wrong"}):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401 and TOKEN not in answer.text
            assert client.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert client.post(f"{PREDICT}?token={TOKEN}", files={"image": png()}).status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        moved = client.get(f"http://localhost//evil.example/?token={TOKEN}", follow_redirects=False)
        assert moved.headers["location"] == "/evil.example/"
        moved = client.get(f"/?token={TOKEN}&test=3", follow_redirects=False)
        assert moved.status_code == 303 and moved.headers["location"] == "/?test=3"
        cookie = moved.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert client.get("/").status_code == 200  # the client kept the cookie


def test_servers_on_two_ports_do_not_take_each_others_cookie(served: Served) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    cookies: list[str] = []
    tokens = {8001: TOKEN, 8002: TOKEN[::-1]}
    for port, token in tokens.items():
        with served.client(token=token) as client:
            moved = client.get(f"http://localhost:{port}/?token={token}", follow_redirects=False)
            cookies.append(moved.headers["set-cookie"].split(";")[0])
    assert len({cookie.split("=")[0] for cookie in cookies}) == 2
    for port, token in tokens.items():
        with served.client(token=token) as client:
            headers = {"Cookie": "; ".join(cookies)}
            assert client.get(f"http://localhost:{port}/", headers=headers).status_code == 200
            assert client.get("http://localhost:8003/", headers=headers).status_code == 401


def test_every_answer_says_what_a_browser_may_do(client: TestClient) -> None:
    answers = [
        client.get(path) for path in ("/", "/cases", "/clinic", "/static/viewer.js", "/nowhere", "/api/v1/model")
    ]
    for answer in [*answers, client.get("/", headers={"Host": "evil.example"}), client.post(PREDICT)]:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
    assert client.get("/api/v1/model").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("page", sorted(STATIC.glob("*.html")), ids=lambda page: page.name)
def test_pages_have_nothing_inline_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    for address in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert address.startswith(("/", "#")) and not address.startswith("//")


@pytest.mark.parametrize("script", sorted(STATIC.glob("*.js")), ids=lambda script: script.name)
def test_scripts_never_make_markup_of_text(script: Path) -> None:
    text = script.read_text().replace("http://www.w3.org/2000/svg", "")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
        assert word not in text


def test_nothing_uploaded_is_written_or_logged(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    """Also large images, which form parsers like to put into temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    opened: list[tuple[str, Any]] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open":
            mode, flags = arguments[1], arguments[2]
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & 3):
                opened.append((str(arguments[0]), mode))

    with served.client() as client:
        client.post("/api/v1/explain?format=png", files={"image": png()})  # matplotlib builds its font cache, once
        sys.addaudithook(watch)
        noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "PNG")
        assert len(buffer.getvalue()) > 4e6
        for path in (PREDICT, "/api/v1/explain?format=png", "/api/v1/share"):
            assert client.post(path, files={"image": ("Jane Doe.png", buffer.getvalue())}).status_code == 200
        client.post(PREDICT, files={"image": ("Jane Doe.png", b"nonsense")})
        client.post(PREDICT, files={"image": ("Jane Doe.dcm", dicom(40, 30)[:-900])})
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        client.post(PREDICT, content=b"Jane Doe", headers=headers)
        watching = False
    assert not opened and not list(tmp_path.iterdir())
    out, err = capfd.readouterr()
    assert not [record for record in caplog.records if record.name.split(".")[0] != "httpx2"]
    assert "Jane" not in out + err


def test_the_line_is_bounded_and_time_is_limited() -> None:
    async def use() -> None:
        worker = Worker(Limits(waiting=2, seconds=0.3))
        going, ended = threading.Event(), []

        def slow(check: Any) -> str:
            while not going.wait(0.01):
                try:
                    check()
                except Abandoned:
                    ended.append("abandoned")
                    raise
            return "done"

        first, second = asyncio.create_task(worker.run(slow)), asyncio.create_task(worker.run(slow))
        await asyncio.sleep(0.05)
        with pytest.raises(Refused) as full:
            await worker.run(slow)
        assert full.value.status == 503 and int(full.value.headers["Retry-After"]) > 0
        for task in (first, second):
            with pytest.raises(Refused) as late:
                await task
            assert late.value.status == 503 and "0.3 seconds" in late.value.sentence
        deadline = time.monotonic() + 600
        while worker.unfinished and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert ended == ["abandoned"]  # the second one never began
        going.set()
        assert await worker.run(slow) == "done"
        with worker.arrival(), worker.arrival():  # uploads that are still coming in
            with pytest.raises(Refused), worker.arrival():
                pass
            with pytest.raises(Refused):
                await worker.run(slow)
        assert await worker.run(slow) == "done"
        worker.close()

    asyncio.run(use())


def test_a_job_that_must_be_finished_is_finished() -> None:
    async def use() -> None:
        worker = Worker(Limits(seconds=0.2))
        going, begun = threading.Event(), []

        def edit(check: Any) -> str:
            begun.append(True)
            going.wait(20)  # an end, should the test fail
            check()  # its request has not ended, however long this takes
            return "done"

        first = asyncio.create_task(worker.run(edit, whole=True))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(worker.run(edit, whole=True))
        with pytest.raises(Refused) as late:
            await second  # it has not begun, so it never will
        assert late.value.status == 503
        await asyncio.sleep(0.3)
        assert not first.done()
        going.set()
        assert await first == "done" and begun == [True]
        worker.close()

    asyncio.run(use())


def test_work_in_the_background_is_no_request_and_has_no_limit() -> None:
    async def use() -> None:
        worker = Worker(Limits(waiting=1, seconds=0.2))
        begun, going = threading.Event(), threading.Event()

        def slow() -> str:
            begun.set()
            going.wait(20)
            return "done"

        behind = asyncio.create_task(worker.in_background(slow))
        await asyncio.to_thread(begun.wait, 20)
        assert worker.unfinished == 0
        with pytest.raises(Refused) as late:  # admitted, but its time runs out behind the other one
            await worker.run(lambda _: "asked")
        assert "0.2 seconds" in late.value.sentence and not behind.done()
        going.set()
        assert await behind == "done"
        assert await worker.run(lambda _: "asked") == "asked"

        def wrong() -> None:
            raise ValueError

        with pytest.raises(ValueError):
            await worker.in_background(wrong)
        worker.close()

    asyncio.run(use())


def test_a_full_line_is_a_503_over_http(served: Served) -> None:
    app = served.app(Limits(waiting=1, seconds=30))
    with TestClient(app, base_url="http://localhost") as client:
        original = served.model.tensor
        waiting, going = threading.Event(), threading.Event()

        def slow(image: Any) -> Any:
            waiting.set()
            going.wait(10)
            return original(image)

        served.model.tensor = slow  # type: ignore[method-assign]
        try:
            answers: list[int] = []
            first = threading.Thread(
                target=lambda: answers.append(client.post(PREDICT, files={"image": png()}).status_code)
            )
            first.start()
            waiting.wait(10)
            full = client.post(PREDICT, files={"image": png()})
            assert full.status_code == 503 and full.headers["retry-after"] == "2"
            assert client.get("/healthz").status_code == 200
            going.set()
            first.join()
            assert answers == [200]
        finally:
            del served.model.tensor


def test_other_machines_need_a_token() -> None:
    _refuse_open_doors("127.0.0.1", None, False)
    _refuse_open_doors("0.0.0.0", TOKEN, False)
    _refuse_open_doors("0.0.0.0", None, True)
    for host, token, none, words in (
        ("0.0.0.0", None, False, "--token"),
        ("192.168.1.5", None, False, "--no-token"),
        ("0.0.0.0", "short", False, "12 or more"),
        ("127.0.0.1", "has spaces in it", False, "12 or more"),
        ("0.0.0.0", TOKEN, True, "exclude"),
    ):
        with pytest.raises(SicError, match=words):
            _refuse_open_doors(host, token, none)
