"""Where in a model's text its action begins, and in which form it is written."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from flywheel.agent import call_form, command_form, tagged_form
from flywheel.agent.grammar import Grammar
from flywheel.agent.vocabulary import KNOWN

Kind = Literal["call", "json", "tags", "command"]

LABEL = re.compile(
    r"^[ \t*#]*(thoughts?|action_summary|actions?|grounded operation|reflection)[ \t*]*[:：][ \t*]*",
    re.IGNORECASE | re.MULTILINE,
)
_OF_ACTION = frozenset({"action", "actions", "grounded operation"})
_INLINE = re.compile(r"action\s*[:：]\s*(?=(?:\w{1,40}\.)?\w{1,40}[ \t]*[(（])", re.IGNORECASE)
_WRAP = r"</?[A-Za-z][\w:]{0,20}>|<\|\w{1,20}\|>"
# What may stand between the mark of an action and the action.
_LEAD = re.compile(rf"(?:\s|[*]|`{{3}}[ \t]*(?:\w+[ \t]*)?\n|`|{_WRAP}|(?:import|from)[ \t][^\n(]*\n|#[^\n]*\n)*")
_LINE = re.compile(rf"^[ \t`*]*(?:(?:{_WRAP})[ \t]*)*(?=[A-Za-z{{\[<])", re.MULTILINE)
_TAGGED = re.compile(r"<(?:(?:seed:)?tool_call>\s*(?=[{\[<])|answer>|(?=function\s*=|invoke\s+name\s*=))")
_JSON = re.compile(r"\{|\[\s*[{\[]")
_MOST_LABELS = 16
# Behind a label: a sentence that says what will be done, behind which the action itself is to be looked for.
_PROSE = re.compile(r"(?![A-Za-z_][\w.]{0,40}[(（])[^\n=<{]*(?<![)）])(?:\n|\Z)")


class Mark(NamedTuple):
    """at: where the thought ends. start: where the action begins."""

    at: int
    start: int
    kind: Kind


def find(text: str, begin: int, grammar: Grammar) -> Mark | None:
    """The mark of the first action behind `begin`; None where there is none.

    In a grammar of tool calls that is the first tool call. Else it is what stands behind the first `Action:` that
    begins a line; without that label, the first call, command or tagged call that begins a line, or JSON.
    """
    if grammar.form == "tool_call":
        first = text.find("{", begin)
        if first > 0 and text.endswith("<tool_call>\n", begin, first):
            return Mark(first - 12, first, "json")
        tagged = _tagged(text, begin)
        if tagged and text.find("{", begin, tagged.start) < 0:
            return tagged
        json = _json_line(text, begin)
        if tagged or json:
            return min(mark for mark in (tagged, json) if mark)
    empty, labels = None, 0
    for label in LABEL.finditer(text, begin):
        if label[1].lower() in _OF_ACTION:
            labels += 1
            if labels > _MOST_LABELS:
                break
            start = _LEAD.match(text, label.end()).end()
            kind = kind_at(text, start)
            if kind or not _PROSE.match(text, start):
                return Mark(label.start(), start, kind or "call")
            empty = empty or Mark(label.start(), start, "call")
    found = _unlabelled(text, empty.start if empty else begin, begin if empty is None else -1)
    return found or (None if grammar.form == "tool_call" else _json_line(text, begin)) or empty


def _unlabelled(text: str, search: int, begin: int) -> Mark | None:
    """The first of what needs no label. begin: where the text does, behind thinking, or -1 where a label stood."""
    if begin >= 0:
        start = _LEAD.match(text, begin).end()
        kind = kind_at(text, start)
        if kind and not (kind == "call" and _is_prose(text, start)):
            return Mark(begin, start, kind)
    marks = [_inline(text, search), _line(text, search), _tagged(text, search)]
    return min((mark for mark in marks if mark), default=None)


def kind_at(text: str, at: int) -> Kind | None:
    """The form of what begins at `at`; None where that is no action."""
    sign = text[at : at + 1]
    if sign in ("{", "["):
        return "json" if _JSON.match(text, at) else None
    if sign == "<":
        return "tags" if tagged_form.BEGIN.match(text, at) else None
    if sign.isalpha() or sign == "_":
        if call_form.begins(text, at):
            return "call"
        if command_form.begins(text, at):
            return "command"
    return None


def _is_prose(text: str, at: int) -> bool:
    """Whether what looks like a call may begin a sentence: `Wait (for the page)`."""
    call = call_form.CALL.match(text, at)
    return call[0][-2:-1].isspace() and call[2].lower() not in KNOWN


def _inline(text: str, begin: int) -> Mark | None:
    for found in _INLINE.finditer(text, begin):
        if call_form.begins(text, found.end()):
            return Mark(found.start(), found.end(), "call")
    return None


def _line(text: str, begin: int) -> Mark | None:
    for line in _LINE.finditer(text, begin):
        kind = kind_at(text, line.end())
        if kind in ("tags", "command") or (kind == "call" and not _is_prose(text, line.end())):
            return Mark(line.start(), line.end(), kind)
    return None


def _tagged(text: str, begin: int) -> Mark | None:
    found = _TAGGED.search(text, begin)
    while found:
        start = found.start() if found[0] == "<" else _LEAD.match(text, found.end()).end()
        kind = kind_at(text, start)
        if kind:
            return Mark(found.start(), start, kind)
        found = _TAGGED.search(text, max(start, found.end()))
    return None


def _json_line(text: str, begin: int) -> Mark | None:
    if text.find("{", begin) < 0:
        return None
    start = _LEAD.match(text, begin).end()
    if kind_at(text, start) == "json":
        return Mark(begin, start, "json")
    for line in _LINE.finditer(text, begin):
        if kind_at(text, line.end()) == "json":
            return Mark(line.start(), line.end(), "json")
    return None
