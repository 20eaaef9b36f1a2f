"""What the words of other models mean: from a call as it was written, in any text form, to the grammar's own words.

One table of names and one of parameters for all forms (call, JSON, tags, commands). A parameter that is known and
changes nothing is let pass, one that changes the meaning is honoured or refused, one that is not known is refused.
The tables themselves are in `synonyms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.agent.by_arguments import FINISHED, RENAMED
from flywheel.agent.coordinates import Space
from flywheel.agent.parse_failure import ParseFailure, ambiguous, no_such_action
from flywheel.agent.positional import by_position
from flywheel.agent.synonyms import ABSENT, CODE, KEYS, NAMES, PARAMETERS, TAKES, TOOLS
from flywheel.agent.vocabulary import Arguments, build, numbers_of, said
from flywheel.agent.written_call import Said, folded

_NO_TEXT = "no input text"  # GUI-R1's word for none
_NO_POINT = [-100, -100]  # and its point


def is_known(name: str) -> bool:
    """Whether text that begins with this name and a bracket is a call of an action, here or elsewhere."""
    return folded(name) in _EVERY


def is_parameter(word: str) -> bool:
    return word in PARAMETERS or folded(word) in PARAMETERS


def action_of(call: Said, space: Space) -> Action:
    """Raises ParseFailure."""
    name, values, places = in_own_words(call)
    return build(Arguments(name, values, call.at, space, places))


def in_own_words(call: Said) -> tuple[str, dict[str, Any], Mapping[str, int]]:
    """The action's name, its arguments by the grammar's names, and where those stand."""
    name, places, written = folded(call.name), {}, call.places or {}
    known = NAMES.get(name)
    if known is None and name in ABSENT:
        raise no_such_action(name, call.at)
    if known is None and name not in _RENAMED and name not in KEYS:
        raise ParseFailure(f"unknown action {call.name[:40]!r}", call.at)
    values: dict[str, Any] = by_position(name, call) if call.inline else {}
    for word, value in call.values.items():
        known = PARAMETERS.get(word)
        if known is None:
            known = PARAMETERS.get(folded(word))
            if known is None:
                raise ParseFailure(f"unknown parameter {word[:40]!r}", written.get(word, call.at))
        if not known or value is None:
            continue
        if known in values and values[known] != value:
            raise ambiguous(f"{known} is given twice", written.get(word, call.at))
        values[known] = value
        if word in written:
            places[known] = written[word]
    if "content" in values and values["content"] == _NO_TEXT and "input_text" in call.values:
        del values["content"]
    if "point" in values and _says_nothing(values["point"], call):
        del values["point"]
    if "x" in values or "x1" in values or "x2" in values:
        _join_axes(values, call.at)
    turn = _RENAMED.get(name)
    if turn is not None:
        name = turn(values, call)
    elif name in KEYS:
        name, values = "hotkey", {"key": KEYS[name]}
    known = NAMES[name]
    if name == "press" and call.tool != CODE and "key" in values and "key" not in call.values:
        raise ambiguous("press: held down, or pressed and let go? write press(key=...) or hotkey(key=...)", call.at)
    finish = FINISHED.get(known)
    if finish is not None:
        known = finish(known, values, call)
    takes = TAKES.get(known)
    if takes is not None and not takes.issuperset(values):
        _refuse_extra(known, values, takes, call.at)
    return known, values, places


def _says_nothing(point: Any, call: Said) -> bool:
    """GUI-R1's placeholder, or `element` where it names the thing in words (Holo) and is no point (AutoGLM)."""
    return point == _NO_POINT or ("element" in call.values and isinstance(point, str) and not numbers_of(point))


def _refuse_extra(name: str, values: Mapping[str, Any], takes: frozenset[str], at: int) -> None:
    for extra, value in values.items():
        if extra in takes or value in ([], "", False, "False", "false"):
            continue
        if name == "type" and extra == "point":
            raise no_such_action("to click and type in one action", at)
        raise no_such_action(f"{name} with {extra} {said(value)[:20]}", at)


def _join_axes(values: dict[str, Any], at: int) -> None:
    """`x=`, `y=` and their kin to points."""
    pairs = (
        ("x", "y", "end_point" if "x2" not in values and "end_point" in values else "point"),
        ("x1", "y1", "start_point"),
        ("x2", "y2", "end_point"),
    )
    for across, down, name in pairs:
        if across in values or down in values:
            place = [values.pop(across, None), values.pop(down, None)]
            if None in place or name in values:
                raise ParseFailure(f"not a point: {said(place)[:40]!r}", at)
            values["point" if name == "end_point" and across == "x" else name] = place


def _gesture(values: dict[str, Any], call: Said) -> str:
    """CogAgent's keys together: they go down, one is pressed, they go up."""
    names, keys = [], []
    for one in values.pop("actions", ()):
        name, given, _ = in_own_words(one) if isinstance(one, Said) else ("", {}, {})
        names.append(name)
        keys.append(given.get("key"))
    held = names.count("press")
    if names != ["press"] * held + ["hotkey"] + ["release"] * held or set(keys[:held]) != set(keys[held + 1 :]):
        raise no_such_action("a gesture of other keys than one with others held", call.at)
    values["key"] = keys[: held + 1]
    return "hotkey"


_RENAMED = RENAMED | {"gesture": _gesture}
_EVERY = frozenset({*NAMES, *KEYS, *_RENAMED, *ABSENT, *TOOLS})
