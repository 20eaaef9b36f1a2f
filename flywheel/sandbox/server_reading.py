"""What a manifest reads outside of the page, from the session's server: a command's output, a row, an answer.

No script of the page can reach it. What is wrong comes back by the name of its field.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import httpx

from flywheel.errors import EnvError
from flywheel.sandbox.manifest_parts import Answer, Output, Outside, Row

if TYPE_CHECKING:
    from flywheel.sandbox.manifests import PageManifest

MOST = 20_000  # characters of a recorded value
_STEPS = 10_000  # of SQLite's machine between two looks at the deadline
_TRY = "see it with `flywheel page try`"


class Asked(Protocol):
    """A session's server, as readings want it."""

    folder: Path
    seed: int
    variant: str

    async def output(self, command: Sequence[str]) -> tuple[int, str]: ...

    async def answer(self, address: str) -> tuple[int, bytes]: ...


class _Fault(Exception):
    """Why a field cannot be read."""


async def values_of(manifest: PageManifest, server: Asked) -> dict[str, Any]:
    """Every field that is read outside of the page, by its name. Raises EnvError naming the one at fault."""
    asked = manifest.readings
    found = await asyncio.gather(*(_read(manifest, field, what, server) for field, what in asked.items()))
    return dict(zip(asked, found, strict=True))


async def _read(manifest: PageManifest, field: str, what: Outside, server: Asked) -> Any:
    deadline = manifest.server.read_s
    try:
        async with asyncio.timeout(deadline):
            match what:
                case Output(command=command):
                    value = _printed(*await server.output(command), field)
                case Row():
                    value = await asyncio.to_thread(_row, what, server, deadline)
                case Answer(address=address, value=way):
                    value = _answered(address, *await server.answer(address), way)
        return _fit(field, value)
    except TimeoutError:
        fault = f"it is not read within {deadline:g} s"
    except _Fault as error:
        fault = str(error)
    except (httpx.HTTPError, sqlite3.Error, OSError) as error:
        fault = f"{type(error).__name__}: {error}"
    raise EnvError(f"{manifest.path.name}: {field}: {fault}", where=f"page {manifest.name}", fix=_TRY)


def _printed(status: int, said: str, field: str) -> Any:
    if said == "" and status in (0, 1):
        return status == 0
    if status:
        raise _Fault(f"the command ended with status {status}: {' '.join(said.split())[-300:] or 'it said nothing'}")
    if field == "instruction":
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said


def _row(what: Row, server: Asked, limit_s: float) -> Any:
    place = server.folder / what.sqlite
    if not place.resolve().is_relative_to(server.folder.resolve()) or not place.is_file():
        raise _Fault(f"there is no database {what.sqlite} in the session's folder")
    end = time.monotonic() + limit_s
    base = sqlite3.connect(f"file:{quote(str(place.resolve()))}?mode=ro", uri=True, timeout=limit_s)
    try:
        base.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
        base.execute("pragma trusted_schema = off")  # what is stored in the database runs nothing
        row = base.execute(what.query, {"seed": server.seed, "variant": server.variant}).fetchone()
    finally:
        base.close()
    if not row:
        raise _Fault("the query gives no row; let it count, or use max(...) or coalesce(...)")
    return row[0]


def _answered(address: str, status: int, body: bytes, way: str) -> Any:
    if status >= 400:
        raise _Fault(f"{address} answers with status {status}")
    try:
        value = json.loads(body)
    except ValueError:
        raise _Fault(f"{address} answers no JSON: {body[:80]!r}") from None
    for name in way.split(".") if way else ():
        try:
            if isinstance(value, list) and name == "length":
                value = len(value)
            else:
                value = value[int(name) if isinstance(value, list) else name]
        except (LookupError, TypeError, ValueError):
            raise _Fault(f"value: there is no {name} in {json.dumps(value)[:80]}") from None
    return value


def _fit(field: str, value: Any) -> Any:
    """The value, of the kind that the field needs."""
    if field in ("reward", "success"):
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        raise _Fault(f"it gives {json.dumps(value, default=str)[:80]}; a number is needed")
    if field == "end":
        if value in (True, False):  # 1 and 0 too: a database has no other
            return bool(value)
        raise _Fault(f"it gives {json.dumps(value, default=str)[:80]}; true or false is needed")
    if field == "instruction":
        if isinstance(value, str) and value.strip():
            return value
        raise _Fault(f"it gives {json.dumps(value, default=str)[:80]}; a text is needed")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = json.dumps(value)
    if len(text) > MOST:
        raise _Fault(f"it gives {len(text)} characters of JSON, {MOST} are the most")
    return value
