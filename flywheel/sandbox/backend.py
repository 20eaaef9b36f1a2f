"""The server of one session of a page: its folder copied, started at a port of its own, asked, ended and removed.

Its environment holds nothing of ours but PATH. Where bubblewrap works it sees its own folder, the system's programs
and no network: a relay (`relay.py`) joins its port with the one that the browser asks. It ends with its session, with
the pool, and with this process (`guarded.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from flywheel.errors import EnvError, EnvTimeout
from flywheel.local_server import free_port
from flywheel.sandbox import guarded, isolation, memory, relay
from flywheel.sandbox.child import Child
from flywheel.sandbox.manifests import PageManifest
from flywheel.sandbox.profiles import Profile
from flywheel.sandbox.programs import Programs
from flywheel.sandbox.server_reading import values_of

log = logging.getLogger(__name__)
_ASK_S = 0.05  # between two questions whether it has started
_ANSWER_S = 2.0  # for such a question
_WATCH_S = 2.0  # between looks at its memory
_PYTHON = os.path.realpath(sys.executable)  # as it is without our environment
_RELAY = Path(relay.__file__)
_EPOCH = 1767258000  # 2026-01-01 09:00 UTC, as in scripts/document/clock.js
_MOST_ANSWERED = 10_000_000  # bytes
_LONGEST_DOOR = 100  # characters that the name of a socket file may have


class Backend:
    """One server. `port` and `origin` are known from the beginning; `start` returns once it answers.

    programs: where its command is. Everything is freed by `stop`, which returns at once, and `gone`.
    """

    def __init__(self, manifest: PageManifest, variant: str, seed: int, programs: Programs) -> None:
        self._manifest, self._said, self._programs = manifest, manifest.server, programs
        self._listener: socket.socket | None = free_port()
        self.port = self._listener.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.seconds = 0.0  # that the start took
        self.limit_s = 1.5 * self._said.start_s  # of the start, its cleaning up included
        self._child: Child | None = None
        self._guard: guarded.Guard | None = None
        self._relay: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()  # connections that are handed on
        self._watch: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._why = ""  # it was ended by us
        self._mark = f"FLYWHEEL_SERVER={secrets.token_hex(8)}"
        self._profile = Profile("server")
        self.folder = self._profile.path / "files"
        self._names = {"port": str(self.port), "seed": str(seed), "variant": variant, "folder": str(self.folder)}
        self.seed, self.variant = seed, variant

    # -- its life -------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Raises EnvError, with what the server said last, where it does not come up within `start_s`."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._said.start_s):
                await self._prepare()
                await self._launch()
                await self._answers()
        except TimeoutError:
            raise EnvTimeout(
                f"the page's server did not answer {self._said.ready} within {self._said.start_s:g} s: {self._words}",
                where=self._where,
                fix="see server.ready, or raise server.start_s",
            ) from None
        except OSError as error:
            raise EnvError(f"the page's server could not be started: {error}", where=self._where) from None
        self.seconds = time.monotonic() - began
        self._watch = asyncio.create_task(self._watch_memory())

    def stop(self) -> None:
        """End it now; may be called twice. What is left of it is removed soon: `gone` waits for that."""
        if self._leaving is None:
            self._end()
            self._leaving = asyncio.create_task(self._leave())

    async def gone(self) -> None:
        """Returns once nothing is left of it."""
        self.stop()
        await asyncio.wait([self._leaving])

    @property
    def over(self) -> bool:
        return self._leaving is not None and self._leaving.done()

    # -- what it is asked -----------------------------------------------------------------------------------------
    async def read(self) -> dict[str, Any]:
        """Value of every field that is read outside of the page. Raises EnvError naming the field, or where the server
        has ended."""
        if self.fault:
            raise EnvError(self.fault, where=self._where)
        return await values_of(self._manifest, self)

    @property
    def fault(self) -> str:
        """Why the server is gone, with its last words; "" while it runs."""
        if self._child is None or not (self._why or self._child.code is not None):
            return ""
        why = self._why or f"it ended by itself with status {self._child.code}"
        return f"the page's server is gone: {why}: {self._words}"

    async def output(self, command: Sequence[str]) -> tuple[int, str]:
        """Status and output of a command that sees the session's folder and cannot change it."""
        # What the policy may have put into the folder, or into the server's home, is no part of the command.
        safe = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "HOME": "/nonexistent", "TMPDIR": "/tmp"}
        return await self._run(command, {**self._environment, **safe}, ())

    async def answer(self, address: str) -> tuple[int, bytes]:
        """Status and body of an address of the server."""
        login = self._manifest.login
        headers, cookies = (login.headers, login.cookies) if login else ({}, {})
        limits = httpx.Timeout(self._said.read_s)
        async with (
            httpx.AsyncClient(trust_env=False, headers=headers, cookies=cookies, timeout=limits) as client,
            client.stream("GET", self.origin + self.fill(address)) as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > _MOST_ANSWERED:
                    raise EnvError(f"{address} answers more than {_MOST_ANSWERED} bytes", where=self._where)
            return answer.status_code, body

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """A text with the values of what stands in it in braces."""
        for name, value in {**self._names, **(more or {})}.items():
            text = text.replace(f"{{{name}}}", value)
        return text

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
            await asyncio.to_thread(_copy, template, self.folder)
        for name in ("home", "tmp", "door"):
            (root / name).mkdir()
        for command in self._said.setup:
            status, said = await self._run(command, self._environment, self._own)
            if status:
                words = " ".join(said.split())[-400:] or "it said nothing"
                raise EnvError(
                    f"server.setup: {' '.join(command)[:100]} ended with status {status}: {words}", where=self._where
                )

    @property
    def _own(self) -> list[Path]:
        return [self._profile.path / name for name in ("files", "home", "tmp", "door")]

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], writable: Sequence[Path]
    ) -> tuple[int, str]:
        here = self._manifest.path.parent
        words = [self.fill(word, {"manifest": str(here)}) for word in command]
        program = self._programs.find(words[0])
        if not isolation.missing():
            readable = [here, *self._programs.needs(program), *map(Path, self._said.reads)]
            readable += () if writable else (self.folder,)
            words = isolation.confined([str(program), *words[1:]], self.folder, writable, readable)
        else:
            words[0] = str(program)
        child = Child(words, self.folder, environment, self._said.memory_mb)
        try:
            return await child.done(), child.said
        finally:
            await child.gone()

    async def _launch(self) -> None:
        words = [self.fill(word) for word in self._said.command]
        program = self._programs.find(words[0])
        words[0] = str(program)
        if isolation.missing():
            self._listener.close()  # the server takes its port
        else:
            words = await self._behind_a_door(words, program)
        self._child = Child(words, self.folder, self._environment, self._said.memory_mb)
        # Under bubblewrap its processes cannot leave it; elsewhere they are known by their environment.
        self._guard = guarded.Guard(self._child.pid, self._profile.path, self._mark if isolation.missing() else "")

    async def _behind_a_door(self, words: list[str], program: Path) -> list[str]:
        door = str(self._profile.path / "door" / "socket")
        if len(door) > _LONGEST_DOOR:
            raise EnvError("the folder for temporary files has too long a name", where=door, fix="set another TMPDIR")
        self._relay = await asyncio.start_server(partial(self._join, door), sock=self._listener)
        self._listener = None
        readable = [_RELAY, *self._programs.needs(program), *map(Path, self._said.reads)]
        inside = [_PYTHON, "-I", "-S", str(_RELAY), door, str(self.port), *words]
        return isolation.confined(inside, self.folder, self._own, readable)

    def _join(self, door: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined = asyncio.create_task(relay.hand_on(partial(asyncio.open_unix_connection, door), reader, writer))
        self._joined.add(joined)
        joined.add_done_callback(self._joined.discard)

    async def _answers(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S) as client:
            while True:
                if self._child.code is not None:
                    await self._child.done()
                    raise EnvError(
                        f"the page's server ended with status {self._child.code} before it answered: {self._words}",
                        where=self._where,
                        fix="try server.command by hand",
                    )
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(self.origin + self.fill(self._said.ready))
                    if answer.status_code < 500:
                        return
                await asyncio.sleep(_ASK_S)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            most = self._said.memory_mb
            family = await asyncio.to_thread(memory.measure, [self._child.pid], one_mb=most, all_mb=most)
            taken = sum(process.mb for process in family.get(self._child.pid, ()))
            if taken > self._said.memory_mb:
                self._why = f"it took {taken:.0f} MB, above server.memory_mb: {self._said.memory_mb}"
                self._end()
                return

    def _end(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        if isolation.missing():
            guarded.kill_marked(self._mark)

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
            if isolation.missing():
                await guarded.marked_gone(self._mark)
        if self._guard is not None:
            await self._guard.release()
        await asyncio.to_thread(self._profile.remove)

    @property
    def _words(self) -> str:
        return self._child.last_words if self._child is not None else "it had not begun"

    @property
    def _where(self) -> str:
        return f"{self._manifest.path.name}: server"


def _copy(template: Path, folder: Path) -> None:
    """With one date for all files, since a page may show it: the one that page time begins with."""
    shutil.copytree(template, folder, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_EPOCH, _EPOCH), follow_symlinks=False)
