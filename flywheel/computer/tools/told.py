"""Tools and their results as texts, whatever a server says in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mcp_types

_NAME = re.compile(r"[!-~]{1,128}")
_TYPE = re.compile(r"[a-z]{1,16}")
_ABOUT = 200  # characters of a tool's description in its line
_TAKES = 300  # of its arguments there


@dataclass(frozen=True)
class Listed:
    """A tool by its server's name and its own. takes: its arguments, about: what it does, each in a line."""

    name: str
    takes: str
    about: str

    @property
    def line(self) -> str:
        return f"{self.name}({self.takes})" + (f": {self.about}" if self.about else "")


def listed(server: str, tool: mcp_types.Tool) -> Listed | None:
    """None for one that has a name which cannot be called."""
    if not _NAME.fullmatch(tool.name):
        return None
    return Listed(
        f"{server}.{tool.name}", _takes(tool.input_schema), _line(tool.description or tool.title or "", _ABOUT)
    )


def in_full(server: str, tool: mcp_types.Tool) -> str:
    """All that its server says of it."""
    return f"{server}.{tool.name}: {tool.description or ''}\narguments: {json.dumps(tool.input_schema)}"


def told(tools: Iterable[Listed], limit: int) -> str:
    """Lines of tools in `limit` characters: of more than fit the names alone, and of those as many as fit."""
    tools = list(tools)
    text = "\n".join(tool.line for tool in tools)
    if len(text) <= limit:
        return text
    short = [f"{tool.name}({tool.takes})" for tool in tools]
    left = limit - 60  # for the line that says what is left out
    kept = 0
    while kept < len(short) and len(short[kept]) + 1 <= left:
        left -= len(short[kept]) + 1
        kept += 1
    more = f"{len(tools) - kept} more; " if kept < len(tools) else ""
    return "\n".join([*short[:kept], f"[{more}call a server's name to read of all its tools]"])


def result_text(result: mcp_types.CallToolResult) -> str:
    """What a tool returned; what is no text is named."""
    parts = [_part(one) for one in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return f"error: {text}" if result.is_error else text


def _part(one: Any) -> str:
    match one:
        case mcp_types.TextContent():
            return one.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            what = "an image" if isinstance(one, mcp_types.ImageContent) else "a sound"
            return f"[{what}, {_line(one.mime_type, 40)}, {len(one.data.rstrip('=')) * 3 // 4} bytes]"
        case mcp_types.ResourceLink():
            return f"[a resource: {_line(str(one.uri), 200)}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[a resource: {_line(str(resource.uri), 200)}]"
    return f"[{type(one).__name__}]"


def _takes(schema: dict[str, Any]) -> str:
    """`query: string, limit?: integer`."""
    takes, needs = schema.get("properties"), schema.get("required")
    if not isinstance(takes, dict):
        return ""
    needs = needs if isinstance(needs, list) else []
    said = (f"{name}{'' if name in needs else '?'}: {_type(one)}" for name, one in takes.items())
    return _line(", ".join(said), _TAKES)


def _type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else "any"


def _line(text: str, limit: int) -> str:
    """In one line of `limit` characters, each of which can be seen; of more its beginning."""
    text = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * limit]).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
