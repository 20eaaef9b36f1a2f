"""Authenticate the explorer's requests by session cookies, check their origin and size, and add security headers."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A browser exchanges the workspace's secret, or a one-time key in an address, for a session cookie. Browsers send a
# cookie to all ports of a host, so the cookie is not the secret itself, and its session ends with the server.

_SESSION_S = 12 * 3600
_MAX_SESSIONS = 1000  # most sessions, and most unused one-time keys; the oldest are dropped first


class LoginSessions:
    """Hold the login sessions of browsers, and one-time keys that begin sessions.

    secret: the credentials line `flywheel:PASSWORD`. port: part of the cookie's name, so that two explorers have
    different cookies. now: clock, in seconds.
    """

    def __init__(self, secret: str, port: int, now: Callable[[], float] = time.monotonic) -> None:
        self.cookie = f"flywheel-{port}"
        self._secret, self._now = secret, now
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def key(self) -> str:
        """Make a new one-time key; beyond 1000 unused ones the oldest is dropped."""
        made = secrets.token_urlsafe(24)
        self._keys[made] = None
        if len(self._keys) > _MAX_SESSIONS:
            self._keys.popitem(last=False)
        return made

    def exchange_key(self, key: str) -> str:
        """Exchange a one-time key for a session; return "" where it is unknown or already used."""
        if key not in self._keys:
            return ""
        del self._keys[key]
        return self._begin()

    def exchange_secret(self, typed: str) -> str:
        """Exchange the secret for a session; return "" where it is wrong. typed: the whole line, or the password."""
        said, line = typed.strip().encode(), self._secret.encode()
        password = line.partition(b":")[2]
        return self._begin() if hmac.compare_digest(said, line) or hmac.compare_digest(said, password) else ""

    def holds(self, cookies: str) -> bool:
        """Tell whether the text of a Cookie header, `cookies`, names a session that has not expired."""
        until = self._sessions.get(cookie_parser(cookies).get(self.cookie, ""))
        return until is not None and self._now() < until

    def set_cookie(self, session: str) -> str:
        """Build the value of the Set-Cookie header for a `session` that one of the two exchanges returned."""
        return f"{self.cookie}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={_SESSION_S}"

    def _begin(self) -> str:
        session = secrets.token_urlsafe(24)
        self._sessions[session] = self._now() + _SESSION_S
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session


# Middleware: authentication, size limits, security headers.

MAX_REQUEST_BYTES = 256 * 1024  # bytes of a request's body
PUBLIC_PATHS = ("/login", "/static/", "/tones.css")  # served without a session; they have no data
_OWN_SITES = ("same-origin", "none")


def content_security_policy(nonce: str = "") -> str:
    """Build the Content-Security-Policy header's value, which allows resources of this server only.

    nonce: of styles that the page's table and editor add; "": none.
    """
    styles = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:; connect-src 'self'; "
        "media-src 'self'; font-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


class AuthMiddleware:
    """Wrap the application: check sessions, fetch site and size of requests, and add security headers.

    `local_server.OwnHostOnly` checks Host and Origin.
    """

    def __init__(self, application: ASGIApp, login: LoginSessions) -> None:
        self._application, self._login = application, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = self._refusal(scope) or self._application
            await answer(scope, _limited_receive(receive), _send_with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path, reads = Headers(scope=scope), scope["path"], scope["method"] == "GET"
        length = headers.get("content-length", "0")
        # A page of another server on this machine is "same-site": its requests carry the explorer's cookie.
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES and not (
            headers.get("sec-fetch-mode") == "navigate" and reads
        ):
            return _error(403, "only the explorer's own pages may ask")
        if not path.startswith(PUBLIC_PATHS) and not self._login.holds(headers.get("cookie", "")):
            if path.startswith("/api/") or not reads:
                return _error(401, "not logged in, or no longer: load the page again")
            asked = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"/login?next={quote(asked, safe='')}", 303)
        if not length.isdigit() or int(length) > MAX_REQUEST_BYTES:
            return _error(413, f"a request may have {MAX_REQUEST_BYTES // 1024} KiB, this one is longer")
        # A page of another site can send a form without CORS, but not JSON.
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not reads and path.startswith("/api/") and kind != "application/json":
            return _error(415, "what is asked for is said in JSON: content-type application/json")
        return None


def _error(status: int, what: str) -> Response:
    return JSONResponse({"error": what}, status)


class RequestTooLong(Exception):
    """Signal a body above the size limit, whatever its Content-Length said."""


def _limited_receive(receive: Receive) -> Receive:
    """Wrap `receive` to raise RequestTooLong once the body is above the limit, whatever its Content-Length says."""
    had = 0

    async def received() -> Message:
        nonlocal had
        message = await receive()
        had += len(message.get("body", b""))
        if had > MAX_REQUEST_BYTES:
            raise RequestTooLong
        return message

    return received


def _send_with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("content-security-policy", content_security_policy())
            headers.setdefault("cache-control", "no-store")
            headers.update(_SECURITY_HEADERS)
        await send(message)

    return sent


_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
