"""What stands before each answer: who asks, how much they send, and what a browser may do with what it is given."""

from __future__ import annotations

import json
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flywheel.explorer.login import Login

LONGEST = 256 * 1024  # bytes of a request's body
OPEN = ("/login", "/static/", "/tones.css")  # what is given to whoever reaches the server: no data
_WITHIN = ("same-origin", "none")


def policy(nonce: str = "") -> str:
    """The content security policy: what comes from here, and nothing else. nonce: of the styles that the grid and the
    editor write into the page."""
    styles = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:; connect-src 'self'; "
        "media-src 'self'; font-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


class Guard:
    """Wraps the application. Its host and origin are looked at by `local_server.OwnHost`."""

    def __init__(self, application: ASGIApp, login: Login) -> None:
        self._application, self._login = application, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers, path = Headers(scope=scope), scope["path"]
        navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        # A page of another server on this machine is of the same site: its requests bear our cookie.
        if headers.get("sec-fetch-site", "none") not in _WITHIN and not navigates:
            await _refuse(send, 403, "only the explorer's own pages may ask")
        elif not path.startswith(OPEN) and not self._login.holds(headers.get("cookie", "")):
            if path.startswith("/api/") or scope["method"] != "GET":
                await _refuse(send, 401, "not logged in, or no longer: load the page again")
            else:
                asked = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
                await _answer(send, 303, b"", {"location": f"/login?next={quote(asked, safe='')}"})
        elif not headers.get("content-length", "0").isdigit() or int(headers.get("content-length", "0")) > LONGEST:
            await _refuse(send, 413, f"a request may have {LONGEST // 1024} KiB, this one is longer")
        elif scope["method"] != "GET" and path.startswith("/api/") and not _is_json(headers):
            await _refuse(send, 415, "what is asked for is said in JSON: content-type application/json")
        else:
            await self._application(scope, _short(receive), _guarded(send))


def _is_json(headers: Headers) -> bool:
    """A form of another page, which asks for no leave to be sent, cannot be."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


class TooLong(Exception):
    """A body without a length went over what is taken."""


def _short(receive: Receive) -> Receive:
    """What is received, up to the limit, whatever the request said of its length."""
    had = 0

    async def received() -> Message:
        nonlocal had
        message = await receive()
        had += len(message.get("body", b""))
        if had > LONGEST:
            raise TooLong
        return message

    return received


def _guarded(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("content-security-policy", policy())
            headers.setdefault("cache-control", "no-store")
            headers.update(_ALWAYS)
        await send(message)

    return sent


_ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


async def _refuse(send: Send, status: int, what: str) -> None:
    await _answer(send, status, json.dumps({"error": what}).encode(), {"content-type": "application/json"})


async def _answer(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    start = {"type": "http.response.start", "status": status, "headers": []}
    MutableHeaders(scope=start).update({"content-length": str(len(body)), **headers})
    await _guarded(send)(start)
    await send({"type": "http.response.body", "body": body})
