"""One worker for all that computes, and a line of bounded length in front of it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sic.serve.limits import Limits, Refused

Result = TypeVar("Result")
Check = Callable[[], None]
"""Called by a job between its steps: ends it where nobody waits for its result any more."""


class Abandoned(Exception):
    """The request that a job belongs to is over."""


class Worker:
    """Runs jobs one after another, so that a model is used by one thread and memory by one image."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.unfinished, self.arriving = 0, 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "sic-worker")

    @contextmanager
    def arrival(self) -> Iterator[None]:
        """Around the upload that a job is for: it takes a place in the line, too, because it takes memory."""
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

    async def run(self, job: Callable[[Check], Result]) -> Result:
        """The job's result; 503 where the line is full or the time is up."""
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
            raise _busy(f"This took longer than {self.limits.seconds:g} seconds and was given up.") from None
        finally:
            over.set()

    def _finished(self, _: "Future[Result]") -> None:
        with self._lock:
            self.unfinished -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _busy(sentence: str) -> Refused:
    return Refused(503, sentence, {"Retry-After": "2"})
