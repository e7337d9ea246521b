"""Who may ask, and what every answer says to the browser: host names, token, same origin, headers."""

import hmac
import ipaddress
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sic.serve.metrics import Metrics

COOKIE = "sic_token"
OPEN = frozenset(["/healthz"])
"""Answered without a token: says only that the server is there."""
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


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, token: str | None, names: frozenset[str], metrics: Metrics) -> None:
        """`names`: host names that this server goes by, beside `localhost` and any IP address."""
        self.app, self.token, self.metrics = app, token, metrics
        self.names = names | {"localhost"}

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
            # The route's pattern, never the address itself: that would let callers invent names.
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, status, time.monotonic() - start)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._known(headers.get("host", "")):
            return _no(421, "This server does not go by that name; --allow-host NAME makes it.")
        if scope["method"] not in ("GET", "HEAD") and not _same_origin(headers):
            return _no(403, "Requests from other web pages are not answered.")
        if self.token is None or scope["path"] in OPEN:
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"))
        if scope["method"] == "GET" and self._is_token(dict(asked).get("token", "")):
            return self._let_in(scope["path"], [(name, value) for name, value in asked if name != "token"])
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(given) or self._is_token(_cookie(headers)):
            return None
        sentence = "This server needs its token: open /?token=… in a browser, or send Authorization: Bearer …."
        return _no(401, sentence, {"WWW-Authenticate": "Bearer"})

    def _let_in(self, path: str, query: list[tuple[str, str]]) -> Response:
        """A link with ?token=… lets a browser in: the token moves to a cookie that scripts cannot read."""
        assert self.token is not None
        target = "/" + path.lstrip("/") + (f"?{urlencode(query)}" if query else "")  # never //elsewhere
        response = RedirectResponse(target, 303)
        response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return response

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _known(self, host: str) -> bool:
        """Another site's name that leads to this address (DNS rebinding) is a name that we do not know."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in self.names


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _same_origin(headers: Headers) -> bool:
    """Browsers say where a request comes from; other programs need not."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:  # no address
        return False


def _no(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": sentence}, status, headers)
