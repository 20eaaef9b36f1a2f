"""Who may look: the workspace's secret, or an address that works once, is changed for a cookie.

A cookie holds for all servers of one host, whatever their port. So it is not the secret, and it ends with the server.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import cookie_parser

_LASTS_S = 12 * 3600
_MOST = 1000  # sessions, and addresses that nobody used yet; the oldest go first


class Login:
    """Keys that work once, and sessions. secret: the line `flywheel:...`; port: cookies of two explorers differ."""

    def __init__(self, secret: str, port: int, now: Callable[[], float] = time.monotonic) -> None:
        self.cookie = f"flywheel-{port}"
        self._secret, self._now = secret, now
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def key(self) -> str:
        """A new one."""
        made = secrets.token_urlsafe(24)
        self._keys[made] = None
        if len(self._keys) > _MOST:
            self._keys.popitem(last=False)
        return made

    def by_key(self, key: str) -> str:
        """The session that the key is changed for; "" where it is none, or was used."""
        if key not in self._keys:
            return ""
        del self._keys[key]
        return self._begin()

    def by_secret(self, typed: str) -> str:
        """The same for the secret: the whole line, or what stands after its colon."""
        said, line = typed.strip().encode(), self._secret.encode()
        password = line.partition(b":")[2]
        return self._begin() if hmac.compare_digest(said, line) or hmac.compare_digest(said, password) else ""

    def holds(self, cookies: str) -> bool:
        """Whether a header Cookie has a session that has not ended."""
        until = self._sessions.get(cookie_parser(cookies).get(self.cookie, ""))
        return until is not None and self._now() < until

    def set_cookie(self, session: str) -> str:
        """The header Set-Cookie."""
        return f"{self.cookie}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={_LASTS_S}"

    def _begin(self) -> str:
        session = secrets.token_urlsafe(24)
        self._sessions[session] = self._now() + _LASTS_S
        if len(self._sessions) > _MOST:
            self._sessions.popitem(last=False)
        return session
