"""How much a request may ask for, the refusal of more, and the queue for everything that computes."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
Check = Callable[[], None]
"""Called by a job between its steps; ends the job if nobody waits for its result any more."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a server; a request beyond one of them is refused."""

    upload_bytes: int = 32 * 2**20
    """Of one request with all its images."""
    pixels: int = 40_000_000
    """Of one image; checked before it is decoded."""
    images: int = 16
    """In one request."""
    waiting: int = 16
    """Requests in progress or waiting; further requests are refused."""
    seconds: float = 60.0
    """Time limit of a request: for its upload, and again for its computation."""
    decoding: float = 10.0
    """Time limit for decoding one image, in seconds."""


class Refused(Exception):
    """A refused request: the HTTP status, and one sentence that says why and what to do instead."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


class Abandoned(Exception):
    """The request of this job has ended."""


class Worker:
    """Runs jobs one at a time, so that one thread uses the model and one image uses memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.unfinished, self.arriving = 0, 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "sic-worker")

    @contextmanager
    def arrival(self) -> Iterator[None]:
        """Counts an upload as waiting while it is received, because it takes memory."""
        with self._lock:
            self._admit()
            self.arriving += 1
        try:
            yield
        finally:
            with self._lock:
                self.arriving -= 1

    def _admit(self) -> None:
        if self.unfinished + self.arriving >= self.limits.waiting:
            raise _busy("Too many requests are waiting; try again in a moment.")

    async def run(self, job: Callable[[Check], Result], whole: bool = False) -> Result:
        """Run a job and return its result; refuse with 503 if the queue is full or the time is up.

        `whole`: once it has started, the job is not cancelled, and its result is returned however long it takes.
        """
        with self._lock:
            self._admit()
            self.unfinished += 1
        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise Abandoned

        def start() -> Result:
            check()
            return job(check)

        future = self._thread.submit(start)
        future.add_done_callback(self._finished)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if whole and not future.cancel():
                return await asyncio.wrap_future(future)
            raise _busy(f"This took longer than {self.limits.seconds:g} seconds and was cancelled.") from None
        finally:
            over.set()

    async def in_background(self, job: Callable[[], Result]) -> Result:
        """Run a job that belongs to no request: it is not counted as waiting, and has no time limit."""
        return await asyncio.wrap_future(self._thread.submit(job))

    def _finished(self, _: "Future[Result]") -> None:
        with self._lock:
            self.unfinished -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _busy(sentence: str) -> Refused:
    return Refused(503, sentence, {"Retry-After": "2"})
