"""The SDK functions over HTTP: shell, Python, files, streams, and what services answer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import files
import forward
import keeping
import ports
import ptys
import streams
from python import Python
from server import Refused, Request, Routes
from shell import Busy, Idle, Shell

_LONGEST_S, _WAIT_S = 3600.0, 10.0
_MOST, _LIMIT = 2**24, 2**16  # bytes of an output


def routes(home: Path, environment: dict[str, str]) -> Routes:
    shell, python = Shell(str(home), environment), Python(str(home), environment)

    def run(request: Request) -> dict:
        try:
            return asdict(shell.run(request.text("command"), _wait(request), _limit(request)))
        except Busy as busy:
            raise Refused(str(busy), 409) from None
        except ValueError as error:
            raise Refused(str(error)) from None

    def keys(request: Request) -> dict:
        try:
            return asdict(shell.keys(request.text("keys"), _wait(request)))
        except Idle as idle:
            raise Refused(str(idle), 409) from None

    def read(request: Request) -> dict:
        return asdict(shell.read(_wait(request)))

    def code(request: Request) -> dict:
        return asdict(python.run(request.text("code"), _wait(request), _limit(request)))

    own = {
        ("POST", "/shell/run"): run,
        ("POST", "/shell/keys"): keys,
        ("POST", "/shell/read"): read,
        ("GET", "/shell/screen"): lambda request: {"screen": shell.look()},
        ("POST", "/python/run"): code,
    }
    handed_on = {**streams.routes(str(home), environment), **ports.routes(), **forward.routes()}
    handed_on |= keeping.routes(shell, python)
    return {**own, **ptys.routes(shell, str(home), environment), **files.routes(home), **handed_on}


def _wait(request: Request) -> float:
    return request.number("wait_s", 0, _LONGEST_S, _WAIT_S)


def _limit(request: Request) -> int:
    return int(request.number("limit", 0, _MOST, _LIMIT))
