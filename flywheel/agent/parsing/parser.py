"""Parse a model's response into a thought and an action, and write actions as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParsedResponse, ParseError, replace_surrogates
from flywheel.agent.grammar import Grammar, as_grammar
from flywheel.agent.parsing import call_form, tool_form
from flywheel.agent.parsing.lexing import ONLY_THOUGHT, ParseFailure, RawCall, ambiguous_text, unsupported_action
from flywheel.agent.parsing.normalise import KNOWN_ACTIONS, build_normalised_action, normalise_call

# The end of a model's thinking: all before it is thought, even if it looks like an action. The tags: `<think>`,
# `<thinking>`, `<seed:think>`, `<|begin_of_thought|>`, `[THINK]` and the like. Where the prompt itself opens the
# thinking (as many chat templates do) only the end tag is in the text.

_THINKING_NAMES = r"(?:seed:?|grounding_)?think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|scratchpad"
_THINKING_WORD = rf"[ ]?(/?)[ ]?(?:{_THINKING_NAMES})(?![\w:-])[ ]?[>▷\]]?"
THINKING_TAG = re.compile(
    rf"[<◁\[](?=[ /|]{{0,3}}[abegrst])(?:{_THINKING_WORD}|\|{{0,2}}(begin|end)_of_thought\|{{0,2}}>?)", re.IGNORECASE
)
# The model's own marks of the end of its answer; what follows is a further turn that it invented.
_TURN = re.compile(r"<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<seed:eos>")
_LIKE_ACTION = re.compile(r"action\s*[:：]|<(?:tool_call|seed:tool_call|function=)|\w\(|[{]\s*['\"]", re.IGNORECASE)
_QUOTE = re.compile(r"\\.|(['\"])|\n", re.DOTALL)
_MOST_READINGS = 16

Covering = Callable[[int, int], tuple[int, int] | None]


def find_thinking_end(text: str, opened: bool, covering: Covering) -> int:
    """Return the offset in `text` at which the last thinking (`<think>`...`</think>`) ends; 0 where there is none.

    opened: whether the prompt opened the thinking. covering: called with (at, before); returns (begin, end) of the
    first action after `at`, or None where it cannot be read or does not begin before `before`. A tag within an action
    belongs to what the action types. Raises ParseFailure where the thinking does not end, or a tag is ambiguous.
    """
    at, depth, readings = 0, int(opened), 0
    inside = -1  # end of the action that the last tag stood in
    for tag in THINKING_TAG.finditer(text):
        if tag.start() < inside:
            continue
        if depth == 0:
            if at == 0 and _TURN.search(text, 0, tag.start()) and covering(at, tag.start()):
                break
            readings += 1
            found = covering(at, tag.start()) if readings <= _MOST_READINGS else None
            if found and found[0] < tag.start() and tag.end() <= found[1]:
                if _may_be_cut(text, tag.end(), found[1]):
                    raise ambiguous_text("an end of thinking, or part of a text that is typed?", tag.start())
                inside = found[1]
                continue
        if tag[1] == "/" or (tag[2] or "").lower() == "end":
            depth = max(0, depth - 1)
            at = tag.end() if depth == 0 else at
        else:
            depth += 1
    if depth:
        raise ParseFailure(f"{ONLY_THOUGHT}: it does not end", len(text))
    return at


def _may_be_cut(text: str, at: int, end: int) -> bool:
    """Tell whether `text[at:end]`, typed after a tag, looks like the real action, swallowed by a draft's open quote."""
    like = _LIKE_ACTION.search(text, at, end)
    if like is None:
        return False
    return sum(1 for quote in _QUOTE.finditer(text, at, end) if quote[0] == "\n" or quote[1]) > 1


ActionForm = Literal["call", "json", "tags", "command"]

_LABELS = "thoughts?|action_summary|actions?|grounded operation|reflection"
ACTION_LABEL = re.compile(rf"^[ \t*#]*({_LABELS})[ \t*]*[:：][ \t*]*", re.IGNORECASE | re.MULTILINE)
_OF_ACTION = frozenset({"action", "actions", "grounded operation"})
_INLINE = re.compile(r"action\s*[:：]\s*(?=(?:\w{1,40}\.)?\w{1,40}[ \t]*[(（])", re.IGNORECASE)
_WRAP = r"</?[A-Za-z][\w:]{0,20}>|<\|\w{1,20}\|>"
# Allowed between the mark of an action and the action.
_LEAD = re.compile(rf"(?:\s|[*]|`{{3}}[ \t]*(?:\w+[ \t]*)?\n|`|{_WRAP}|(?:import|from)[ \t][^\n(]*\n|#[^\n]*\n)*")
_LINE = re.compile(rf"^[ \t`*]*(?:(?:{_WRAP})[ \t]*)*(?=[A-Za-z{{\[<])", re.MULTILINE)
_TAGGED = re.compile(r"<(?:(?:seed:)?tool_call>\s*(?=[{\[<])|answer>|(?=function\s*=|invoke\s+name\s*=))")
_JSON = re.compile(r"\{|\[\s*[{\[]")
_MOST_LABELS = 16
# A sentence after a label that says what will be done; the action is searched after it.
_PROSE = re.compile(r"(?![A-Za-z_][\w.]{0,40}[(（])[^\n=<{]*(?<![)）])(?:\n|\Z)")


class ActionMark(NamedTuple):
    """Hold the offsets where a thought ends (`at`) and an action begins (`start`). kind: form of the action."""

    at: int
    start: int
    kind: ActionForm


def find_action(text: str, begin: int, grammar: Grammar) -> ActionMark | None:
    """Find where the first action after the offset `begin` stands in `text`; None where there is none.

    In a grammar of tool calls that is the first tool call. In others it is what follows the first `Action:` that begins
    a line; without that label, the first call, command or tagged call that begins a line, or JSON.
    """
    if grammar.form == "tool_call":
        first = text.find("{", begin)
        if first > 0 and text.endswith("<tool_call>\n", begin, first):
            return ActionMark(first - 12, first, "json")
        tagged = _tagged(text, begin)
        if tagged and text.find("{", begin, tagged.start) < 0:
            return tagged
        json = _json_line(text, begin)
        if tagged or json:
            return min(mark for mark in (tagged, json) if mark)
    empty, labels = None, 0
    for label in ACTION_LABEL.finditer(text, begin):
        if label[1].lower() in _OF_ACTION:
            labels += 1
            if labels > _MOST_LABELS:
                break
            start = _LEAD.match(text, label.end()).end()
            kind = form_at(text, start)
            if kind or not _PROSE.match(text, start):
                return ActionMark(label.start(), start, kind or "call")
            empty = empty or ActionMark(label.start(), start, "call")
    found = _unlabelled(text, empty.start if empty else begin, begin if empty is None else -1)
    return found or (None if grammar.form == "tool_call" else _json_line(text, begin)) or empty


def _unlabelled(text: str, search: int, begin: int) -> ActionMark | None:
    """Find the first action without a label, from `search` on. begin: where the text after the thinking begins; -1
    where there was a label."""
    if begin >= 0:
        start = _LEAD.match(text, begin).end()
        kind = form_at(text, start)
        if kind and not (kind == "call" and _is_prose(text, start)):
            return ActionMark(begin, start, kind)
    marks = [_inline(text, search), _line(text, search), _tagged(text, search)]
    return min((mark for mark in marks if mark), default=None)


def form_at(text: str, at: int) -> ActionForm | None:
    """Return the form of the action that begins at the offset `at` of `text`; None where none begins there."""
    sign = text[at : at + 1]
    if sign in ("{", "["):
        return "json" if _JSON.match(text, at) else None
    if sign == "<":
        return "tags" if tool_form.TAGGED_CALL_START.match(text, at) else None
    if sign.isalpha() or sign == "_":
        if call_form.begins_call(text, at):
            return "call"
        if call_form.begins_command(text, at):
            return "command"
    return None


def _is_prose(text: str, at: int) -> bool:
    """Tell whether what looks like a call may begin a sentence: `Wait (for the page)`."""
    call = call_form.CALL_START.match(text, at)
    return call[0][-2:-1].isspace() and call[2].lower() not in KNOWN_ACTIONS


def _inline(text: str, begin: int) -> ActionMark | None:
    for found in _INLINE.finditer(text, begin):
        if call_form.begins_call(text, found.end()):
            return ActionMark(found.start(), found.end(), "call")
    return None


def _line(text: str, begin: int) -> ActionMark | None:
    for line in _LINE.finditer(text, begin):
        kind = form_at(text, line.end())
        if kind in ("tags", "command") or (kind == "call" and not _is_prose(text, line.end())):
            return ActionMark(line.start(), line.end(), kind)
    return None


def _tagged(text: str, begin: int) -> ActionMark | None:
    found = _TAGGED.search(text, begin)
    while found:
        start = found.start() if found[0] == "<" else _LEAD.match(text, found.end()).end()
        kind = form_at(text, start)
        if kind:
            return ActionMark(found.start(), start, kind)
        found = _TAGGED.search(text, max(start, found.end()))
    return None


def _json_line(text: str, begin: int) -> ActionMark | None:
    if text.find("{", begin) < 0:
        return None
    start = _LEAD.match(text, begin).end()
    if form_at(text, start) == "json":
        return ActionMark(begin, start, "json")
    for line in _LINE.finditer(text, begin):
        if form_at(text, line.end()) == "json":
            return ActionMark(line.start(), line.end(), "json")
    return None


# No code is evaluated and nothing is raised: text that holds no valid action gives a `ParseError`. Any grammar reads
# every form: the thinking is skipped, the action found and read in its form (`call_form`, `tool_form`), and its names
# are translated (`normalise`). In all forms the grammar says what the numbers mean.

_EMPTY_LABEL = re.compile(r"action[ \t*]*[:：][ \t*`]*\Z", re.IGNORECASE)
# Labels of a thought, the best first (UI-TARS 1.0 wrote the last two).
_THOUGHTS = ("thought", "thoughts", "action_summary", "reflection")
_LABEL_ENDS = frozenset(":：*` \t")
_MOST_ACTIONS = 8  # actions that are read after the first


def parse_demonstrated_action(code: str, grammar: Grammar) -> Action | ParseError:
    """Parse what a person did in one step, in any known form; a text that is not exactly one action gives a ParseError.

    code: text of the action, without a thought. grammar: says what the numbers of its points mean. In code, calls that
    sleep before it and calls that wait after it are ignored. A scroll without its place gives a ParseError too. Never
    raises.
    """
    text = f"Action: {code}"
    mark = find_action(text, 0, grammar)
    try:
        if mark is None or mark.at:
            raise ParseFailure("it does not begin with an action", mark.at if mark else 0)
        raw, end = _parse_raw_call(text, mark, grammar)
        action = build_normalised_action(raw, grammar.space)
        if mark.kind == "call":
            call_form.check_nothing_follows(text, end)
        elif raw.behind or (mark.kind in _FOLLOWING and _FOLLOWING[mark.kind](text, end) >= 0):
            raise unsupported_action("several actions in one step", end)
        elif mark.kind == "command" and text[end:].strip(" \t\n`"):
            raise ParseFailure("more stands behind the action", end)
        if isinstance(action, act.Scroll) and not {"point", "start_point"} & normalise_call(raw)[1].keys():
            raise unsupported_action("a scroll without its place", mark.start)
        return action
    except ParseFailure as fault:
        return fault.error


def parse_response(text: str, grammar: Grammar | int) -> ParsedResponse:
    """Parse one model output into a thought and an action.

    text: as sampled. grammar: a Grammar, or a plain number as for `as_grammar`. All text before the end of thinking is
    thought; the first action after it counts. `finished` and `call_user` must stand alone: it is an error where the
    first action, or one of the next eight, is one of them beside an action of another kind. A box gives its centre.
    Never raises: a text without a valid action has a ParseError, with the reason, in place of its action.
    """
    grammar = as_grammar(grammar)
    if not grammar.thinks:
        parsed = (_parse_plain_tool if grammar.form == "tool_call" else _parse_plain)(text, grammar)
        if parsed is not None:
            return parsed
    return _parse_tolerant(text, grammar)


def _parse_tolerant(text: str, grammar: Grammar) -> ParsedResponse:
    begin = 0
    if grammar.thinks or THINKING_TAG.search(text):
        try:
            begin = find_thinking_end(
                text, grammar.thinks, lambda at, before: _find_action_extent(text, at, before, grammar)
            )
        except ParseFailure as fault:
            return ParsedResponse(_read_thought(text, 0, len(text)), fault.error)
    mark = find_action(text, begin, grammar)
    if mark is None:
        return ParsedResponse(_read_thought(text, begin, len(text)), ParseError("there is no action", len(text)))
    thought = _read_thought(text, begin, mark.at)
    if mark.kind in ("json", "tags"):
        thought = _without_label(thought)
    try:
        return ParsedResponse(thought, _parse_action(text, mark, grammar)[0])
    except ParseFailure as fault:
        return ParsedResponse(thought, fault.error)


def _parse_plain(text: str, grammar: Grammar) -> ParsedResponse | None:
    """Parse the commonest form, a thought and a plain call, without the full search; None for any other text."""
    if not text.startswith("Thought: "):
        return None
    end = text.find("\nAction: ", 8)
    action = call_form.parse_plain_call(text, end + 9, grammar.space) if end > 0 else None
    if action is None:
        return None
    thought = text[9:end]
    if "*" in thought or (("<" in thought or "[" in thought or "◁" in thought) and THINKING_TAG.search(thought)):
        return None
    if "\n" in thought and ACTION_LABEL.search(text, 9, end):
        return None
    return ParsedResponse(replace_surrogates(thought).strip(), action)


def _parse_plain_tool(text: str, grammar: Grammar) -> ParsedResponse | None:
    """Parse a thought and a plain tool call without the full search; None for any other text."""
    found = tool_form.parse_plain_tool_call(text, grammar)
    if found is None:
        return None
    raw, at = found
    before = text[:at]
    if "<" in before or "{" in before or "[" in before or "◁" in before:
        return None
    try:
        action = build_normalised_action(raw, grammar.space)
    except ParseFailure:
        return None
    return ParsedResponse(_without_label(_read_thought(text, 0, at)), action)


def _parse_action(text: str, mark: ActionMark, grammar: Grammar) -> tuple[Action, int]:
    """Parse the action at `mark`; return it and the offset of its end. Raises ParseFailure."""
    raw, end = _parse_raw_call(text, mark, grammar)
    action = build_normalised_action(raw, grammar.space)
    name = act.ACTION_NAMES[type(action)]
    for further in raw.behind:
        _check_alone(name, further)
    if end < len(text):
        _check_behind(text, end, mark, name, grammar)
    return action, end


def _parse_raw_call(text: str, mark: ActionMark, grammar: Grammar) -> tuple[RawCall, int]:
    match mark.kind:
        case "call":
            return call_form.parse_call(text, mark.start, grammar)
        case "json":
            return tool_form.parse_tool_call(text, mark.start, grammar)
        case "tags":
            return tool_form.parse_tagged_call(text, mark.start)
    return call_form.parse_command(text, mark.start)


_FOLLOWING = {
    "call": call_form.find_next_call,
    "json": tool_form.find_next_tool_call,
    "tags": tool_form.find_next_tagged_call,
}


def _check_behind(text: str, at: int, mark: ActionMark, first: str, grammar: Grammar) -> None:
    """Raise ParseFailure where an action from `at` on, or the `first`, must stand alone and does not."""
    following = _FOLLOWING.get(mark.kind)
    for _ in range(_MOST_ACTIONS if following else 0):
        start = following(text, at)
        if start < 0:
            return
        if mark.kind == "call":
            _check_alone(first, RawCall(call_form.CALL_START.match(text, start)[2], {}, start))
        try:
            raw, at = _parse_raw_call(text, ActionMark(start, start, mark.kind), grammar)
        except ParseFailure:
            return
        _check_alone(first, raw)


def _check_alone(first: str, further: RawCall) -> None:
    try:
        name = normalise_call(further)[0]
    except ParseFailure:
        return
    if name != first and not act.STANDALONE_ACTIONS.isdisjoint((name, first)):
        raise ParseFailure(f"{name if name in act.STANDALONE_ACTIONS else first} stands alone in a step", further.at)


def _find_action_extent(text: str, at: int, before: int, grammar: Grammar) -> tuple[int, int] | None:
    """Return (begin, end) of the first action after `at`; None where it does not begin before `before`, cannot be read,
    or is a command: without quotes its end is not known."""
    mark = find_action(text, at, grammar)
    if mark is None or mark.start >= before or mark.kind == "command":
        return None
    try:
        return mark.start, _parse_action(text, mark, grammar)[1]
    except ParseFailure:
        return None


def _read_thought(text: str, begin: int, end: int) -> str:
    """Return the thought before `end`: the text after its best label (`_THOUGHTS`), or without a label all of it,
    thinking included. begin: end of the thinking, in which labels do not count."""
    if begin == 0 and text.startswith("Thought: "):
        thought = text[9:end].rstrip()
        if "\n" not in thought and "*" not in thought and "<" not in thought:
            return replace_surrogates(thought.lstrip())
    begins: dict[str, int] = {}
    for label in ACTION_LABEL.finditer(text, begin, end):
        begins.setdefault(label[1].lower(), label.end())
    start = next((begins[name] for name in _THOUGHTS if name in begins), 0)
    thought = replace_surrogates(text[start:end])
    if "<" in thought or "[" in thought or "◁" in thought:
        thought = THINKING_TAG.sub("", thought)
    return thought.strip()


def _without_label(thought: str) -> str:
    """Remove an `Action:` at the end, which some models write before the tag of a tool call."""
    return _EMPTY_LABEL.sub("", thought).rstrip() if thought[-1:] in _LABEL_ENDS else thought


def serialise_action(action: Action, grammar: Grammar | int) -> str:
    """Write an action as text, in the form of `grammar`, which `parse_response` reads back.

    grammar: a Grammar, or a plain number n for the embedded model's: the point form on a grid of n cells an axis. What
    is read back has its points snapped to the coordinate space; where the grammar `thinks`, it is read only behind an
    end of thinking. Raises TypeError for what is no action.
    """
    grammar = as_grammar(grammar)
    format_action = tool_form.format_tool_call if grammar.form == "tool_call" else call_form.format_call
    return format_action(action, grammar)


def action_fields(action: Action, grammar: Grammar) -> dict[str, Any]:
    """Build the fields of a `store.schema.Step` that describe an action.

    They are action (its text, as `grammar` writes it), action_type (its name), x and y where it has a point, and for a
    drag x2 and y2, its end, as fractions of the screen. Raises TypeError for what is no action.
    """
    text = serialise_action(action, grammar)
    fields: dict[str, Any] = {"action": text, "action_type": act.ACTION_NAMES[type(action)]}
    if isinstance(action, act.Drag):
        start, end = action.start_point, action.end_point
        return fields | {"x": start.x, "y": start.y, "x2": end.x, "y2": end.y}
    point = getattr(action, "point", None)
    return fields | ({"x": point.x, "y": point.y} if point else {})
