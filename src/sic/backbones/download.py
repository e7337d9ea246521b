"""Fetch a file of published weights once, into torch.hub's folder: resumable, and checked by its SHA-256."""

import errno
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import torch
from filelock import FileLock

from sic.errors import SicError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3
Progress = Callable[[int, int], None]  # bytes here, bytes in all (0: the server does not say)


class _Broken(URLError):
    """The connection was there and broke: worth another attempt."""


class _SafeRedirects(HTTPRedirectHandler):
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        _require_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(url: str, sha256_prefix: str, progress: Progress | None = None) -> Path:
    """The local copy of `url`, downloaded unless it is there; `sha256_prefix` is hexadecimal, 8 digits or more."""
    if len(sha256_prefix) < 8:
        raise ValueError(f"{sha256_prefix!r} is too short to tell one file from another")
    _require_safe(url)
    path = Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(urlsplit(url).path).name
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_name(f"{path.name}.lock")
            with FileLock(lock):
                if not path.exists():  # else another process has fetched it meanwhile
                    _download(url, sha256_prefix, path, progress)
                with suppress(OSError):  # not while it is open on Windows
                    lock.unlink()  # whoever waits for it locks a new file and finds `path`
        if not _matches(path, sha256_prefix):
            wrong = f"{path} is not what {url} should give (its SHA-256 does not start with {sha256_prefix})"
            raise SicError(f"{wrong}; delete it or put the right one there.")
    except URLError as error:
        reason = f"HTTP {error.code} {error.reason}" if isinstance(error, HTTPError) else _words(error.reason)
        by_hand = f"fetch {url} on another machine and put it at {path}"
        raise SicError(f"{path.name} could not be downloaded ({reason}); {by_hand}.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem, cure = "The disk is full", "free some space and try again (what has arrived is kept)"
        else:
            problem, cure = f"{path} cannot be used ({_words(error)})", "check the rights to its folder"
        raise SicError(f"{problem}: {cure}, or set TORCH_HOME to another folder than {path.parents[2]}.") from error
    return path


def _download(url: str, sha256_prefix: str, path: Path, progress: Progress | None) -> None:
    part = path.with_name(f"{path.name}.part")
    part.touch()
    if not _matches(part, sha256_prefix):  # else only its renaming was interrupted
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with part.open("r+b") as file:
                    for position, total, chunk in _chunks(url, part.stat().st_size):
                        file.seek(position)
                        file.write(chunk)
                        file.truncate()  # flushes, and cuts off what a server that starts over has left behind
                        if progress:
                            progress(position + len(chunk), total)
                break
            except _Broken:
                if attempt == ATTEMPTS:
                    raise
        if not _matches(part, sha256_prefix):
            part.unlink()
            wrong = f"What {url} sent is not the right file (its SHA-256 does not start with {sha256_prefix})"
            raise SicError(f"{wrong} and was removed; try again, or put the right one at {path}.")
    part.replace(path)


def _chunks(url: str, have: int) -> Iterator[tuple[int, int, bytes]]:
    """(position, total, bytes): the rest after the first `have` bytes, or everything if the server starts over."""
    request = Request(url, headers={"User-Agent": "sic", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        with build_opener(_SafeRedirects).open(request, timeout=TIMEOUT) as response:
            position, total = 0, response.length or 0
            if response.status == 206:
                extent = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
                if not extent or int(extent[1]) != have:
                    raise HTTPError(url, 416, "another range than asked for", response.headers, None)
                position, total = have, int(extent[2])
            while chunk := response.read(CHUNK):
                yield position, total, chunk
                position += len(chunk)
            if position < total:
                raise _Broken(f"the connection broke after {position:,} of {total:,} bytes")
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        yield from _chunks(url, 0)  # the part is stale: its end is no place where this file goes on
    except URLError:
        raise
    except (OSError, HTTPException) as error:
        raise _Broken(_words(error)) from error


def _matches(path: Path, sha256_prefix: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().startswith(sha256_prefix.lower())


def _words(reason: object) -> str:
    return getattr(reason, "strerror", None) or str(reason)


def _require_safe(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
        raise SicError(f"{url} is not an https address, and weights are fetched over https only.")
