"""Files: written whole, by one process at a time, and read from inside their folder."""

import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from sic.errors import SicError

LOCK = ".lock"
"""The lock file of a folder. It is empty and stays there."""
Stamp = tuple[int, int]
"""Size and time of change of a file: with another stamp, its content may be another."""


def cache_folder() -> Path:
    """The folder for what can be made again: `$SIC_CACHE`, or `sic` in the user's cache folder."""
    if "SIC_CACHE" in os.environ:
        return Path(os.environ["SIC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sic"


def stamp_of(path: Path) -> Stamp | None:
    """None for a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def write_atomically(path: Path, content: str | bytes | memoryview | Callable[[Path], object]) -> None:
    """Write to a temporary neighbour of `path`, which then takes its place: never half a file.

    `content`: text, bytes, or a function that writes the file whose path it gets.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # never through a link
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON atomically."""
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False))


def plain(content: Any) -> Any:
    """The content for JSON, with None instead of NaN and infinities."""
    if isinstance(content, Mapping):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def inside(path: Path, folder: Path) -> Path:
    """`path`, which is below `folder`; refused if a symbolic link leads out of it."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise SicError(f"{path} is a link that leads nowhere; remove it.") from None
    except ValueError:  # a null character
        raise SicError(f"{str(path)!r} cannot be the name of a file.") from None
    if not target.is_relative_to(folder.resolve()):
        raise SicError(f"{path} is a link out of {folder} and is not followed; replace it by a copy (cp -L).")
    return path


def real_folder(path: Path) -> Path:
    """`path`, which is to be written to; refused if it is a symbolic link."""
    if path.is_symlink():
        raise SicError(f"{path} is a link, and nothing is written through it; replace it by a folder.")
    return path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Writers of the same folder take turns; the lock ends with its process."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire()
    except OSError as error:
        if (folder / LOCK).is_symlink():
            raise SicError(f"{folder / LOCK} is a link; remove it.") from error
        raise
    try:
        yield
    finally:
        lock.release()
