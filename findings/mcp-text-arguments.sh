#!/bin/sh
# mcp 2.3.0: a server's optional text argument is read as JSON first: the word null arrives as nothing, and a text in
# brackets is refused; the message of an exception in a tool reaches the client only where it is a ToolError.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install mcp==2.3.0
venv/bin/python - <<'EOF'
import asyncio
import logging
import sys
from importlib.metadata import version

from mcp.client import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

logging.disable()
server = MCPServer("notes")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None) -> str:
    return repr(text)


@server.tool()
def missing(kind: str) -> str:
    raise (ToolError if kind == "tool" else ValueError)("a.txt is not there")


async def ask():
    async with Client(server) as client:
        for tool, arguments in (
            ("plain", {"text": "null"}), ("optional", {"text": "null"}), ("optional", {"text": "[1]"}),
            ("missing", {"kind": "value"}), ("missing", {"kind": "tool"}),
        ):
            result = await client.call_tool(tool, arguments)
            yield result.is_error, result.content[0].text.splitlines()[0]


async def main():
    return [one async for one in ask()]


plain_null, null, brackets, value, tool = seen = asyncio.run(main())
print("mcp", version("mcp"))
print("expected: 'null', 'null' and '[1]' as they were sent, and twice the words a.txt is not there")
print("seen:", *seen, sep="\n  ")
told = ["a.txt is not there" in text for _, text in (value, tool)]
sys.exit((plain_null, null, brackets[0], told) != ((False, "'null'"), (False, "None"), True, [False, True]))
EOF
