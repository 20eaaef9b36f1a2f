"""JSON as models write it: what strict JSON is, and its usual slips, read in linear time and never evaluated.

The slips: single and curly quotes, quotes inside a string that nobody escaped, real line ends in strings, trailing
commas, keys without quotes, Python's True, False and None, full-width punctuation, and closing braces left out before
an end tag. What is cut off in the middle is no value: half a number may be another number.
"""

from __future__ import annotations

import json
import re
from typing import Any

from flywheel.agent.actions import MAX_DEPTH
from flywheel.agent.faults import Fault
from flywheel.agent.strings import QUOTES, closing, unescape

_LONGEST_NUMBER = 400  # digits; a double has no more than 309 before its point

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# What may follow a string: of a comma only one that something of JSON follows.
_AFTER = re.compile(
    r"\s*(?:[:：}\]]|$|</|[,，]\s*(?:['\"‘“＇＂{}\[\]\d-]|(?:[Tt]rue|[Ff]alse|null|None)\b|[A-Za-z_]\w*\s*[:：]))"
)
_END_TAG = re.compile(r"\s*</tool_call>")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def read(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. Raises Fault."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise Fault("nested too deeply", at) from None
    except ValueError:
        return _Reader(text).value(at, 0)


class _Reader:
    """One reading of a text. Each method begins at `at`, raises Fault, and gives where it ended."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spent: set[str] = set()

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        at = _skip(self.text, at)
        sign = self.text[at : at + 1]
        if sign in ("{", "["):
            if depth >= MAX_DEPTH:
                raise Fault("nested too deeply", at)
            return (self.object if sign == "{" else self.array)(at + 1, depth + 1)
        if sign and sign in QUOTES:
            return self.string(at)
        number = _NUMBER.match(self.text, at)
        if number:
            return _number(number)
        word = _WORD.match(self.text, at)
        if word and word[0].lower() in _CONSTANTS:
            return _CONSTANTS[word[0].lower()], word.end()
        raise Fault("a JSON value was expected", at)

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text, found = self.text, {}
        while True:
            at = _comma(text, at)
            if text.startswith("}", at):
                return found, at + 1
            if found and _END_TAG.match(text, at):
                return found, at
            if at < len(text) and text[at] in QUOTES:
                key, at = self.string(at)
            else:
                word = _WORD.match(text, at)
                if word is None:
                    raise Fault("a key or a closing brace was expected", at)
                key, at = word[0], word.end()
            at = _skip(text, at)
            if not text.startswith((":", "："), at):
                raise Fault("a colon was expected", at)
            found[key], at = self.value(at + 1, depth)

    def array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            at = _comma(self.text, at)
            if self.text.startswith("]", at):
                return found, at + 1
            value, at = self.value(at, depth)
            found.append(value)

    def string(self, at: int) -> tuple[str, int]:
        end = closing(self.text, at, _AFTER, self.spent)
        if end < 0:
            raise Fault("the string is not closed", at)
        return unescape(self.text[at + 1 : end]), end + 1


def _number(found: re.Match[str]) -> tuple[int | float, int]:
    if len(found[0]) > _LONGEST_NUMBER:
        raise Fault("the number is too long", found.start())
    return (int(found[0]) if found[0].lstrip("+-").isdecimal() else float(found[0])), found.end()


def _comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text.startswith((",", "，"), at) else at


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()
