"""MCP tools in machines: two servers that ship, one by the SDK, over both transports; what is told of them."""

from __future__ import annotations

import asyncio

import computers
import pytest
import tool_servers
from computers import small_world  # noqa: F401
from tool_servers import called
from waiting import until

from flywheel.agent.actions import Terminal, ToolCall
from flywheel.envs.computer import computer, desktop
from flywheel.envs.computer.task_spec import ComputerTaskSpec
from flywheel.envs.registry import open_environments
from flywheel.utils.errors import EnvError

pytestmark = computers.needed
_BASE = "python3 -c \"import sqlite3; c = sqlite3.connect('a.db'); c.executescript(open('a.sql').read())\""
ROWS = "CREATE TABLE t (n INTEGER, word TEXT); INSERT INTO t VALUES (1, 'one'), (2, NULL);"


@pytest.fixture
def with_sdk(monkeypatch):
    """Machines that see the SDK."""
    monkeypatch.setattr(computer, "TOOL_READABLE_FOLDERS", (*computer.TOOL_READABLE_FOLDERS, tool_servers.SITE))


# -- what ships --------------------------------------------------------------------------------------------------------
async def test_the_encyclopaedia_is_searched_and_read():
    async with computers.terminal(tools={"search": {"shipped": ["search"]}}) as on:
        assert "search.find(query: string, limit?: integer): Search" in on.text
        assert (await called(on, "search.find", query="the capital of Norway", limit=1)).startswith("Norway: ")
        assert "Capital: Oslo" in await called(on, "search.read", title="norway")
        assert await called(on, "search.find", query="qqqq") == "nothing was found"
        assert await called(on, "search.read", title="X") == "error: no article is called X: search for it"
        assert await called(on, "search.find", query="x", limit="y") == "error: limit is not of the type integer"


async def test_databases_are_asked_and_not_changed():
    given = {"files": {"a.sql": ROWS}, "setup": [_BASE], "tools": {"sql": {"shipped": ["sql"]}}}
    async with computers.terminal(**given) as on:
        before = on.machine.home.read("a.db", 2**20)
        assert await called(on, "sql.tables", database="a.db") == "CREATE TABLE t (n INTEGER, word TEXT)"
        assert await called(on, "sql.query", database="a.db", sql="SELECT * FROM t") == "n | word\n1 | one\n2 | "
        for sql, why in (
            ("DELETE FROM t", "readonly"),
            ("ATTACH 'b.db' AS b", "authoriz"),
            ("VACUUM INTO 'b.db'", "authoriz"),
            ("SELECT", "incomplete input"),
            ("SELECT 1; SELECT 2", "one statement"),
        ):
            assert why in await called(on, "sql.query", database="a.db", sql=sql)
        for path in ("/etc/passwd", "../user", "b.db", ".", "a\0.db"):
            assert "there is no file" in await called(on, "sql.query", database=path, sql="SELECT 1")
        assert on.machine.home.read("a.db", 2**20) == before
        assert on.machine.home.read("b.db", 1) is None
        many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r LIMIT 1000"
        assert (await called(on, "sql.query", database="a.db", sql=many)).endswith("200\n[more than 200 rows]")
        assert "no tool 'execute'; there are: tables, query" in await called(on, "sql.execute")


async def test_a_database_is_changed_where_that_is_asked_for():
    given = {"files": {"a.sql": ROWS}, "setup": [_BASE], "tools": {"sql": {"shipped": ["sql", "--write"]}}}
    async with computers.terminal(**given) as on:
        assert await called(on, "sql.execute", database="a.db", sql="DELETE FROM t WHERE n = 1") == "1 rows changed"
        assert await called(on, "sql.query", database="a.db", sql="SELECT n FROM t") == "n\n2"


# -- a server by the SDK -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_by_the_sdk_shares_the_files(transport, with_sdk):
    async with computers.terminal({"run_s": 30.0}, **tool_servers.sdk(transport)) as on:
        assert "s.add(a: integer, b: integer): Add numbers." in on.text
        assert await called(on, "s.add", a=2, b=3) == "5"
        await on.do(Terminal("echo one > a.txt"))
        assert await called(on, "s.read", path="a.txt") == "one\n"
        assert (await called(on, "s.read", path="b.txt")).startswith("error: ")
        assert (await called(on, "s.add", a="x")).startswith("error: ")
        assert await called(on, "s.dot") == "[an image, image/png, 4 bytes]"


# -- sessions ----------------------------------------------------------------------------------------------------------
async def test_a_session_that_nothing_is_asked_of_ends_and_begins_again():
    async with computers.terminal({"tools_idle_s": 0.05}, **tool_servers.bad("well")) as on:
        first = await called(on, "s.good", n=1)
        assert first.endswith("{'n': 1}")
        await asyncio.wait({on.tools._servers["s"]._session._task})
        await asyncio.to_thread(until, lambda: "bad.py" not in " ".join(on.machine.programs()), "the end of it")
        second = await called(on, "s.good", n=1)
        assert second.startswith("good ")
        assert second != first  # another process


async def test_a_session_lasts_while_it_is_asked():
    async with computers.terminal({"tools_idle_s": 60.0}, **tool_servers.bad("well")) as on:
        assert await called(on, "s.good") == await tool_servers.called(on, "s.good")


async def test_a_closed_computer_has_ended_its_sessions():
    async with computers.terminal(**tool_servers.bad("hangs")) as on:
        session = on.tools._servers["s"]._session
        waiting = asyncio.create_task(on.tools.call(ToolCall.of("s.bad", {})))
        await asyncio.sleep(0)
    assert session._task.done()
    assert await waiting == "error: s: it has ended"


async def test_two_sessions_of_one_kind_share_nothing():
    async with (
        computers.terminal(**tool_servers.bad("hangs")) as one,
        computers.terminal(**tool_servers.bad("well")) as other,
    ):
        waiting = asyncio.create_task(called(one, "s.bad"))
        assert (await called(other, "s.good")).startswith("good ")
        assert not waiting.done()
        assert "did not answer in 3 s" in await waiting


# -- what is told, and what is asked wrongly ---------------------------------------------------------------------------
async def test_tools_are_told_at_every_step():
    task = computers.task("terminal", tools={"search": {"shipped": ["search"]}})
    async with open_environments(computers.settings("terminal"), [task]) as environments, environments.env(task) as env:
        for result in [await env.reset(task, 1), await env.step(ToolCall.of("search.read", {"title": "Oslo"}))]:
            assert result.observation.text.startswith("Tools:\nsearch.find(")
            assert result.observation.text.endswith("$")
        assert result.info["result"].startswith("Oslo (Cities)")


@pytest.mark.skipif(bool(desktop.list_missing_packages()), reason="no desktop")
async def test_beside_a_screen_tools_are_told_where_the_task_allows_functions():
    for allowed in ("both", "gui"):
        task = computers.task("computer", tools={"search": {"shipped": ["search"]}}, allowed=allowed)
        async with (
            open_environments(computers.settings("computer"), [task]) as environments,
            environments.env(task) as env,
        ):
            seen = (await env.reset(task, 1)).observation
            assert seen.screenshot is not None
            assert seen.text.startswith("Tools:") is (allowed == "both")
            info = (await env.step(ToolCall.of("search.read", {"title": "Oslo"}))).info
            assert ("result" in info, "note" in info) == ((True, False) if allowed == "both" else (False, True))


async def test_a_servers_name_alone_tells_all_of_its_tools():
    async with computers.terminal({"tools_characters": 130}, tools={"search": {"shipped": ["search"]}}) as on:
        assert on.text.startswith("Tools:\nsearch.find(query: string, limit?: integer)\n[1 more; call a server's name")
        assert '"required": ["query"]' in await called(on, "search")


async def test_what_there_is_not_is_said():
    async with computers.terminal(tools={"search": {"shipped": ["search"]}}) as on:
        assert await called(on, "find") == "error: there is no server 'find': search"
        assert await called(on, "search.x") == "error: search: no tool 'x'; there are: find, read"
    async with computers.terminal() as on:
        assert (await on.do(ToolCall.of("a.b", {}))).note == "a terminal has no call_tool"


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({}, "give one of"),
        ({"command": ["a"], "url": "http://127.0.0.1:1/"}, "give one of"),
        ({"shipped": ["mail"]}, "no server mail ships: search, sql do"),
        ({"url": "http://example.org/mcp"}, "is not like http://127.0.0.1:8000/mcp"),
        ({"url": "http://127.0.0.1:99999/mcp"}, "is not like"),
        ({"url": "http://127.0.0.1:80@example.org/"}, "is not like"),
        ({"command": ["a"], "env": {}}, "Extra inputs"),
    ],
)
def test_a_server_that_is_named_wrongly_is_refused(server, why):
    with pytest.raises(EnvError, match=why):
        ComputerTaskSpec.of(computers.task("terminal", tools={"s": server}))
    with pytest.raises(EnvError, match="tools"):
        ComputerTaskSpec.of(computers.task("terminal", tools={"a.b": {"shipped": ["sql"]}}))
