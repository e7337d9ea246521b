"""Everything between a socket and the application: idle connections, access checks, response headers, metrics."""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sic.serve.limits import Limits

COOKIE = "sic_token"
OPEN = frozenset(["/healthz"])
"""Answered without a token: it says only that the server is running."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
SILENT_SECONDS = 10.0
"""How long a connection may take to send a complete request."""
SILENT = 64
"""The most connections without a request; beyond that, a new one closes the oldest."""
GRACE = 1.0
"""Seconds that every connection gets: its request may be on its way."""
BURST = 512
"""Open connections beyond those being answered; further ones get a 503."""
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""

disable_created_metrics()


class Metrics:
    """Counters for Prometheus: requests by route and status, durations, images, memory. No names, no contents."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        """`waiting` returns the number of requests in progress or waiting."""
        self._registry = CollectorRegistry()
        self._requests = Counter("sic_requests", "Requests answered.", ["route", "status"], registry=self._registry)
        self._images = Counter("sic_images", "Images predicted or explained.", ["what"], registry=self._registry)
        self._seconds = Histogram(
            "sic_request_seconds", "Duration of requests.", ["route"], buckets=BUCKETS, registry=self._registry
        )
        Gauge("sic_waiting", "Requests in progress or waiting.", registry=self._registry).set_function(waiting)
        Gauge("sic_resident_bytes", "Memory of the server.", registry=self._registry).set_function(resident_bytes)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def images(self, what: str, number: int) -> None:
        """Count images that were predicted or explained."""
        self._images.labels(what).inc(number)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


def resident_bytes() -> float:
    """Memory of this process; 0 if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize())


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, token: str | None, names: frozenset[str], metrics: Metrics) -> None:
        """`names`: host names of this server besides `localhost` and IP addresses."""
        self.app, self.token, self.metrics = app, token, metrics
        self.names = {name.lower() for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refuse(scope)
        try:
            await (refused or self.app)(scope, receive, answer)
        finally:
            # The pattern of the route, not the address: callers could invent any number of those.
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, status, time.monotonic() - start)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._known(headers.get("host", "")):
            return _no(421, "This server does not know this host name; start it with --allow-host NAME.")
        if scope["method"] not in ("GET", "HEAD") and not _same_origin(headers):
            return _no(403, "Requests from other web pages are refused.")
        if self.token is None or scope["path"] in OPEN:
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"))
        if scope["method"] == "GET" and self._is_token(dict(asked).get("token", "")):
            return self._let_in(headers, scope["path"], [(name, value) for name, value in asked if name != "token"])
        given = headers.get("authorization", "").removeprefix("Bearer ")
        cookies = cookie_parser(headers.get("cookie", ""))
        if self._is_token(given) or self._is_token(cookies.get(_cookie_name(headers), "")):
            return None
        sentence = "This server needs its token: open /?token=… in a browser, or send Authorization: Bearer …."
        return _no(401, sentence, {"WWW-Authenticate": "Bearer"})

    def _let_in(self, headers: Headers, path: str, query: list[tuple[str, str]]) -> Response:
        """Move the token of a link (?token=…) to a cookie that scripts cannot read."""
        assert self.token is not None
        target = "/" + path.lstrip("/") + (f"?{urlencode(query)}" if query else "")  # never //elsewhere
        response = RedirectResponse(target, 303)
        response.set_cookie(_cookie_name(headers), self.token, httponly=True, samesite="strict")
        return response

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _known(self, host: str) -> bool:
        """Whether the Host header names this server; it does not after DNS rebinding."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in self.names


def _cookie_name(headers: Headers) -> str:
    """One for each port, because a browser sends the cookies of a host to all of its ports."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def _same_origin(headers: Headers) -> bool:
    """Whether a request comes from our own pages, or from a program that is no browser."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:  # no address
        return False


def _no(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": sentence}, status, headers)


class Connection(H11Protocol):
    """Closed if it sends no complete request in time, so that it does not take the place of others."""

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
        """Whether no request is being answered."""
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
    """The configuration of uvicorn for this server."""
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
