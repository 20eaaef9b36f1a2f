"""Run the server of a third-party page for one session, and read values from it: by a command, SQL or HTTP."""

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

from flywheel.envs import cgroups, isolation
from flywheel.envs.browser.pages import manifest as pages_manifest
from flywheel.envs.browser.pages.manifest import DatabaseValue, OutsideReading, PageManifest
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.registry import fill_placeholders
from flywheel.utils import child_processes, stream_relay
from flywheel.utils.child_processes import ChildProgram, PrivateFolder
from flywheel.utils.errors import EnvError, EnvTimeout
from flywheel.utils.local_ports import bind_free_port

# Values that a manifest reads outside of the page, where no script of the page can reach. Errors name the field.

FIELD_KINDS = {"reward": "a number", "success": "a number", "end": "true or false", "instruction": "a text"}
MAX_VALUE_CHARACTERS = 20_000  # of a recorded value
_SQLITE_STEPS = 10_000  # of SQLite's virtual machine between two checks of the deadline
SEE_PAGE_TRY = "see it with `flywheel env page try`"


class _UnreadableField(Exception):
    """Report why a field cannot be read."""


async def _read_field(manifest: PageManifest, field: str, what: OutsideReading, server: PageServer) -> Any:
    deadline = manifest.server.read_s
    try:
        async with asyncio.timeout(deadline):
            match what:
                case pages_manifest.CommandOutput(command=command):
                    value = _parse_output(*await server.execute_command(command), field)
                case DatabaseValue():
                    value = await asyncio.to_thread(_query_database, what, server, deadline)
                case pages_manifest.ServerAnswer(address=address, value=way):
                    value = _parse_answer(address, *await server.request(address), way)
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
    """Return the value as the type that the field needs; raises _UnreadableField for another type."""
    if field in FIELD_KINDS:
        if field == "end" and value in (True, False):  # 1 and 0 too: SQLite has no booleans
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


# The server of one session of a page, with its own copy of its folder and its own port. Of our environment variables it
# gets only PATH. Where bubblewrap works it sees its own folder, the system's programs and no network: a relay
# (`stream_relay.py`) joins its port with the one that the browser uses. It ends with its session and with this process.

log = logging.getLogger(__name__)
_READY_INTERVAL_S = 0.05  # between two requests that test whether it has started
_READY_TIMEOUT_S = 2.0  # of such a request
_WATCH_INTERVAL_S = 2.0  # between checks of its memory and its files
_MAX_PROCESSES = 1024  # processes and threads at once, where this user may create cgroups
_INSIDE = Path("/session")  # the session's folder under bubblewrap; its random name here would show on pages
_PYTHON = os.path.realpath(sys.executable)  # outside of our virtual environment
_RELAY = Path(stream_relay.__file__)
_EPOCH = 1767258000  # 2026-01-01 09:00 UTC, as in scripts/document/clock.js
_MAX_ANSWER_BYTES = 10_000_000
_MAX_SOCKET_PATH = 100  # characters that the name of a socket file may have


class PageServer:
    """Run the server of a page for one session, between `start` and `stop`.

    manifest: has a `server`. variant, seed: fill the placeholders of its commands. programs: find its commands. port,
    origin: where it answers, known before `start`. limit_s: deadline of the start, clean-up included. folder: the
    session's own files. `stop` returns at once; `wait_gone` waits until everything is freed. Raises OSError where no
    port or folder can be had.
    """

    def __init__(self, manifest: PageManifest, variant: str, seed: int, programs: ServerPrograms) -> None:
        self._manifest, self._said, self._programs = manifest, manifest.server, programs
        self._listener: socket.socket | None = bind_free_port()
        self.port = self._listener.getsockname()[1]
        # Requests use `verify=False`: it is plain HTTP, and loading the system's certificates takes 20 ms of a core.
        self.origin = f"http://127.0.0.1:{self.port}"
        self.limit_s = 1.5 * self._said.start_s  # of the start, cleaning up included
        self._child: ChildProgram | None = None
        self._guard: child_processes.ProcessGuard | None = None
        self._relay: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()  # one for each relayed connection
        self._watch: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._why = ""  # why we ended it
        self._mark = f"FLYWHEEL_SERVER={secrets.token_hex(8)}"
        self._profile = PrivateFolder("server")
        self._group: cgroups.Cgroup | None = None
        self.folder = self._profile.path / "files"
        self._root = self._profile.path if isolation.explain_missing_bwrap() else _INSIDE  # as its programs see it
        folder = str(self._root / "files")
        self._names = {"port": str(self.port), "seed": str(seed), "variant": variant, "folder": folder}
        self.seed, self.variant = seed, variant

    # -- start and end --------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start the server in a filled folder, and wait until it answers.

        That is `prepare_folder`, `server.command`, and requests to `server.ready`. Call it once; `stop` follows after
        an error too. Raises EnvError, with its last output, where it does not start or a command of `server.setup`
        fails, EnvTimeout where it does not answer within `server.start_s`, BadInput where a program is missing.
        """
        try:
            async with asyncio.timeout(self._said.start_s):
                await self.prepare_folder()
                await self._launch()
                await self._answers()
        except TimeoutError:
            late = f"the page's server did not answer {self._said.ready} within {self._said.start_s:g} s: {self._words}"
            raise EnvTimeout(late, where=self._where, fix="see server.ready, or raise server.start_s") from None
        except OSError as error:
            raise EnvError(f"the page's server could not be started: {error}", where=self._where) from None
        self._watch = asyncio.create_task(self._watch_limits())

    def stop(self) -> None:
        """Kill the server, and remove its files and processes in the background (`wait_gone`); may be called twice."""
        if self._leaving is None:
            self._end()
            self._leaving = asyncio.create_task(self._leave())

    async def wait_gone(self) -> None:
        """Stop the server, and wait until its processes and files are gone; may be called twice."""
        self.stop()
        await asyncio.wait([self._leaving])

    @property
    def over(self) -> bool:
        """Tell whether the server was stopped, and its files and processes are gone."""
        return self._leaving is not None and self._leaving.done()

    # -- reading values -------------------------------------------------------------------------------------------
    async def read(self) -> dict[str, Any]:
        """Read all values that the manifest reads from the server, outside of the page; returns JSON values by field.

        Raises EnvError, naming the field at fault, where the server has ended, or where a value is not read within
        `server.read_s` or is of another type; BadInput where a program is missing.
        """
        if self.fault:
            raise EnvError(self.fault, where=self._where)
        asked = self._manifest.readings
        found = await asyncio.gather(*(_read_field(self._manifest, field, what, self) for field, what in asked.items()))
        return dict(zip(asked, found, strict=True))

    @property
    def fault(self) -> str:
        """Return why the server is gone, with its last output; "" while it runs, or before it starts."""
        if self._child is None or not (self._why or self._child.code is not None):
            return ""
        why = self._why or self._end_reason
        return f"the page's server is gone: {why}: {self._words}"

    async def execute_command(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command that reads the session's folder; returns (exit status, output).

        Where bubblewrap works, the command cannot change the folder. command: program and arguments, with placeholders.
        The status is minus the signal's number where one ended it. There is no deadline; cancelled, the call kills the
        program. Raises BadInput where the program is missing, OSError where the session's folder is.
        """
        # The command must not load code that the policy may have put into the folder, or into the server's home.
        safe = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "HOME": "/nonexistent", "TMPDIR": "/tmp"}
        return await self._run(command, {**self._environment, **safe}, {})

    async def request(self, address: str) -> tuple[int, bytes]:
        """GET an address of the server, with the login's headers and cookies; returns (status, body).

        address: path and query, with placeholders. Raises EnvError for a body of more than 10 MB, httpx.HTTPError
        without an answer, or where it pauses for more than `server.read_s`.
        """
        login = self._manifest.login
        names = {"seed": str(self.seed), "variant": self.variant}  # as the browser fills them in
        said = (login.headers, login.cookies) if login else ({}, {})
        headers, cookies = ({name: fill_placeholders(text, names) for name, text in one.items()} for one in said)
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
        """Fill in the placeholders `{port}`, `{seed}`, `{variant}` and `{folder}` of a text. more: others, by name."""
        return fill_placeholders(text, {**self._names, **(more or {})})

    # -- inside ---------------------------------------------------------------------------------------------------
    @property
    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self._root / "home"), "TMPDIR": str(self._root / "tmp"), "LANG": "C.UTF-8", "TZ": "UTC"}
        given = {name: self.fill(value) for name, value in self._said.environment.items()}
        name, _, value = self._mark.partition("=")
        return {"PATH": self._programs.path, "PYTHONUNBUFFERED": "1", **own, **given, name: value}

    async def prepare_folder(self) -> None:
        """Make the session's folder: a copy of `server.folder`, in which `server.setup` is run. Call it once.

        Raises EnvError where a command of `server.setup` fails, BadInput where a program is missing, OSError where a
        folder cannot be made.
        """
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
    def _own(self) -> dict[str, Path]:
        return {str(self._root / name): self._profile.path / name for name in ("files", "home", "tmp", "door")}

    def _sees(self, program: Path, *more: Path) -> dict[str, Path]:
        paths = (*more, *isolation.list_program_folders(program), *map(Path, self._said.reads))
        return {str(path): path for path in paths}

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], writable: Mapping[str, Path]
    ) -> tuple[int, str]:
        here = self._manifest.path.parent
        words = [self.fill(word, {"manifest": str(here)}) for word in command]
        program = self._programs.find(words[0])
        words[0] = str(program)
        if not isolation.explain_missing_bwrap():
            readable = self._sees(program, here) | ({} if writable else {self._names["folder"]: self.folder})
            words = isolation.wrap_in_bwrap(words, self._names["folder"], writable, readable)
        child = ChildProgram(words, self.folder, environment, self._said.memory_mb, self._said.disk_mb)
        try:
            return await child.done(), child.output
        finally:
            await child.kill_and_wait()

    async def _launch(self) -> None:
        words = [self.fill(word) for word in self._said.command]
        program = self._programs.find(words[0])
        words[0] = str(program)
        if isolation.explain_missing_bwrap():
            self._listener.close()  # the server itself listens on the port
        else:
            words = await self._behind_a_door(words, program)
        self._group = await asyncio.to_thread(cgroups.create_cgroup, self._said.memory_mb, _MAX_PROCESSES)
        words = self._group.wrap_command(words) if self._group else words
        self._child = ChildProgram(words, self.folder, self._environment, self._said.memory_mb, self._said.disk_mb)
        # Processes cannot leave bubblewrap; without it they are found by a mark in their environment.
        mark = self._mark if isolation.explain_missing_bwrap() else ""
        self._guard = child_processes.ProcessGuard(self._child.pid, self._profile.path, mark)

    async def _behind_a_door(self, words: list[str], program: Path) -> list[str]:
        door = str(self._profile.path / "door" / "socket")
        if len(door) > _MAX_SOCKET_PATH:
            raise EnvError("the folder for temporary files has too long a name", where=door, fix="set another TMPDIR")
        self._relay = await asyncio.start_server(partial(self._join, door), sock=self._listener)
        self._listener = None
        inside = [_PYTHON, "-I", "-S", str(_RELAY), str(self._root / "door" / "socket"), str(self.port), *words]
        return isolation.wrap_in_bwrap(inside, self._names["folder"], self._own, self._sees(program, _RELAY))

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
                    ended = f"the page's server ended before it answered: {self._end_reason}: {self._words}"
                    raise EnvError(ended, where=self._where, fix="try server.command by hand")
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(self.origin + self.fill(self._said.ready))
                    if answer.status_code < 500:
                        return
                await asyncio.sleep(_READY_INTERVAL_S)

    async def _watch_limits(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            self._why = await asyncio.to_thread(self._explain_excess)
            if self._why:
                self._end()
                return

    def _explain_excess(self) -> str:
        """Say which limit the server is above; "" for none. Deleted files that are still open count too."""
        pid, most = self._child.pid, self._said.memory_mb
        family = child_processes.measure_memory([pid], one_mb=most, all_mb=most)[pid]
        nameless = child_processes.measure_nameless_files(process.pid for process in family)
        deleted = nameless.pop(self._profile.path.stat().st_dev, 0)
        memory = sum(process.mb for process in family) + sum(nameless.values())
        disk = child_processes.measure_folder(self._profile.path) + deleted
        for field, taken in (("memory_mb", memory), ("disk_mb", disk)):
            if taken > (limit := getattr(self._said, field)):
                return f"it took {taken:.0f} MB, above server.{field}: {limit}"
        return self._out_of_memory

    @property
    def _out_of_memory(self) -> str:
        if self._group is None or not self._group.out_of_memory:
            return ""
        return f"the kernel ended a process of it, above server.memory_mb: {self._said.memory_mb}"

    @property
    def _end_reason(self) -> str:
        return self._out_of_memory or f"it ended by itself with status {self._child.code}"

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
            await self._child.kill_and_wait()
            if isolation.explain_missing_bwrap():
                await child_processes.wait_marked_gone(self._mark)
        if self._guard is not None:
            await self._guard.release()
        if self._group is not None:
            await asyncio.to_thread(self._group.kill_and_remove)
        await asyncio.to_thread(self._profile.remove)

    @property
    def _words(self) -> str:
        return self._child.last_words if self._child is not None else "it had not begun"

    @property
    def _where(self) -> str:
        return f"{self._manifest.path.name}: server"


def _copy_template(template: Path, folder: Path) -> None:
    """Copy the folder, and give all files the date at which page time begins, since a page may show it."""
    shutil.copytree(template, folder, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_EPOCH, _EPOCH), follow_symlinks=False)
