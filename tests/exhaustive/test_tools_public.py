"""Public MCP servers inside of machines, where FLYWHEEL_MCP_SERVERS is a folder that they were installed into.

pip install --target DIR/py mcp-server-time mcp-server-git
pip install --target DIR/old mcp-server-sqlite 'mcp<2'
npm install --prefix DIR/npm @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-everything
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import computers
import pytest
from tool_servers import called

from flywheel.agent.actions import Terminal
from flywheel.envs.computer import computer

FOLDER = Path(os.environ.get("FLYWHEEL_MCP_SERVERS", "/nonexistent")).resolve()
pytestmark = [
    computers.needed,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="FLYWHEEL_MCP_SERVERS names no folder of servers"),
]
RUN = {"run_s": 14.0, "result_bytes": 4000}
WIDE = {**RUN, "machine": {"processes": 256, "memory_mb": 1024}}  # Node wants more of both


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    monkeypatch.setattr(computer, "TOOL_READABLE_FOLDERS", (*computer.TOOL_READABLE_FOLDERS, FOLDER))


def python(where: str, module: str, *words: str) -> dict:
    env = ["env", f"PYTHONPATH={FOLDER / where}", os.path.realpath(sys.executable)]
    return {"tools": {"s": {"command": [*env, "-c", f"import {module}; {module}.main()", *words]}}}


def node(package: str, *words: str) -> dict:
    path = FOLDER / "npm/node_modules/@modelcontextprotocol" / package / "dist/index.js"
    return {"tools": {"s": {"command": ["node", str(path), *words]}}}


async def test_time_of_pypi():
    async with computers.terminal(RUN, **python("py", "mcp_server_time")) as on:
        assert "s.get_current_time(timezone: string)" in on.text
        assert '"timezone": "Asia/Tokyo"' in await called(on, "s.get_current_time", timezone="Asia/Tokyo")
        assert (await called(on, "s.get_current_time", timezone="Nowhere")).startswith("error: ")


async def test_git_of_pypi():
    made = "git init -q r && cd r && git config user.name a && git config user.email a@b && echo 1 > f && git add f"
    async with computers.terminal(RUN, setup=[made], **python("py", "mcp_server_git")) as on:
        assert "new file:   f" in await called(on, "s.git_status", repo_path="/home/user/r")
        assert "committed" in await called(on, "s.git_commit", repo_path="/home/user/r", message="one")
        told = await on.do(Terminal("cd ~/r && git log --oneline | cat"))
        assert told.result.rstrip().endswith("one")


async def test_sqlite_of_pypi_by_the_sdk_of_before():
    async with computers.terminal(RUN, **python("old", "mcp_server_sqlite", "--db-path", "a.db")) as on:
        await called(on, "s.create_table", query="CREATE TABLE t (n INTEGER)")
        await called(on, "s.write_query", query="INSERT INTO t VALUES (7)")
        assert "7" in await called(on, "s.read_query", query="SELECT n FROM t")
        told = await on.do(
            Terminal("python3 -c \"import sqlite3; print(*sqlite3.connect('a.db').execute('SELECT n FROM t'))\"")
        )
        assert told.result == "(7,)\n"


async def test_filesystem_of_npm():
    async with computers.terminal(WIDE, **node("server-filesystem", "/home/user")) as on:
        await on.do(Terminal("echo by the shell > a.txt"))
        assert (await called(on, "s.read_text_file", path="/home/user/a.txt")).startswith("by the shell")
        await called(on, "s.write_file", path="/home/user/b.txt", content="by the tool")
        assert (await on.do(Terminal("cat b.txt"))).result.startswith("by the tool")
        assert (await called(on, "s.read_text_file", path="/etc/passwd")).startswith("error: ")


@pytest.mark.parametrize("transport", ["stdio", "streamableHttp"])
async def test_everything_of_npm(transport):
    given = node("server-everything", transport)
    if transport != "stdio":
        command = " ".join(given["tools"]["s"]["command"])
        waits = "until (: < /dev/tcp/127.0.0.1/3001) 2> /dev/null; do sleep 0.05; done"
        given = {
            "setup": [f"(PORT=3001 {command} > /dev/null 2>&1 &); {waits}"],
            "tools": {"s": {"url": "http://127.0.0.1:3001/mcp"}},
        }
    async with computers.terminal(WIDE, **given) as on:
        assert "s.echo(" in on.text
        assert (await called(on, "s.echo", message="hallo")) == "Echo: hallo"
        assert "[an image, image/png, " in await called(on, "s.get-tiny-image")
