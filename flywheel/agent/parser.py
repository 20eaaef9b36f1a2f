"""Text to action and back, in any grammar: read with tolerance, written in one form.

Nothing is evaluated and nothing is raised: text that holds no valid action gives a `ParseError`, which says what
was wrong and where. Any grammar reads every form: thinking is passed (`thinking`), the action found (`marks`) and read
in its form (`call_form`, `tool_form`, `tagged_form`, `command_form`), and its words are put into the grammar's
(`meaning`). What the numbers mean is the grammar's in all of them.
"""

from __future__ import annotations

import re

from flywheel.agent import call_form, command_form, marks, plain_form, tagged_form, thinking, tool_form
from flywheel.agent.actions import ALONE, NAMES, Action, Parsed, ParseError, Point, whole
from flywheel.agent.grammar import Grammar, as_grammar
from flywheel.agent.marks import LABEL, Mark
from flywheel.agent.meaning import action_of, in_own_words
from flywheel.agent.parse_failure import ParseFailure
from flywheel.agent.written_call import Said

_EMPTY_LABEL = re.compile(r"action[ \t*]*[:：][ \t*`]*\Z", re.IGNORECASE)
# What the model says it thinks, the best account first (UI-TARS 1.0 wrote the last two).
_THOUGHTS = ("thought", "thoughts", "action_summary", "reflection")
_LABEL_ENDS = frozenset(":：*` \t")
_MOST_ACTIONS = 8  # that are looked at behind the first


def parse(text: str, grammar: Grammar | int) -> Parsed:
    """Read one model output. A plain number as the grammar: `grammar.as_grammar`.

    What stands before the end of thinking is thought. Behind it the action is the first, as `marks.find` has it. A box
    gives its centre. Several actions give the first, unless `finished` or `call_user`, which stand alone, is among
    them.
    """
    grammar = as_grammar(grammar)
    if not grammar.thinks:
        parsed = (_plain_tool if grammar.form == "tool_call" else _plain)(text, grammar)
        if parsed is not None:
            return parsed
    return _tolerant(text, grammar)


def _tolerant(text: str, grammar: Grammar) -> Parsed:
    begin = 0
    if grammar.thinks or thinking.TAG.search(text):
        try:
            begin = thinking.end(text, grammar.thinks, lambda at, before: _extent(text, at, before, grammar))
        except ParseFailure as fault:
            return Parsed(_thought(text, 0, len(text)), fault.error)
    mark = marks.find(text, begin, grammar)
    if mark is None:
        return Parsed(_thought(text, begin, len(text)), ParseError("there is no action", len(text)))
    thought = _thought(text, begin, mark.at)
    if mark.kind in ("json", "tags"):
        thought = _without_label(thought)
    try:
        return Parsed(thought, _action(text, mark, grammar)[0])
    except ParseFailure as fault:
        return Parsed(thought, fault.error)


def _plain(text: str, grammar: Grammar) -> Parsed | None:
    """What the forms give, for the commonest text; None for any other, whose thought or action may need more care."""
    if not text.startswith("Thought: "):
        return None
    end = text.find("\nAction: ", 8)
    action = plain_form.read(text, end + 9, grammar.space) if end > 0 else None
    if action is None:
        return None
    thought = text[9:end]
    if "*" in thought or (("<" in thought or "[" in thought or "◁" in thought) and thinking.TAG.search(thought)):
        return None
    if "\n" in thought and LABEL.search(text, 9, end):
        return None
    return Parsed(whole(thought).strip(), action)


def _plain_tool(text: str, grammar: Grammar) -> Parsed | None:
    """The same for a tool call."""
    found = tool_form.read_plain(text, grammar)
    if found is None:
        return None
    said, at = found
    before = text[:at]
    if "<" in before or "{" in before or "[" in before or "◁" in before:
        return None
    try:
        action = action_of(said, grammar.space)
    except ParseFailure:
        return None
    return Parsed(_without_label(_thought(text, 0, at)), action)


def _action(text: str, mark: Mark, grammar: Grammar) -> tuple[Action, int]:
    """The action, and where it ends. Raises ParseFailure."""
    said, end = _said(text, mark, grammar)
    action = action_of(said, grammar.space)
    name = NAMES[type(action)]
    for further in said.behind:
        _check_alone(name, further)
    if end < len(text):
        _check_behind(text, end, mark, name, grammar)
    return action, end


def _said(text: str, mark: Mark, grammar: Grammar) -> tuple[Said, int]:
    match mark.kind:
        case "call":
            return call_form.read(text, mark.start, grammar)
        case "json":
            return tool_form.read(text, mark.start, grammar)
        case "tags":
            return tagged_form.read(text, mark.start)
    return command_form.read(text, mark.start)


_FOLLOWING = {"call": call_form.following, "json": tool_form.following, "tags": tagged_form.following}


def _check_behind(text: str, at: int, mark: Mark, first: str, grammar: Grammar) -> None:
    """Raises ParseFailure where one of the actions from `at` on, or the first, must stand alone and does not."""
    following = _FOLLOWING.get(mark.kind)
    for _ in range(_MOST_ACTIONS if following else 0):
        start = following(text, at)
        if start < 0:
            return
        if mark.kind == "call":
            _check_alone(first, Said(call_form.CALL.match(text, start)[2], {}, start))
        try:
            said, at = _said(text, Mark(start, start, mark.kind), grammar)
        except ParseFailure:
            return
        _check_alone(first, said)


def _check_alone(first: str, further: Said) -> None:
    try:
        name = in_own_words(further)[0]
    except ParseFailure:
        return
    if name != first and not ALONE.isdisjoint((name, first)):
        raise ParseFailure(f"{name if name in ALONE else first} stands alone in a step", further.at)


def _extent(text: str, at: int, before: int, grammar: Grammar) -> tuple[int, int] | None:
    """Where the action begins and ends that is found behind `at`, if it begins before `before` and can be read.

    Of a command without quotes nobody knows where it ends.
    """
    mark = marks.find(text, at, grammar)
    if mark is None or mark.start >= before or mark.kind == "command":
        return None
    try:
        return mark.start, _action(text, mark, grammar)[1]
    except ParseFailure:
        return None


def _thought(text: str, begin: int, end: int) -> str:
    """What stands before `end`: behind the label of the best account there is, or else all, thinking and what follows.

    begin: where the thinking ends, whose own labels are none.
    """
    if begin == 0 and text.startswith("Thought: "):
        thought = text[9:end].rstrip()
        if "\n" not in thought and "*" not in thought and "<" not in thought:
            return whole(thought.lstrip())
    begins: dict[str, int] = {}
    for label in LABEL.finditer(text, begin, end):
        begins.setdefault(label[1].lower(), label.end())
    start = next((begins[name] for name in _THOUGHTS if name in begins), 0)
    thought = whole(text[start:end])
    if "<" in thought or "[" in thought or "◁" in thought:
        thought = thinking.without_tags(thought)
    return thought.strip()


def _without_label(thought: str) -> str:
    """Some models write `Action:` before the tag of a tool call."""
    return _EMPTY_LABEL.sub("", thought).rstrip() if thought[-1:] in _LABEL_ENDS else thought


def serialise(action: Action, grammar: Grammar | int) -> str:
    """The action in the grammar's one form; `parse` reads it back, points snapped. Raises TypeError for no action."""
    grammar = as_grammar(grammar)
    return (tool_form if grammar.form == "tool_call" else call_form).write(action, grammar)


def snap(point: Point, grammar: Grammar | int) -> Point:
    """The point that `parse(serialise(...))` gives back: where the numbers that are written of it lead."""
    return as_grammar(grammar).space.snap(point)
