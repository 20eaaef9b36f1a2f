"""Run SQL that a user of the explorer typed, in worker processes (`sql_worker.py`) within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.config.workspace import Workspace
from flywheel.ui.explorer.sql_worker import SqlLimits
from flywheel.utils import errors
from flywheel.utils.errors import FlywheelError, QueryTimeout

MAX_SQL_WORKERS = 2
_QUEUE_TIMEOUT_S = 20.0  # wait for a free worker
_START_TIMEOUT_S = 60.0
_GRACE_S = 2.0  # time for an interrupted query to end before its worker is killed


@dataclass(frozen=True)
class SqlResult:
    """Hold the result of a query. data: the rows in the requested format.

    told: facts by name: `columns` (name and type), `rows` (their number), `cut` (whether rows were left out), `plan`
    (whether they are an EXPLAIN's plan), `seconds`, `bytes` of data.
    """

    told: dict[str, Any]
    data: bytes


class SqlWorkerPool:
    """Run at most MAX_SQL_WORKERS worker processes; one that exceeds its limits is killed and replaced."""

    def __init__(self, ws: Workspace, limits: SqlLimits | None = None) -> None:
        self._ws, self._limits = ws, limits or SqlLimits()
        self._free: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()
        self._ready: set[asyncio.subprocess.Process] = set()  # those that have opened the catalogue
        self._places = asyncio.Semaphore(MAX_SQL_WORKERS)

    async def ask(self, sql: str, form: str = "json") -> SqlResult:
        """Run the query `sql` in a worker. form: of the result: json, csv or parquet.

        Raises BadInput for SQL that is no query or exceeds the limits, DataError for a damaged or lost file,
        QueryTimeout after the limit's seconds, or where no worker is free within 20 s, FlywheelError where the worker
        dies.
        """
        try:
            async with asyncio.timeout(_QUEUE_TIMEOUT_S):
                await self._places.acquire()
        except TimeoutError:
            raise QueryTimeout(f"others' queries were at work for {_QUEUE_TIMEOUT_S:g} s", fix="ask again") from None
        try:
            return await self._answered(sql, form)
        finally:
            self._places.release()

    async def prepare(self) -> None:
        """Start a worker ahead of the first query, if there is none."""
        if not self._all:
            self._free.append(await self._begin())

    async def aclose(self) -> None:
        """Kill the workers, with the queries that they run."""
        for process in list(self._all):
            await self._end(process)

    async def _answered(self, sql: str, form: str) -> SqlResult:
        process = self._free.pop() if self._free else await self._begin()
        well = False
        try:
            if process not in self._ready:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    await process.stdout.readline()
                self._ready.add(process)
            async with asyncio.timeout(self._limits.seconds + _GRACE_S):
                process.stdin.write(json.dumps({"sql": sql, "form": form}).encode() + b"\n")
                await process.stdin.drain()
                facts = json.loads(await process.stdout.readline() or b"null")
                data = await process.stdout.readexactly(facts["bytes"]) if facts else b""
            well = facts is not None
        except TimeoutError:
            raise QueryTimeout(
                f"the query took longer than the {self._limits.seconds:g} s that one may take, and was ended"
            ) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            facts = None
        finally:
            if well and process.returncode is None:
                self._free.append(process)
            else:
                await self._end(process)
        if facts is None:
            raise FlywheelError("the query ended the process that answered it: it took too much", fix="ask for less")
        if "error" in facts:
            raise getattr(errors, facts["kind"], FlywheelError)(facts["error"])
        return SqlResult(facts, data)

    async def _begin(self) -> asyncio.subprocess.Process:
        module, limits = "flywheel.ui.explorer.sql_worker", json.dumps(asdict(self._limits))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, str(self._ws.root), limits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**20,
        )
        self._all.add(process)
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._all.discard(process)
        self._ready.discard(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
