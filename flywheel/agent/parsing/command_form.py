"""Parse actions written as commands in capitals: `CLICK <point>[[301, 774]]</point>`.

CLICK <point>[[301, 774]]</point>     TYPE [text]     SCROLL [UP]     PRESS_BACK       OS-Atlas
explain:...<tab>action:CLICK<tab>point:512,108<tab>summary:...                         Step-GUI (GELab-Zero)
```DONE```     ```WAIT```     ```FAIL```                                               OSWorld's prompts
"""

from __future__ import annotations

import re

from flywheel.agent.actions import replace_surrogates
from flywheel.agent.parsing.lexing import ParseFailure, RawCall

_POINTED = re.compile(
    r"(CLICK|LONG_PRESS|DOUBLE_CLICK|RIGHT_CLICK|TAP)[ \t]*:?[ \t]*((?:<point>)?[\[(][^\n<]{1,100}[\])](?:</point>)?)"
)
_TYPED = re.compile(r"(TYPE|SCROLL|OPEN_APP|OPEN|ANSWER|NAVIGATE)[ \t]*:?[ \t]*\[")
_ALONE = re.compile(
    r"(PRESS_BACK|PRESS_HOME|NAVIGATE_BACK|NAVIGATE_HOME|PRESS_RECENT|PRESS_ENTER|ENTER|WAIT|COMPLETE|DONE|FAIL"
    r"|IMPOSSIBLE)[ \t]*(?:\[\])?(?=(?:\s|`|</?[\w:]{1,20}>|<\|\w{1,20}\|>)*\Z)"
)
_FIELDS = re.compile(r"(?:explain[ ]?:[^\t\n]*\t\s*)?action[ ]?:[ ]*([A-Z_]{2,30})[ ]*(?=\t|\s*\Z)")
_VERBS = frozenset({"type", "wait", "awake", "info", "abort", "complete", "click", "slide", "longpress"})
_CLOSE = re.compile(r"\][ \t]*(?=\n|\Z|<|`)")
_MOST_FIELDS = 12


def begins_command(text: str, at: int) -> bool:
    """Tell whether a command begins at `at`."""
    if not (text[at : at + 1].isupper() or text.startswith(("action", "explain"), at)):
        return False
    return any(form.match(text, at) for form in (_POINTED, _TYPED, _ALONE, _FIELDS))


def parse_command(text: str, start: int) -> tuple[RawCall, int]:
    """Parse the command that begins at `start`; returns it, and where it ends. Raises ParseFailure."""
    fields = _FIELDS.match(text, start)
    if fields:
        return _fields(text, fields), len(text)
    pointed = _POINTED.match(text, start)
    if pointed:
        return RawCall(pointed[1], {"point": pointed[2]}, start), pointed.end()
    typed = _TYPED.match(text, start)
    if typed:
        close = _CLOSE.search(text, typed.end())
        if close is None:
            raise ParseFailure("the closing bracket is missing", typed.end())
        if text.count("[", typed.end(), close.start()) != text.count("]", typed.end(), close.start()):
            raise ParseFailure("a bracket is not closed", typed.end())
        name = "direction" if typed[1] == "SCROLL" else "content"
        return RawCall(typed[1], {name: replace_surrogates(text[typed.end() : close.start()])}, start), close.end()
    alone = _ALONE.match(text, start)
    if alone is None:
        raise ParseFailure("unknown command", start)
    return RawCall(alone[1], {}, start), alone.end()


def _fields(text: str, fields: re.Match[str]) -> RawCall:
    """`key:value` between tabs; a point is text as well."""
    values: dict[str, str] = {}
    written = text[fields.end() :].split("\t")
    if len(written) > _MOST_FIELDS:
        raise ParseFailure(f"more than {_MOST_FIELDS} fields", fields.end())
    for one in written:
        key, colon, value = one.strip().partition(":")
        if not colon and key:
            raise ParseFailure("a field has no name", fields.end())
        if not key:
            continue
        values[key.strip()] = replace_surrogates(value.strip())
    if values and key.strip() != "summary" and not written[-1].endswith("\n"):
        raise ParseFailure("the last field may be cut", len(text))
    return RawCall(fields[1], values, fields.start())
