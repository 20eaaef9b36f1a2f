"""Offer the tools of a task's MCP servers to the agent: list them, call them, describe results and faults as text.

A server is any program in the machine: its answers are limited, and its faults become text for the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import httpcore2
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, ValidationError

from flywheel.agent.actions import ToolCall
from flywheel.agent.history import truncate_middle
from flywheel.envs.computer.machine import Machine, MachineRefused, TerminalSettings
from flywheel.envs.computer.task_spec import ToolServer
from flywheel.utils.errors import EnvError

_TOOL_NAME = re.compile(r"[!-~]{1,128}")
_TYPE_NAME = re.compile(r"[a-z]{1,16}")
_MAX_DESCRIPTION = 200  # characters of a tool's description in its line
_MAX_ARGUMENTS = 300  # of its arguments in that line


def describe_tool(server: str, tool: mcp_types.Tool) -> tuple[str, str]:
    """Describe a tool for the agent; returns (short, long): `server.tool(arguments)`, and that with its description.

    server: name of its server. tool: as MCP's SDK lists it.
    """
    short = f"{server}.{tool.name}({_format_arguments(tool.input_schema)})"
    about = _one_line(tool.description or tool.title or "", _MAX_DESCRIPTION)
    return short, short + (f": {about}" if about else "")


def format_tool_list(tools: Iterable[tuple[str, str]], limit: int) -> str:
    """Format tools, a line each, in at most `limit` characters.

    tools: as `describe_tool` returns them. Where they do not fit, descriptions are left out, then the last tools.
    """
    tools = list(tools)
    text = "\n".join(line for _, line in tools)
    if len(text) <= limit:
        return text
    left = limit - 60  # for the line that says what is left out
    kept: list[str] = []
    for short, _ in tools:
        left -= len(short) + 1
        if left < 0:
            break
        kept.append(short)
    more = f"{len(tools) - len(kept)} more; " if len(kept) < len(tools) else ""
    return "\n".join([*kept, f"[{more}call a server's name to read of all its tools]"])


def format_tool_result(result: mcp_types.CallToolResult) -> str:
    """Format a tool's result as text for the agent; each image, sound or other resource becomes a line about it."""
    parts = [_format_content(one) for one in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return f"error: {text}" if result.is_error else text


def _format_content(one: Any) -> str:
    match one:
        case mcp_types.TextContent():
            return one.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            what = "an image" if isinstance(one, mcp_types.ImageContent) else "a sound"
            return f"[{what}, {_one_line(one.mime_type, 40)}, {len(one.data.rstrip('=')) * 3 // 4} bytes]"
        case mcp_types.ResourceLink():
            return f"[a resource: {_one_line(str(one.uri), 200)}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[a resource: {_one_line(str(resource.uri), 200)}]"
    return f"[{type(one).__name__}]"


def _format_arguments(schema: dict[str, Any]) -> str:
    """Format a tool's input schema as `query: string, limit?: integer`."""
    takes, needs = schema.get("properties"), schema.get("required")
    if not isinstance(takes, dict):
        return ""
    needs = needs if isinstance(needs, list) else []
    described = (f"{name}{'' if name in needs else '?'}: {_argument_type(one)}" for name, one in takes.items())
    return _one_line(", ".join(described), _MAX_ARGUMENTS)


def _argument_type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) and _TYPE_NAME.fullmatch(kind) else "any"


def _one_line(text: str, limit: int) -> str:
    """Put a text into one line of printable characters, cut to `limit` characters."""
    text = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * limit]).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


MAX_ANSWER_BYTES = 4 * 2**20  # of all messages that answer one request
MAX_ANSWER_MESSAGES = 1000
MAX_ANSWER_VALUES = 200_000  # JSON values, counted by the signs between them: to parse a million takes seconds
_VALUE_SIGNS = (b",", b"[", b"{")
_MAX_NOISE_CHARACTERS = 80  # of output that is no message, in an error


class AnswerTooLarge(Exception):
    """Signal that a server's answer is over a limit, or compressed, so that its size cannot be limited."""


class McpConnection:
    """Count what an MCP server sends in answer to a request, and end the connection above a limit.

    over: an event, set once the connection has ended or must end. fault: what the server did wrong; "" for nothing.
    """

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.fault = ""
        self._noise = ""
        self.refill()

    def refill(self) -> None:
        """Begin to count anew, before each request."""
        self._bytes, self._messages, self._values = MAX_ANSWER_BYTES, MAX_ANSWER_MESSAGES, MAX_ANSWER_VALUES

    def take(self, data: bytes) -> None:
        """Count bytes from the server. Raises AnswerTooLarge, and ends the connection, above a limit."""
        self._bytes -= len(data)
        self._values -= sum(map(data.count, _VALUE_SIGNS))
        if self._bytes < 0:
            self.blame(f"it says more than {MAX_ANSWER_BYTES} bytes at once")
        if self._values < 0:
            self.blame(f"it says more than {MAX_ANSWER_VALUES} values at once")

    def message(self) -> None:
        """Count a message from the server. Raises AnswerTooLarge, and ends the connection, above the limit."""
        self._messages -= 1
        if self._messages < 0:
            self.blame(f"it says more than {MAX_ANSWER_MESSAGES} messages at once")

    def blame(self, why: str) -> None:
        """End the connection because of `why`, a fault of the server. Always raises AnswerTooLarge."""
        self.fault = self.fault or why
        self.over.set()
        raise AnswerTooLarge(why)

    def noise(self, said: bytes) -> None:
        """Record output of the server that is no MCP message, to explain a missing answer. said: the bytes."""
        text = said[: 4 * _MAX_NOISE_CHARACTERS].decode("utf-8", "replace")
        self._noise = " ".join(text.split())[:_MAX_NOISE_CHARACTERS]

    @property
    def about(self) -> str:
        """Return what may explain a missing answer: the server's fault, or its other output; "" for nothing."""
        return self.fault or (f"it says what is not MCP: {self._noise!r}" if self._noise else "")


_MAX_CONNECTIONS = 4


@contextlib.asynccontextmanager
async def open_http_transport(machine: Machine, url: str, line: McpConnection) -> AsyncIterator[tuple[Any, Any]]:
    """Open an MCP transport over HTTP to a server in the machine, until the block ends; yields its two streams.

    url: of the server, at a port of the machine; its host is ignored. line: counts what the server sends. There are no
    timeouts. MachineRefused (nobody listens), EnvError, OSError and faults of the server come as exception groups, from
    any use.
    """
    async with (
        httpx2.AsyncClient(
            transport=_MachineTransport(machine, line),
            timeout=None,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
    ):
        yield streams


class _MachineTransport(httpx2.AsyncBaseTransport):
    """Send HTTP requests over connections into the machine."""

    def __init__(self, machine: Machine, line: McpConnection) -> None:
        self._line = line
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=_MAX_CONNECTIONS, network_backend=_MachineNetwork(machine, line)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "Last-Event-ID" not in request.headers:
            # This would be the stream of the server's own messages, which the SDK opens again each time that it closes.
            return httpx2.Response(405)
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                request.method, target, headers=request.headers.raw, content=request.stream,
                extensions=request.extensions,
            )
        )  # fmt: skip
        response = httpx2.Response(answer.status, headers=answer.headers, stream=_ResponseStream(answer))
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await answer.aclose()
            self._line.blame("it packs its answer, which was not asked for")  # and may unpack to any size
        return response

    async def aclose(self) -> None:
        await self._pool.aclose()


class _ResponseStream(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


class _MachineNetwork(httpcore2.AsyncNetworkBackend):
    """Open connections to ports of the machine, whatever host a URL names."""

    def __init__(self, machine: Machine, line: McpConnection) -> None:
        self._machine, self._line = machine, line

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> _MachineStream:
        self._line.message()
        return _MachineStream(*await self._machine.stream("/port", {"port": port}), self._line)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _MachineStream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: McpConnection) -> None:
        self._reader, self._writer, self._line = reader, writer, line

    async def read(self, max_bytes: int, *_: Any, **__: Any) -> bytes:
        data = await self._reader.read(max_bytes)
        self._line.take(data)
        return data

    async def write(self, buffer: bytes, *_: Any, **__: Any) -> None:
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.transport.abort()  # as in `open_stdio_transport`

    def get_extra_info(self, info: str) -> Any:
        return self._reader.at_eof() if info == "is_readable" else None


_CHUNK = 2**16
ReceivedMessages = MemoryObjectReceiveStream[SessionMessage | Exception]
SentMessages = MemoryObjectSendStream[SessionMessage]


@contextlib.asynccontextmanager
async def open_stdio_transport(
    machine: Machine, words: Sequence[str], line: McpConnection
) -> AsyncIterator[tuple[ReceivedMessages, SentMessages]]:
    """Start an MCP server in the machine and open a transport over its standard input and output, until the block ends.

    Yields two streams: of its messages, and of those to it. words: its command. line: counts what it sends. Raises
    MachineRefused where it does not start, EnvError and OSError where the machine is gone, EnvTimeout where that does
    not answer.
    """
    reader, writer = await machine.stream("/program", {"command": list(words)})
    incoming, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_messages, reader, incoming, line)
            tasks.start_soon(_write_messages, outgoing, writer, line)
            yield heard, said
            tasks.cancel_scope.cancel()
    finally:
        for stream in (incoming, heard, said, outgoing):
            stream.close()
        writer.transport.abort()  # close() would wait until the server has read data that it may never read


async def _read_messages(reader: asyncio.StreamReader, incoming: MemoryObjectSendStream, line: McpConnection) -> None:
    with incoming, contextlib.suppress(AnswerTooLarge, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for text in _split_lines(reader, line):
            line.message()
            try:
                message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
            except ValueError:  # many programs print other things too
                line.noise(text)
                continue
            await incoming.send(SessionMessage(message))
    line.over.set()


async def _split_lines(reader: asyncio.StreamReader, line: McpConnection) -> AsyncIterator[bytes]:
    rest = bytearray()
    while data := await reader.read(_CHUNK):
        line.take(data)
        rest += data
        if b"\n" in data:
            *whole, rest = rest.split(b"\n")
            for text in whole:
                if text.strip():
                    yield bytes(text)
    if rest:
        line.noise(bytes(rest))


async def _write_messages(
    outgoing: MemoryObjectReceiveStream, writer: asyncio.StreamWriter, line: McpConnection
) -> None:
    with outgoing, contextlib.suppress(OSError):
        async for said in outgoing:
            text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(text.encode("utf-8", "replace") + b"\n")
            await writer.drain()
    line.over.set()


OpenTransport = Callable[[McpConnection], AbstractAsyncContextManager[tuple[Any, Any]]]
ResultT = TypeVar("ResultT", bound=BaseModel)
_END_S = 1.0  # for a session to end by itself
_CLIENT_INFO = mcp_types.Implementation(name="flywheel", version="1")
_MAX_FAULT_CHARACTERS = 300  # of a server's error message
# The SDK's code and message of a closed connection; servers use the code with other messages.
_CONNECTION_CLOSED = (mcp_types.CONNECTION_CLOSED, "Connection closed")

for _name in ("mcp", "client"):  # a server's errors go to the agent, not with a traceback into our log
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class McpFault(Exception):
    """Signal a fault of an MCP server, or of a call to it; the message is a line for the agent."""


class McpSession:
    """Run one session with an MCP server, in an asyncio task of its own.

    One task must both enter and leave the SDK's contexts. connect: opens the transport. idle_s: seconds without a
    request after which the session ends. line: its connection. changed: whether the server has announced that its list
    of tools has changed.
    """

    def __init__(self, connect: OpenTransport, idle_s: float) -> None:
        self.line, self.changed = McpConnection(), False
        self._idle_s, self._asked, self._busy = idle_s, 0.0, 0
        self._begun = asyncio.Event()
        self._session: ClientSession | None = None
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._live(connect))

    @property
    def over(self) -> bool:
        """Tell whether the session has ended."""
        return self._begun.is_set() and (self._session is None or self.line.over.is_set())

    async def ask(self, request: mcp_types.Request[Any, Any], kind: type[ResultT]) -> ResultT:
        """Send a request and return its result, of the class `kind`; there is no timeout.

        Raises McpFault for a fault of the server, EnvError where the machine is gone.
        """
        await self._begun.wait()
        self._busy += 1
        try:
            if self._session is None:
                raise self._why()
            self.line.refill()
            return await self._session.send_request(request, kind)
        except ValidationError:
            raise McpFault("its answer is not one of MCP") from None
        except MCPError as error:
            if not _is_closed(error):
                raise McpFault(_shorten(error.error.message)) from None
            self.line.over.set()
            await asyncio.wait({self._task})
            raise self._why() from None
        finally:
            self._busy -= 1
            self._asked = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End the session; one whose server does not let it end in time is abandoned."""
        self.line.over.set()
        if not self._begun.is_set():
            self._task.cancel()
        for _ in range(2):
            done, _pending = await asyncio.wait({self._task}, timeout=_END_S)
            if done:
                return
            self._task.cancel()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _live(self, connect: OpenTransport) -> None:
        try:
            async with (
                connect(self.line) as (heard, said),
                ClientSession(heard, said, message_handler=self._hear, client_info=_CLIENT_INFO) as session,
            ):
                await session.initialize()
                self._session, self._asked = session, asyncio.get_running_loop().time()
                self._begun.set()
                await self._rest()
                self._session = None
        except Exception as error:  # of any kind: it is caused by the server, which may be any program
            self._failure = error
        finally:
            self._session = None
            self._begun.set()

    async def _rest(self) -> None:
        """Wait until the connection is over, or no request has come for `idle_s` seconds."""
        time = asyncio.get_running_loop().time
        while not self.line.over.is_set():
            left = self._idle_s if self._busy else self._asked + self._idle_s - time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.line.over.wait()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.changed = True

    def _why(self) -> Exception:
        """Return the exception that says why the session is over."""
        error = self._failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, EnvError) and not isinstance(error, MachineRefused):
            return error
        if self.line.about or error is None:
            return McpFault(self.line.about or "it has ended")
        if isinstance(error, MCPError):
            return McpFault("it has ended" if _is_closed(error) else _shorten(error.error.message))
        if isinstance(error, ValidationError):
            return McpFault("its answer is not one of MCP")
        return McpFault(_shorten(error.what if isinstance(error, EnvError) else str(error) or type(error).__name__))


def _is_closed(error: MCPError) -> bool:
    return (error.error.code, error.error.message) == _CONNECTION_CLOSED


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_FAULT_CHARACTERS else f"{text[:_MAX_FAULT_CHARACTERS]}..."


_MAX_PAGES = 20  # of a list of tools
_MAX_TOOLS = 1000  # of a server that are listed
T = TypeVar("T")


class McpTools:
    """Hold the MCP servers of one task, and call their tools; made by `McpTools.start`.

    given: how each is reached, by name. chosen: timeouts and the sizes of texts.
    """

    def __init__(self, machine: Machine, given: Mapping[str, ToolServer], chosen: TerminalSettings) -> None:
        self._chosen = chosen
        self._servers = {}
        for name, one in given.items():
            way, where = (open_http_transport, one.url) if one.url else (open_stdio_transport, one.words)
            self._servers[name] = _McpServer(name, functools.partial(way, machine, where), chosen)

    @classmethod
    async def start(cls, machine: Machine, given: Mapping[str, ToolServer], chosen: TerminalSettings) -> McpTools:
        """Start the servers and list their tools; `told` names those that do not answer.

        Raises EnvError where the machine is gone.
        """
        made = cls(machine, given, chosen)
        try:
            await asyncio.gather(*(server.list() for server in made._servers.values()))
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def told(self) -> str:
        """Return the text that each observation tells of the tools: a line for each, and the faults of servers."""
        faults = [server.fault for server in self._servers.values() if server.fault]
        tools = (tool for server in self._servers.values() for tool in server.tools.values())
        return "\n".join(["Tools:", *faults, format_tool_list(tools, self._chosen.tools_characters)])

    async def call(self, action: ToolCall) -> str:
        """Call a tool and return its result, or why there is none, as text for the agent.

        action: its `tool` is `server.tool`; a server's name alone returns a description of all its tools. Raises
        EnvError where the machine is gone.
        """
        name, _, tool = action.tool.strip().partition(".")
        server = self._servers.get(name)
        try:
            if server is None:
                raise McpFault(f"there is no server {name[:40]!r}: {', '.join(self._servers)}")
            text = await (server.call(tool, json.loads(action.arguments)) if tool else server.describe_tools())
        except McpFault as fault:
            text = f"error: {fault}"
        return truncate_middle(text, self._chosen.result_bytes) or "[nothing]"

    async def close(self) -> None:
        """End the sessions with all servers."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _McpServer:
    """Hold one server and its session.

    tools: name -> lines of `describe_tool`, as last listed. fault: why they could not be listed; "" where they could.
    """

    def __init__(self, name: str, connect: OpenTransport, chosen: TerminalSettings) -> None:
        self.name, self._connect, self._chosen = name, connect, chosen
        self.tools: dict[str, tuple[str, str]] = {}
        self.fault = ""
        self._session: McpSession | None = None

    async def list(self) -> None:
        """List the server's tools, or set `fault`. Raises EnvError where the machine is gone."""
        try:
            await self._run_with_timeout(self._listed())
            self.fault = ""
        except McpFault as fault:
            self.tools, self.fault = {}, str(fault)

    async def describe_tools(self) -> str:
        """Return full descriptions and argument schemas of all tools. Raises McpFault, EnvError."""
        tools = await self._run_with_timeout(self._listed())
        self.fault = ""
        return "\n".join(
            f"{self.name}.{tool.name}: {tool.description or ''}\narguments: {json.dumps(tool.input_schema)}"
            for tool in tools
        )

    async def call(self, tool: str, arguments: dict) -> str:
        """Call a tool and return its result as text. Raises McpFault, EnvError."""
        return await self._run_with_timeout(self._call(tool, arguments))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _run_with_timeout(self, asked: Coroutine[Any, Any, T]) -> T:
        """Wait for `asked` for `run_s` seconds at most; after that close the session and raise McpFault."""
        about, task = "", asyncio.ensure_future(asked)
        try:
            if (await asyncio.wait({task}, timeout=self._chosen.run_s))[0]:
                return task.result()
            if self._session is not None and self._session.line.about:
                about = f" ({self._session.line.about})"
        except McpFault as fault:
            raise McpFault(f"{self.name}: {fault}") from None
        finally:
            if not task.done():
                await self.close()  # before the task is cancelled: the SDK would wait for seconds to notify the server
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        late = f"{self.name} did not answer in {self._chosen.run_s:g} s{about}"
        raise McpFault(f"{late}: it was ended, and begins anew when it is called")

    async def _call(self, tool: str, arguments: dict) -> str:
        before = set(self.tools)
        if self._open().changed or tool not in self.tools:
            await self._listed()
        if tool not in self.tools:
            known = ", ".join(self.tools)[: self._chosen.tools_characters] or "none"
            raise McpFault(f"no tool {tool[:80]!r}; there are: {known}")
        asked = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))
        # Not the SDK's `call_tool`: it validates results against the server's schema, which may take for ever.
        said = format_tool_result(await self._open().ask(asked, mcp_types.CallToolResult))
        changed = "" if before == set(self.tools) else f"\n[the tools of {self.name} have changed]"
        return said + changed

    async def _listed(self) -> list[mcp_types.Tool]:
        session = self._open()
        session.changed = False
        found: list[mcp_types.Tool] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await session.ask(mcp_types.ListToolsRequest(params=params), mcp_types.ListToolsResult)
            found += page.tools[: _MAX_TOOLS - len(found)]
            cursor = page.next_cursor
            if not cursor or len(found) >= _MAX_TOOLS:
                break
        # Only tools with a name that an action can write.
        self.tools = {tool.name: describe_tool(self.name, tool) for tool in found if _TOOL_NAME.fullmatch(tool.name)}
        return found

    def _open(self) -> McpSession:
        """Return the current session, or a new one where there is none or it is over."""
        if self._session is None or self._session.over:
            self._session = McpSession(self._connect, self._chosen.tools_idle_s)
        return self._session
