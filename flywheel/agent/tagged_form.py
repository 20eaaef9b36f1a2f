"""Actions written with tags for each parameter, whose texts stand as they are, without escapes.

    <function=type><parameter=content>C:\\new</parameter></function>       Qwen3-Coder, Seed-OSS, UI-TARS 2
    <invoke name="computer"><parameter name="action">wait</parameter>      Anthropic's models in text

Both usually stand in a tag of their own (`<tool_call>`, `<seed:tool_call>`), which the caller has passed.
"""

from __future__ import annotations

import re

from flywheel.agent.actions import whole
from flywheel.agent.parse_failure import ParseFailure
from flywheel.agent.synonyms import TOOLS
from flywheel.agent.written_call import Said, folded

BEGIN = re.compile(r"<(?:function\s*=|invoke\s+name\s*=)\s*[\"']?([\w.:-]{1,60})[\"']?\s*>", re.IGNORECASE)
_PARAMETER = re.compile(r"\s*<parameter(?:\s+name)?\s*=\s*[\"']?([\w.-]{1,60})[\"']?\s*>", re.IGNORECASE)
_CLOSE = re.compile(r"</parameter>(?=\s*(?:<parameter|</|\Z))", re.IGNORECASE)
_END = re.compile(r"\s*(?:</(?:function|invoke)>|</[\w:]*tool_call>|\Z)", re.IGNORECASE)
_NEXT = re.compile(r"(?:\s|</?[\w:]{1,30}>)*")
_MOST_PARAMETERS = 12


def read(text: str, start: int) -> tuple[Said, int]:
    """The call whose first tag begins at `start`, and where it ends. Raises ParseFailure."""
    begin = BEGIN.match(text, start)
    values: dict[str, str] = {}
    places: dict[str, int] = {}
    at = begin.end()
    for _ in range(_MOST_PARAMETERS + 1):
        end = _END.match(text, at)
        if end:
            return _called(begin[1], values, places, start), end.end()
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise ParseFailure("a parameter or an end tag was expected", at)
        close = _CLOSE.search(text, parameter.end())
        if close is None:
            raise ParseFailure("the parameter is not closed", parameter.end())
        if parameter[1] in values:
            raise ParseFailure(f"{parameter[1][:40]} is given twice", parameter.start())
        values[parameter[1]] = _value(text[parameter.end() : close.start()])
        places[parameter[1]] = parameter.end()
        at = close.end()
    raise ParseFailure(f"more than {_MOST_PARAMETERS} parameters", at)


def following(text: str, at: int) -> int:
    """Where a further call begins behind one that ended at `at`; -1 where there is none."""
    at = _NEXT.match(text, at).end()
    return at if BEGIN.match(text, at) else -1


def _called(name: str, values: dict[str, str], places: dict[str, int], at: int) -> Said:
    tool = name.rpartition(".")[2]
    if folded(tool) in TOOLS:
        action = values.pop("action", None)
        if action is None:
            raise ParseFailure("the tool call names no action", at)
        name = action.strip()
    else:
        tool, name = "", tool
    return Said(name, values, at, (), tool, places)


def _value(written: str) -> str:
    """The text between the tags, without the line ends that templates put beside them."""
    return whole(written.removeprefix("\n").removesuffix("\n"))
