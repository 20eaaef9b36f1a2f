"""Serve MCP tools over standard input and output: JSON-RPC, one message a line, answered one after the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # of the protocol; the newest is the first
_NO_JSON, _NO_METHOD, _BAD_PARAMS = -32700, -32601, -32602
TEXT = {"type": "string"}


class ToolRefused(Exception):
    """Signal that a tool cannot do what its caller wants; the message is one line for the caller."""


class _RpcFault(Exception):
    """Signal a request that is not valid. code: of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ServedTool:
    """Hold a tool of an MCP server.

    about: its description. takes: JSON Schema of each argument, by name. needs: arguments that must be given. call:
    takes the arguments by name, returns a text, raises ToolRefused.
    """

    name: str
    about: str
    takes: dict[str, Any]
    needs: Sequence[str]
    call: Callable[..., str]

    def told(self) -> dict[str, Any]:
        """Return the tool as `tools/list` describes it."""
        schema = {"type": "object", "properties": self.takes, "required": list(self.needs)}
        return {"name": self.name, "description": self.about, "inputSchema": schema}


def serve_tools(name: str, tools: Sequence[ServedTool]) -> None:
    """Serve tools over standard input and output until the input ends. name: of the server, as MCP tells it."""
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    for line in sys.stdin:
        if line.strip() and (answer := _answer_line(line, name, {tool.name: tool for tool in tools})) is not None:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **answer}) + "\n")
            sys.stdout.flush()


def _answer_line(line: str, name: str, tools: dict[str, ServedTool]) -> dict[str, Any] | None:
    """Answer one message; None for a message that wants no answer."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        return {"id": None, "error": {"code": _NO_JSON, "message": "not JSON"}}
    if not isinstance(asked, dict) or "id" not in asked or "method" not in asked:
        return None
    given = asked.get("params")
    try:
        return {
            "id": asked["id"],
            "result": _call_method(asked["method"], given if isinstance(given, dict) else {}, name, tools),
        }
    except _RpcFault as fault:
        return {"id": asked["id"], "error": {"code": fault.code, "message": str(fault)}}


def _call_method(method: str, given: dict[str, Any], name: str, tools: dict[str, ServedTool]) -> dict[str, Any]:
    if method == "initialize":
        asked = given.get("protocolVersion")
        version = asked if asked in _VERSIONS else _VERSIONS[0]
        about = {"name": name, "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [tool.told() for tool in tools.values()]}
    if method != "tools/call":
        raise _RpcFault(_NO_METHOD, f"there is no {method}")
    tool, arguments = tools.get(given.get("name")), given.get("arguments") or {}
    if tool is None or not isinstance(arguments, dict):
        raise _RpcFault(_BAD_PARAMS, f"there is no tool {given.get('name')}")
    try:
        text, failed = tool.call(**_check_arguments(tool, arguments)), False
    except ToolRefused as refused:
        text, failed = str(refused), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _check_arguments(tool: ServedTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments. Raises ToolRefused where one is missing, unknown or of a wrong type."""
    if lacking := [name for name in tool.needs if name not in arguments]:
        raise ToolRefused(f"{tool.name} needs {', '.join(lacking)}")
    if other := [name for name in arguments if name not in tool.takes]:
        raise ToolRefused(f"{tool.name} takes {', '.join(tool.takes)}, and no {', '.join(other)}")
    for name, value in arguments.items():
        kind = tool.takes[name]["type"]
        if not isinstance(value, str if kind == "string" else int) or isinstance(value, bool):
            raise ToolRefused(f"{name} is not of the type {kind}")
    return arguments
