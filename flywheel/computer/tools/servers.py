"""The servers of one task: what they offer is told, and what the agent calls is done and told."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import mcp_types

from flywheel.agent.actions import ToolCall
from flywheel.agent.steps import cut_middle
from flywheel.computer.machine import Machine
from flywheel.computer.settings import TerminalSettings
from flywheel.computer.tools.http import http
from flywheel.computer.tools.named import ToolServer
from flywheel.computer.tools.session import Connect, Fault, Session
from flywheel.computer.tools.stdio import stdio
from flywheel.computer.tools.told import Listed, in_full, listed, result_text, told

_PAGES = 20  # of a list of tools
_TOOLS = 1000  # of a server that are listed
T = TypeVar("T")


class Tools:
    """Made by `Tools.start`."""

    def __init__(self, machine: Machine, given: Mapping[str, ToolServer], chosen: TerminalSettings) -> None:
        self._chosen = chosen
        self._servers = {name: _Server(name, _connect(machine, one), chosen) for name, one in given.items()}

    @classmethod
    async def start(cls, machine: Machine, given: Mapping[str, ToolServer], chosen: TerminalSettings) -> Tools:
        """All of them asked what they offer; one that does not answer says so in `told`. Raises EnvError where the
        machine is gone."""
        made = cls(machine, given, chosen)
        try:
            await asyncio.gather(*(server.list() for server in made._servers.values()))
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def told(self) -> str:
        """The tools, and what is wrong with servers, for the agent to read."""
        faults = [server.fault for server in self._servers.values() if server.fault]
        tools = (tool for server in self._servers.values() for tool in server.tools.values())
        return "\n".join(["Tools:", *faults, told(tools, self._chosen.tools_characters)])

    async def call(self, action: ToolCall) -> str:
        """A tool's result, or in a line why there is none; for a server's name alone, all that it says of its tools.
        Raises EnvError where the machine is gone."""
        name, _, tool = action.tool.strip().partition(".")
        server = self._servers.get(name)
        try:
            if server is None:
                raise Fault(f"there is no server {name[:40]!r}: {', '.join(self._servers)}")
            said = await (server.call(tool, json.loads(action.arguments)) if tool else server.in_full())
        except Fault as fault:
            said = f"error: {fault}"
        return cut_middle(said, self._chosen.result_bytes) or "[nothing]"

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _Server:
    """tools: those listed last, by their own names. fault: why they could not be listed."""

    def __init__(self, name: str, connect: Connect, chosen: TerminalSettings) -> None:
        self.name, self._connect, self._chosen = name, connect, chosen
        self.tools: dict[str, Listed] = {}
        self.fault = ""
        self._session: Session | None = None

    async def list(self) -> None:
        """Raises EnvError where the machine is gone."""
        try:
            await self._within(self._listed())
            self.fault = ""
        except Fault as fault:
            self.tools, self.fault = {}, str(fault)

    async def in_full(self) -> str:
        """All that it says of its tools. Raises Fault, EnvError."""
        tools = await self._within(self._listed())
        self.fault = ""
        return "\n".join(in_full(self.name, tool) for tool in tools)

    async def call(self, tool: str, arguments: dict) -> str:
        """Raises Fault, EnvError."""
        return await self._within(self._call(tool, arguments))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _within(self, asked: Coroutine[Any, Any, T]) -> T:
        """In time, or the server is ended: whatever it does still, nobody waits for."""
        about, task = "", asyncio.ensure_future(asked)
        try:
            if (await asyncio.wait({task}, timeout=self._chosen.run_s))[0]:
                return task.result()
            if self._session is not None and self._session.line.about:
                about = f" ({self._session.line.about})"
        except Fault as fault:
            raise Fault(f"{self.name}: {fault}") from None
        finally:
            if not task.done():
                await self.close()  # first: the SDK would wait for seconds to tell the server that nobody waits
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        late = f"{self.name} did not answer in {self._chosen.run_s:g} s{about}"
        raise Fault(f"{late}: it was ended, and begins anew when it is called")

    async def _call(self, tool: str, arguments: dict) -> str:
        before = set(self.tools)
        if self._open().changed or tool not in self.tools:
            await self._listed()
        if tool not in self.tools:
            known = ", ".join(self.tools)[: self._chosen.tools_characters] or "none"
            raise Fault(f"no tool {tool[:80]!r}; there are: {known}")
        asked = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))
        # Not the SDK's `call_tool`: it holds results against a schema, which as the server's may take for ever.
        said = result_text(await self._open().ask(asked, mcp_types.CallToolResult))
        changed = "" if before == set(self.tools) else f"\n[the tools of {self.name} have changed]"
        return said + changed

    async def _listed(self) -> list[mcp_types.Tool]:
        session = self._open()
        session.changed = False
        found: list[mcp_types.Tool] = []
        cursor = None
        for _ in range(_PAGES):
            params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await session.ask(mcp_types.ListToolsRequest(params=params), mcp_types.ListToolsResult)
            found += page.tools[: _TOOLS - len(found)]
            cursor = page.next_cursor
            if not cursor or len(found) >= _TOOLS:
                break
        self.tools = {tool.name: one for tool in found if (one := listed(self.name, tool)) is not None}
        return found

    def _open(self) -> Session:
        """The session that goes on, or a new one."""
        if self._session is None or self._session.over:
            self._session = Session(self._connect, self._chosen.tools_idle_s)
        return self._session


def _connect(machine: Machine, server: ToolServer) -> Connect:
    return (
        functools.partial(http, machine, server.url) if server.url else functools.partial(stdio, machine, server.words)
    )
