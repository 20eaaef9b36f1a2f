"""Where a model's thinking ends. What stands before that is thought in every form, whatever it looks like.

The tags: `<think>`, `<thinking>`, `<seed:think>`, `<|begin_of_thought|>`, `[THINK]` and their kin. Where the prompt
itself opens the thinking (as many chat templates do) only the end is in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from flywheel.agent.parse_failure import ONLY_THOUGHT, ParseFailure, ambiguous

_NAMES = r"(?:seed:?|grounding_)?think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|scratchpad"
_WORD = rf"[ ]?(/?)[ ]?(?:{_NAMES})(?![\w:-])[ ]?[>▷\]]?"
TAG = re.compile(
    rf"[<◁\[](?=[ /|]{{0,3}}[abegrst])(?:{_WORD}|\|{{0,2}}(begin|end)_of_thought\|{{0,2}}>?)", re.IGNORECASE
)
# Where the answer ends for the model itself; what follows is another turn, made up.
_TURN = re.compile(r"<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<seed:eos>")
_LIKE_ACTION = re.compile(r"action\s*[:：]|<(?:tool_call|seed:tool_call|function=)|\w\(|[{]\s*['\"]", re.IGNORECASE)
_QUOTE = re.compile(r"\\.|(['\"])|\n", re.DOTALL)
_MOST_READINGS = 16

Covering = Callable[[int, int], tuple[int, int] | None]


def end(text: str, opened: bool, covering: Covering) -> int:
    """Where the last thinking ends; 0 where there is none. Raises ParseFailure where it does not end.

    opened: by the prompt. covering: of a place behind which an action is looked for and one before which it must
    begin, where the action that is read there begins and ends; a tag within an action is part of what it types.
    """
    at, depth, readings = 0, int(opened), 0
    inside = -1  # where the action ends that the last tag stood in
    for tag in TAG.finditer(text):
        if tag.start() < inside:
            continue
        if depth == 0:
            if at == 0 and _TURN.search(text, 0, tag.start()) and covering(at, tag.start()):
                break
            readings += 1
            found = covering(at, tag.start()) if readings <= _MOST_READINGS else None
            if found and found[0] < tag.start() and tag.end() <= found[1]:
                if _may_be_cut(text, tag.end(), found[1]):
                    raise ambiguous("an end of thinking, or part of a text that is typed?", tag.start())
                inside = found[1]
                continue
        if _closes(tag):
            depth = max(0, depth - 1)
            at = tag.end() if depth == 0 else at
        else:
            depth += 1
    if depth:
        raise ParseFailure(f"{ONLY_THOUGHT}: it does not end", len(text))
    return at


def without_tags(text: str) -> str:
    return TAG.sub("", text)


def _closes(tag: re.Match[str]) -> bool:
    return tag[1] == "/" or (tag[2] or "").lower() == "end"


def _may_be_cut(text: str, at: int, end: int) -> bool:
    """Whether what is typed behind the tag looks like the action itself, which a draft's open quote swallowed."""
    like = _LIKE_ACTION.search(text, at, end)
    if like is None:
        return False
    return sum(1 for quote in _QUOTE.finditer(text, at, end) if quote[0] == "\n" or quote[1]) > 1
