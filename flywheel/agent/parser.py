"""Text to action and back, in any grammar: read with tolerance, written in one form.

Nothing is evaluated and nothing is raised: text that holds no valid action gives a `ParseError`, which says what
was wrong and where. Where a text does not hold the form of its grammar it is tried as the other (calls, tool calls):
what the numbers mean is the grammar's in both.
"""

from __future__ import annotations

import re

from flywheel.agent import call_form, plain_form, tool_form
from flywheel.agent.actions import Action, Parsed, ParseError, Point, whole
from flywheel.agent.faults import Fault
from flywheel.agent.grammar import Grammar, as_grammar

_LABEL = re.compile(
    r"^[ \t*#]*(thought|action_summary|action|reflection)[ \t*]*[:：][ \t*]*", re.IGNORECASE | re.MULTILINE
)
_INLINE = re.compile(rf"action\s*[:：]\s*(?={call_form.CALL.pattern})", re.IGNORECASE)
_BARE = re.compile(rf"^[ \t`*]*(?={call_form.CALL.pattern})", re.IGNORECASE | re.MULTILINE)
_THINK = re.compile(r"</?think[\w-]*>")
_EMPTY_LABEL = re.compile(r"action[ \t*]*[:：][ \t*`]*\Z", re.IGNORECASE)
# What the model says it thinks, the best account first (UI-TARS 1.0 wrote the last two).
_THOUGHTS = ("thought", "action_summary", "reflection")


def parse(text: str, grammar: Grammar | int) -> Parsed:
    """Read one model output. A plain number as the grammar: `grammar.as_grammar`.

    The action is the first call after the first `Action:` that begins a line; without that label, the first call
    that begins a line. Of tool calls it is the first. A box gives its centre. Several actions give the first, unless
    `finished` or `call_user`, which stand alone, is among them.
    """
    grammar = as_grammar(grammar)
    if grammar.form == "tool_call":
        return _tool_call(text, grammar) or _call(text, grammar)
    parsed = _plain(text, grammar)
    if parsed is None:
        parsed = _call(text, grammar)
        if isinstance(parsed.action, ParseError) and "<tool_call>" in text:
            parsed = _tool_call(text, grammar) or parsed
    return parsed


def _plain(text: str, grammar: Grammar) -> Parsed | None:
    """What `_call` gives, for the commonest text; None for any other, whose thought or action may need more care."""
    if not text.startswith("Thought: "):
        return None
    end = text.find("\nAction: ", 8)
    action = plain_form.read(text, end + 9, grammar.space) if end > 0 else None
    if action is None:
        return None
    thought = text[9:end]
    if "think" in thought or "*" in thought:
        return None
    if "\n" in thought and _LABEL.search(text, 9, end):
        return None
    return Parsed(whole(thought).strip(), action)


def _call(text: str, grammar: Grammar) -> Parsed:
    thought, start = _split(text)
    if start < 0:
        return Parsed(thought, ParseError("there is no action", len(text)))
    try:
        return Parsed(thought, call_form.read(text, start, grammar))
    except Fault as fault:
        return Parsed(thought, fault.error)


def _tool_call(text: str, grammar: Grammar) -> Parsed | None:
    """None where nothing marks a tool call."""
    found = tool_form.find(text)
    if found is None:
        return None
    thought = _EMPTY_LABEL.sub("", _thought(text, found[0])).rstrip()
    try:
        return Parsed(thought, tool_form.read(text, found[1], grammar))
    except Fault as fault:
        return Parsed(thought, fault.error)


def _split(text: str) -> tuple[str, int]:
    """The thought, and where the action begins (-1 where nothing marks one)."""
    action = next((label for label in _LABEL.finditer(text) if label[1].lower() == "action"), None)
    if action is None:
        # `Thought: ... Action: click(...)` on one line, or a call alone, whose content may hold such a line.
        marks = [mark for mark in (_INLINE.search(text), _BARE.search(text)) if mark]
        action = min(marks, key=re.Match.start, default=None)
    end, start = action.span() if action else (len(text), -1)
    return _thought(text, end), start


def _thought(text: str, end: int) -> str:
    """What stands before `end`, behind the label of the best account there is."""
    if text.startswith("Thought: "):
        thought = text[9:end].rstrip()
        if "\n" not in thought and "think" not in thought and "*" not in thought:
            return whole(thought.lstrip())
    begins: dict[str, int] = {}
    for label in _LABEL.finditer(text, 0, end):
        begins.setdefault(label[1].lower(), label.end())
    begin = next((begins[name] for name in _THOUGHTS if name in begins), 0)
    thought = whole(text[begin:end])
    return (_THINK.sub("", thought) if "think" in thought else thought).strip()


def serialise(action: Action, grammar: Grammar | int) -> str:
    """The action in the grammar's one form; `parse` reads it back, points snapped. Raises TypeError for no action."""
    grammar = as_grammar(grammar)
    return (tool_form if grammar.form == "tool_call" else call_form).write(action, grammar)


def snap(point: Point, grammar: Grammar | int) -> Point:
    """The point that `parse(serialise(...))` gives back: where the numbers that are written of it lead."""
    return as_grammar(grammar).space.snap(point)
