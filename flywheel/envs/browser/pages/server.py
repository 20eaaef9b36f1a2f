"""Run a page's server for one session; read reward, success and other values from it (command, SQL, HTTP)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from flywheel.envs import isolation
from flywheel.envs.browser.pages import manifest as pages_manifest
from flywheel.envs.browser.pages.manifest import DatabaseValue, OutsideReading, PageManifest
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.registry import fill_placeholders
from flywheel.utils import child_processes, stream_relay
from flywheel.utils.child_processes import ChildProgram, PrivateFolder
from flywheel.utils.errors import EnvError, EnvTimeout
from flywheel.utils.local_ports import bind_free_port

# Values that a manifest reads outside of the page, where no script of the page can reach. Errors name its field.

FIELD_KINDS = {"reward": "a number", "success": "a number", "end": "true or false", "instruction": "a text"}
MAX_VALUE_CHARACTERS = 20_000  # of a recorded value
_SQLITE_STEPS = 10_000  # of SQLite's machine between two looks at the deadline
SEE_PAGE_TRY = "see it with `flywheel env page try`"


class _UnreadableField(Exception):
    """Why a field cannot be read."""


async def _read_field(manifest: PageManifest, field: str, what: OutsideReading, server: PageServer) -> Any:
    deadline = manifest.server.read_s
    try:
        async with asyncio.timeout(deadline):
            match what:
                case pages_manifest.CommandOutput(command=command):
                    value = _parse_output(*await server.output(command), field)
                case DatabaseValue():
                    value = await asyncio.to_thread(_query_database, what, server, deadline)
                case pages_manifest.ServerAnswer(address=address, value=way):
                    value = _parse_answer(address, *await server.answer(address), way)
        return _check_field_type(field, value)
    except TimeoutError:
        fault = f"it is not read within {deadline:g} s"
    except _UnreadableField as error:
        fault = str(error)
    except (httpx.HTTPError, sqlite3.Error, OSError) as error:
        fault = f"{type(error).__name__}: {error}"
    raise EnvError(f"{manifest.path.name}: {field}: {fault}", where=f"page {manifest.name}", fix=SEE_PAGE_TRY)


def _parse_output(status: int, said: str, field: str) -> Any:
    if said == "" and status in (0, 1):
        return status == 0
    if status:
        words = " ".join(said.split())[-300:] or "it said nothing"
        raise _UnreadableField(f"the command ended with status {status}: {words}")
    if field == "instruction":
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said


def _query_database(what: DatabaseValue, server: PageServer, limit_s: float) -> Any:
    place = server.folder / what.sqlite
    if not place.resolve().is_relative_to(server.folder.resolve()) or not place.is_file():
        raise _UnreadableField(f"there is no database {what.sqlite} in the session's folder")
    end = time.monotonic() + limit_s
    base = sqlite3.connect(f"file:{quote(str(place.resolve()))}?mode=ro", uri=True, timeout=limit_s)
    try:
        base.set_progress_handler(lambda: time.monotonic() > end, _SQLITE_STEPS)
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
        base.execute("pragma trusted_schema = off")  # what is stored in the database runs nothing
        row = base.execute(what.query, {"seed": server.seed, "variant": server.variant}).fetchone()
    finally:
        base.close()
    if not row:
        raise _UnreadableField("the query gives no row; let it count, or use max(...) or coalesce(...)")
    return row[0]


def _parse_answer(address: str, status: int, body: bytes, way: str) -> Any:
    if status >= 400:
        raise _UnreadableField(f"{address} answers with status {status}")
    try:
        value = json.loads(body)
    except ValueError:
        raise _UnreadableField(f"{address} answers no JSON: {body[:80]!r}") from None
    for name in way.split(".") if way else ():
        many = isinstance(value, list)
        try:
            value = len(value) if many and name == "length" else value[int(name) if many else name]
        except (LookupError, TypeError, ValueError):
            raise _UnreadableField(f"value: there is no {name} in {json.dumps(value)[:80]}") from None
    return value


def _check_field_type(field: str, value: Any) -> Any:
    """The value, of the kind that the field needs."""
    if field in FIELD_KINDS:
        if field == "end" and value in (True, False):  # 1 and 0 too: a database has no other
            return bool(value)
        if field in ("reward", "success") and isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        if field == "instruction" and isinstance(value, str) and value.strip():
            return value
        raise _UnreadableField(f"it gives {json.dumps(value, default=str)[:80]}; {FIELD_KINDS[field]} is needed")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = json.dumps(value)
    if len(text) > MAX_VALUE_CHARACTERS:
        raise _UnreadableField(f"it gives {len(text)} characters of JSON, {MAX_VALUE_CHARACTERS} are the most")
    return value


# The server of one session of a page, with a copy of its folder and a port of its own. Of our environment it gets PATH
# alone. Where bubblewrap works it sees its own folder, the system's programs and no network: a relay
# (`stream_relay.py`) joins its port with the one that the browser asks. It ends with its session and with this process.

log = logging.getLogger(__name__)
_READY_INTERVAL_S = 0.05  # between two questions whether it has started
_READY_TIMEOUT_S = 2.0  # for such a question
_MEMORY_INTERVAL_S = 2.0  # between looks at its memory
_PYTHON = os.path.realpath(sys.executable)  # as it is without our environment
_RELAY = Path(stream_relay.__file__)
_EPOCH = 1767258000  # 2026-01-01 09:00 UTC, as in scripts/document/clock.js
_MAX_ANSWER_BYTES = 10_000_000  # bytes
_MAX_SOCKET_PATH = 100  # characters that the name of a socket file may have


class PageServer:
    """One server. `port` and `origin` are known from the beginning; `start` returns once it answers.

    programs: where its command is. Everything is freed by `stop`, which returns at once, and `gone`.
    """

    def __init__(self, manifest: PageManifest, variant: str, seed: int, programs: ServerPrograms) -> None:
        self._manifest, self._said, self._programs = manifest, manifest.server, programs
        self._listener: socket.socket | None = bind_free_port()
        self.port = self._listener.getsockname()[1]
        # Asked with `verify=False`: no certificate is met on this way, and reading the system's takes 20 ms of a core.
        self.origin = f"http://127.0.0.1:{self.port}"
        self.limit_s = 1.5 * self._said.start_s  # of the start, its cleaning up included
        self._child: ChildProgram | None = None
        self._guard: child_processes.ProcessGuard | None = None
        self._relay: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()  # connections that are handed on
        self._watch: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._why = ""  # it was ended by us
        self._mark = f"FLYWHEEL_SERVER={secrets.token_hex(8)}"
        self._profile = PrivateFolder("server")
        self.folder = self._profile.path / "files"
        self._names = {"port": str(self.port), "seed": str(seed), "variant": variant, "folder": str(self.folder)}
        self.seed, self.variant = seed, variant

    # -- its life -------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start it. Raises EnvError, with its last output, where it does not come up within `start_s`."""
        try:
            async with asyncio.timeout(self._said.start_s):
                await self._prepare()
                await self._launch()
                await self._answers()
        except TimeoutError:
            late = f"the page's server did not answer {self._said.ready} within {self._said.start_s:g} s: {self._words}"
            raise EnvTimeout(late, where=self._where, fix="see server.ready, or raise server.start_s") from None
        except OSError as error:
            raise EnvError(f"the page's server could not be started: {error}", where=self._where) from None
        self._watch = asyncio.create_task(self._watch_memory())

    def stop(self) -> None:
        """End it now; may be called twice. What is left of it is removed soon: `gone` waits for that."""
        if self._leaving is None:
            self._end()
            self._leaving = asyncio.create_task(self._leave())

    async def gone(self) -> None:
        """Wait until nothing is left of it."""
        self.stop()
        await asyncio.wait([self._leaving])

    @property
    def over(self) -> bool:
        return self._leaving is not None and self._leaving.done()

    # -- what it is asked -----------------------------------------------------------------------------------------
    async def read(self) -> dict[str, Any]:
        """Read every field outside of the page, by its name. Raises EnvError naming the one at fault, or where the
        server has ended."""
        if self.fault:
            raise EnvError(self.fault, where=self._where)
        asked = self._manifest.readings
        found = await asyncio.gather(*(_read_field(self._manifest, field, what, self) for field, what in asked.items()))
        return dict(zip(asked, found, strict=True))

    @property
    def fault(self) -> str:
        """Tell why the server is gone, with its last words; "" while it runs."""
        if self._child is None or not (self._why or self._child.code is not None):
            return ""
        why = self._why or f"it ended by itself with status {self._child.code}"
        return f"the page's server is gone: {why}: {self._words}"

    async def output(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command that sees the session's folder and cannot change it; gives status and output."""
        # What the policy may have put into the folder, or into the server's home, is no part of the command.
        safe = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "HOME": "/nonexistent", "TMPDIR": "/tmp"}
        return await self._run(command, {**self._environment, **safe}, ())

    async def answer(self, address: str) -> tuple[int, bytes]:
        """Get an address of the server; gives status and body."""
        login = self._manifest.login
        headers, cookies = (login.headers, login.cookies) if login else ({}, {})
        s = self._said.read_s
        async with (
            httpx.AsyncClient(verify=False, trust_env=False, headers=headers, cookies=cookies, timeout=s) as client,
            client.stream("GET", self.origin + self.fill(address)) as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > _MAX_ANSWER_BYTES:
                    raise EnvError(f"{address} answers more than {_MAX_ANSWER_BYTES} bytes", where=self._where)
            return answer.status_code, body

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Fill in what stands in a text in braces."""
        return fill_placeholders(text, {**self._names, **(more or {})})

    # -- inside ---------------------------------------------------------------------------------------------------
    @property
    def _environment(self) -> dict[str, str]:
        root = self._profile.path
        own = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), "LANG": "C.UTF-8", "TZ": "UTC"}
        given = {name: self.fill(value) for name, value in self._said.environment.items()}
        name, _, value = self._mark.partition("=")
        return {"PATH": self._programs.path, "PYTHONUNBUFFERED": "1", **own, **given, name: value}

    async def _prepare(self) -> None:
        root, template = self._profile.path, self._manifest.template
        if template is None:
            self.folder.mkdir()
        else:
            await asyncio.to_thread(_copy_template, template, self.folder)
        for name in ("home", "tmp", "door"):
            (root / name).mkdir()
        for command in self._said.setup:
            status, output = await self._run(command, self._environment, self._own)
            if status:
                words = " ".join(output.split())[-400:] or "it said nothing"
                what = f"server.setup: {' '.join(command)[:100]} ended with status {status}: {words}"
                raise EnvError(what, where=self._where)

    @property
    def _own(self) -> list[Path]:
        return [self._profile.path / name for name in ("files", "home", "tmp", "door")]

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], writable: Sequence[Path]
    ) -> tuple[int, str]:
        here = self._manifest.path.parent
        words = [self.fill(word, {"manifest": str(here)}) for word in command]
        program = self._programs.find(words[0])
        words[0] = str(program)
        if not isolation.explain_missing_bwrap():
            readable = [here, *isolation.list_program_folders(program), *map(Path, self._said.reads)]
            readable += () if writable else (self.folder,)
            words = isolation.wrap_in_bwrap(words, self.folder, writable, readable)
        child = ChildProgram(words, self.folder, environment, self._said.memory_mb)
        try:
            return await child.done(), child.said
        finally:
            await child.gone()

    async def _launch(self) -> None:
        words = [self.fill(word) for word in self._said.command]
        program = self._programs.find(words[0])
        words[0] = str(program)
        if isolation.explain_missing_bwrap():
            self._listener.close()  # the server takes its port
        else:
            words = await self._behind_a_door(words, program)
        self._child = ChildProgram(words, self.folder, self._environment, self._said.memory_mb)
        # Under bubblewrap its processes cannot leave it; elsewhere they are known by their environment.
        mark = self._mark if isolation.explain_missing_bwrap() else ""
        self._guard = child_processes.ProcessGuard(self._child.pid, self._profile.path, mark)

    async def _behind_a_door(self, words: list[str], program: Path) -> list[str]:
        door = str(self._profile.path / "door" / "socket")
        if len(door) > _MAX_SOCKET_PATH:
            raise EnvError("the folder for temporary files has too long a name", where=door, fix="set another TMPDIR")
        self._relay = await asyncio.start_server(partial(self._join, door), sock=self._listener)
        self._listener = None
        readable = [_RELAY, *isolation.list_program_folders(program), *map(Path, self._said.reads)]
        inside = [_PYTHON, "-I", "-S", str(_RELAY), door, str(self.port), *words]
        return isolation.wrap_in_bwrap(inside, self.folder, self._own, readable)

    def _join(self, door: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_door = partial(asyncio.open_unix_connection, door)
        joined = asyncio.create_task(stream_relay.relay_connection(to_door, reader, writer))
        self._joined.add(joined)
        joined.add_done_callback(self._joined.discard)

    async def _answers(self) -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=_READY_TIMEOUT_S) as client:
            while True:
                if self._child.code is not None:
                    await self._child.done()
                    ended = f"the page's server ended with status {self._child.code} before it answered: {self._words}"
                    raise EnvError(ended, where=self._where, fix="try server.command by hand")
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(self.origin + self.fill(self._said.ready))
                    if answer.status_code < 500:
                        return
                await asyncio.sleep(_READY_INTERVAL_S)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_MEMORY_INTERVAL_S)
            most = self._said.memory_mb
            pids = [self._child.pid]
            family = await asyncio.to_thread(child_processes.measure_memory, pids, one_mb=most, all_mb=most)
            taken = sum(process.mb for process in family.get(self._child.pid, ()))
            if taken > most:
                self._why = f"it took {taken:.0f} MB, above server.memory_mb: {most}"
                self._end()
                return

    def _end(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        if isolation.explain_missing_bwrap():
            child_processes.kill_marked_processes(self._mark)

    async def _leave(self) -> None:
        for part in (self._relay, self._listener):
            if part is not None:
                part.close()
        ending = [*self._joined, *([self._watch] if self._watch else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._child is not None:
            await self._child.gone()
            if isolation.explain_missing_bwrap():
                await child_processes.wait_marked_gone(self._mark)
        if self._guard is not None:
            await self._guard.release()
        await asyncio.to_thread(self._profile.remove)

    @property
    def _words(self) -> str:
        return self._child.last_words if self._child is not None else "it had not begun"

    @property
    def _where(self) -> str:
        return f"{self._manifest.path.name}: server"


def _copy_template(template: Path, folder: Path) -> None:
    """With one date for all files, since a page may show it: the one that page time begins with."""
    shutil.copytree(template, folder, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_EPOCH, _EPOCH), follow_symlinks=False)
