"""Connections that send nothing: closed after a while, and sooner where there are many."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sic.serve.guard import Guard
from sic.serve.limits import Limits

SILENT_SECONDS = 10.0
"""How long a connection may go without a whole request, from its first byte on."""
SILENT = 64
"""Connections without a request that are kept open; beyond that the oldest is closed for a new one."""
GRACE = 1.0
"""Seconds that a connection has in any case: its request may be on its way."""
BURST = 512
"""Connections beyond those that are answered; more get a 503."""


class Connection(H11Protocol):
    """One that waits for a request is closed when its time is up. Others need not wait for it."""

    _timer: asyncio.TimerHandle | None = None
    since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.silent]
        for oldest in sorted(waiting, key=lambda one: one.since)[: max(0, len(waiting) - SILENT)]:
            if self.since - oldest.since > GRACE:
                oldest.end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def silent(self) -> bool:
        """Whether it has no request that is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.since = self.loop.time()
        self._timer = self.loop.call_later(SILENT_SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.silent and not self.transport.is_closing():
            self.end()


def configuration(app: Guard, limits: Limits, **options: Any) -> uvicorn.Config:
    """How uvicorn runs a server of this kind."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,  # addresses would name images
        server_header=False,
        limit_concurrency=8 * limits.waiting + BURST,
        timeout_keep_alive=10,
        **options,
    )
