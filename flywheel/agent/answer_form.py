"""All answers in the form that a model is asked for, as a formal grammar: what a constrained model is held to.

The grammar is made of the action lines that prompts tell (`templates`), in the syntax of Lark as llguidance reads it.
The parser reads every text of it. It holds what `parser.serialise` writes, but for keys of other signs, control
characters, and long texts (tested).
"""

from __future__ import annotations

import re

from flywheel.agent.grammar import Grammar
from flywheel.agent.templates import action_lines
from flywheel.agent.vocabulary import DIRECTIONS, MAX_KEYS
from flywheel.errors import BadInput
from flywheel.settings.policy import CONSTRAINED

_ARGUMENT = re.compile(r"(\w+)='([^']*)'")
# A thought is one line, without the signs that calls, tags and code begin with.
_RULES = r"""
start: "Thought: " thought "\nAction: " action
thought[max_tokens={tokens}]: THOUGHT
THOUGHT: /[^\x00-\x1f\x7f(){{}}\[\]<>`\\]+/
action: {actions}
spot: "<point>" X " " Y "</point>"
X: /{x}/
Y: /{y}/
TEXT: /([^\x00-\x1f\x7f'\\]|\\['"\\n]){{1,2000}}/
KEY: /[a-z0-9]{{1,20}}|[.\/;=]/
KEYS: /[a-z0-9]{{1,20}}( [a-z0-9]{{1,20}}){{0,{more_keys}}}( [.\/;=])?/
DIRECTION: {directions}
JSON: /\{{("[A-Za-z0-9_]{{1,40}}": ("[^"'\\\n\r]{{0,2000}}"|-?[1-9][0-9]{{0,8}}|true|false|null))?\}}/
"""


def lark(grammar: Grammar, tokens: int) -> str:
    """tokens: of a thought, at most. Raises BadInput for a form that is not written here."""
    if grammar.form not in CONSTRAINED["template"] or grammar.thinks:
        raise BadInput(
            f"answers of the form {grammar.form} cannot be constrained",
            where="policy.constrained",
            fix=f"set it to never, or policy.template to {' or '.join(CONSTRAINED['template'])}, without policy.thinks",
        )
    calls = [_call(line) for line in action_lines(grammar)]
    return _RULES.format(
        tokens=tokens,
        actions="\n    | ".join([*calls, '"finished()"']),
        x=_number(grammar, 0),
        y=_number(grammar, 1),
        more_keys=MAX_KEYS - 1,
        directions=" | ".join(f'"{direction}"' for direction in DIRECTIONS),
    )


def _call(line: str) -> str:
    """From `type(content='xxx')  # about it` to a rule's right side."""
    said = line.partition("  #")[0]
    parts, at = [], 0
    for argument in _ARGUMENT.finditer(said):
        parts += [f'"{said[at : argument.start(2)]}"', _value(argument[2])]
        at = argument.end(2)
    return " ".join([*parts, f'"{said[at:]}"'])


def _value(example: str) -> str:
    """What stands in the place of a line's example."""
    if example.startswith("<point>"):
        return "spot"
    if example.startswith("{"):
        return "JSON"
    if " or " in example:
        return "DIRECTION"
    return {"ctrl c": "KEYS", "left": "KEY"}.get(example, "TEXT")


def _number(grammar: Grammar, axis: int) -> str:
    """A coordinate as `call_form.write` writes it, as a regular expression."""
    if grammar.space.kind == "fractions":
        return r"0\.[0-9]{4}"
    size = grammar.space.size[axis]
    if grammar.space.kind == "points" and size <= 100:
        return "|".join(f"{number:02d}" for number in range(size))
    return up_to(size - 1)


def up_to(last: int) -> str:
    """A regular expression for the whole numbers from 0 to `last`, without leading zeros."""
    digits = str(last)
    found = ["0"] if last else []
    if len(digits) > 1:
        found.append(f"[1-9][0-9]{{0,{len(digits) - 2}}}")
    for place, digit in enumerate(digits):
        lowest = 1 if place == 0 else 0
        if int(digit) > lowest:
            rest = len(digits) - place - 1
            found.append(f"{digits[:place]}[{lowest}-{int(digit) - 1}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return "|".join([*found, digits])
