"""What was found in images before, so that the next fit need not decode them again: one SQLite file in the user's cache
folder, which only the user can read.

Entries are found by hashes, so the store holds no names of files. It is bounded: entries that were not used for long
are removed, and so are the oldest ones if it gets too large. A store that cannot be used costs time and nothing else.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from sic.errors import SicError
from sic.files import cache_folder, real_folder

GIGABYTES = "SIC_CACHE_GB"
"""The environment variable with the most that a store may hold; 0 for no store."""
DEFAULT_GIGABYTES = 10.0
UNUSED = 30 * 24 * 3600
"""Seconds after which an entry that was not used is removed."""
DAY = 24 * 3600
"""How exactly the time of the last use is recorded, in seconds: recording it takes time."""
WAITING = 16 << 20
"""Bytes that wait to be written together; the file is locked only then."""
OLDEST = 256
"""How many entries are removed at a time."""
CHECKSUM = 16
"""Bytes of the checksum before each value."""


def limit() -> float:
    """The most bytes that the store may hold."""
    said = os.environ.get(GIGABYTES, str(DEFAULT_GIGABYTES))
    with suppress(ValueError):
        if float(said) >= 0:
            return float(said) * 1e9
    raise SicError(f"{GIGABYTES}={said} is not a number of gigabytes; use 0 to keep no decoded images.")


class Store:
    """Bytes by key. As a context, it is written and closed in the end."""

    def __init__(self, most: float | None = None) -> None:
        """`most`: bytes, by default what the user allows; 0 for a store that keeps nothing."""
        self.file = cache_folder() / "decoded" / "images.sqlite"
        self.most = limit() if most is None else most
        self.now = int(time.time())
        self._waiting: dict[bytes, bytes] = {}
        self._used: set[bytes] = set()
        self._size = 0
        self._database: sqlite3.Connection | None = None
        if self.most > 0:
            with self._harmless():
                self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write()
        self._close()

    def __contains__(self, key: bytes) -> bool:
        with self._harmless():
            if self._database is not None:
                found = self._database.execute("SELECT 1 FROM contents WHERE key = ?", (key,))
                return found.fetchone() is not None
        return False

    def get(self, key: bytes) -> bytes | None:
        """The value; None if it is not known, or damaged."""
        with self._harmless():
            if self._database is not None:
                row = self._database.execute("SELECT value FROM contents WHERE key = ?", (key,)).fetchone()
                if row is not None and _checksum(row[0][CHECKSUM:]) == row[0][:CHECKSUM]:
                    self._used.add(key)
                    return bytes(row[0][CHECKSUM:])
        return None

    def put(self, key: bytes, value: bytes) -> None:
        if self._database is not None:
            self._waiting[key] = _checksum(value) + value
            self._size += len(value)
            if self._size >= WAITING:
                self.write()

    def write(self) -> None:
        """Write what waits, record what was used, and remove the oldest entries where there are too many."""
        with self._harmless():
            if self._database is not None and (self._waiting or self._used):
                with self._database:
                    self._database.executemany("REPLACE INTO contents VALUES (?, ?)", self._waiting.items())
                    self._database.executemany(
                        "INSERT INTO uses VALUES (?, ?) ON CONFLICT DO UPDATE SET used = ?2 WHERE used < ?2 - ?3",
                        [(key, self.now, DAY) for key in {*self._waiting, *self._used}],
                    )
                self._make_room()
        self._waiting, self._used, self._size = {}, set(), 0

    def _open(self) -> None:
        self.file.parent.parent.mkdir(parents=True, exist_ok=True)
        real_folder(self.file.parent).mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(self.file, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
        self._database = sqlite3.connect(self.file)
        self._database.execute("PRAGMA auto_vacuum = FULL")  # what is removed leaves the disk, too
        with self._database:
            self._database.execute("CREATE TABLE IF NOT EXISTS contents (key BLOB PRIMARY KEY, value BLOB)")
            self._database.execute("CREATE TABLE IF NOT EXISTS uses (key BLOB PRIMARY KEY, used INTEGER)")
            self._database.execute("CREATE INDEX IF NOT EXISTS by_use ON uses (used)")
        while self._remove_older(self.now - UNUSED):
            pass

    def _make_room(self) -> None:
        """Entries of others go first. If all are of this one, nothing more is kept."""
        while self._bytes() > self.most:
            if not self._remove_older(self.now):
                self._close()

    def _bytes(self) -> int:
        if self._database is None:
            return 0
        pages, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _remove_older(self, than: int) -> int:
        """Remove some of the entries that were last used before, the oldest ones; returns how many."""
        assert self._database is not None
        found = self._database.execute("SELECT key FROM uses WHERE used < ? ORDER BY used LIMIT ?", (than, OLDEST))
        keys = found.fetchall()
        with self._database:
            for table in ("contents", "uses"):
                self._database.executemany(f"DELETE FROM {table} WHERE key = ?", keys)
        return len(keys)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A store that is locked, damaged or on a full disk is left alone."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._close()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                with suppress(OSError):
                    self.file.unlink()  # damaged: the next one starts anew

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None


def remembered(key: bytes, compute: Callable[[], Any]) -> Any:
    """What `compute` returns, which can be written as JSON; from the store, if it was computed before."""
    with Store() as store:
        stored = store.get(key)
        if stored is not None:
            return json.loads(stored)
        found = compute()
        store.put(key, json.dumps(found).encode())
    return found


def _checksum(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=CHECKSUM).digest()


def key_of(*parts: object) -> bytes:
    """A key that changes with any of the parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).digest()


def code_of(*modules: ModuleType) -> str:
    """Changes with the source of the modules: part of the keys of what they compute."""
    sources = (Path(str(module.__file__)).read_bytes() for module in modules)
    return hashlib.blake2b(b"".join(sources), digest_size=16).hexdigest()
