"""JSON as models write it: what strict JSON is, and its usual slips, read in linear time and never evaluated.

The slips: single and curly quotes, quotes inside a string that nobody escaped, real line ends in strings, paths in
Windows, trailing commas, keys without quotes, Python's True, False and None, full-width punctuation, and closing
brackets left out before an end tag or the end. What is cut off in the middle is no value: half a number may be
another number.
"""

from __future__ import annotations

import json
import re
from typing import Any

from flywheel.agent.actions import MAX_DEPTH
from flywheel.agent.parse_failure import ParseFailure, ambiguous
from flywheel.agent.strings import QUOTES, closing, content_of, double_quoted, like_path, unescape

_LONGEST_NUMBER = 400  # digits; a double has no more than 309 before its point

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"[^\n{}\[\]:=\"]{0,200}")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# What may follow a string: of a comma only one that something of JSON follows.
_AFTER = re.compile(
    r"\s*(?:[:：}\]]|$|</|[,，]\s*(?:['\"‘“＇＂{}\[\]\d-]|(?:[Tt]rue|[Ff]alse|null|None)\b|[A-Za-z_]\w*\s*[:：]))"
)
# Where brackets that are missing may be thought: before an end tag, at the end of the text.
_END_TAG = re.compile(r"\s*(?:</[\w:]{1,20}>|`{3}|<\||\Z)")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def read(text: str, at: int, *, paths: bool = False) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. Raises ParseFailure.

    paths: a model's own text, in whose strings a path in Windows may stand as it is.
    """
    if not (paths and like_path(text)):
        try:
            return _DECODER.raw_decode(text, at)
        except RecursionError:
            raise ParseFailure("nested too deeply", at) from None
        except ValueError:
            pass
    return _Reader(text, paths).value(at, 0)


def read_strict(text: str, at: int) -> tuple[Any, int]:
    """As `read`, without slips. Raises ValueError and RecursionError."""
    return _DECODER.raw_decode(text, at)


class _Reader:
    """One reading of a text. Each method begins at `at`, raises ParseFailure, and gives where it ended."""

    def __init__(self, text: str, paths: bool) -> None:
        self.text = text
        self.paths = paths
        self.spent: set[str] = set()
        self.cut = False  # the text ends with a word or a number, which may be half of one

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        at = _skip(self.text, at)
        sign = self.text[at : at + 1]
        if sign in ("{", "["):
            if depth >= MAX_DEPTH:
                raise ParseFailure("nested too deeply", at)
            return (self.object if sign == "{" else self.array)(at + 1, depth + 1)
        if sign and sign in QUOTES:
            return self.string(at)
        number = _NUMBER.match(self.text, at)
        if number:
            return _number(number)
        word = _WORD.match(self.text, at)
        if word and word[0].lower() in _CONSTANTS:
            return _CONSTANTS[word[0].lower()], word.end()
        raise ParseFailure("a JSON value was expected", at)

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text, found = self.text, {}
        while True:
            before, at = at, _comma(text, at)
            if text.startswith("}", at):
                return found, at + 1
            self.cut = self.cut or (at == len(text) and "," in text[before:at])
            if found and _END_TAG.match(text, at) and not self.cut:
                return found, at
            if at < len(text) and text[at] in QUOTES:
                begin = at
                key, at = self.string(at)
                if not _KEY.fullmatch(key):
                    raise ParseFailure("a key was expected", begin)
            else:
                word = _WORD.match(text, at)
                if word is None:
                    raise ParseFailure("a key or a closing brace was expected", at)
                key, at = word[0], word.end()
            at = _skip(text, at)
            if not text.startswith((":", "："), at):
                raise ParseFailure("a colon was expected", at)
            found[key], at = self.value(at + 1, depth)
            self.cut = at == len(text) and text[-1:].isalnum()

    def array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            at = _comma(self.text, at)
            if self.text.startswith("]", at):
                return found, at + 1
            if found and self.text.startswith("}", at):
                return found, at
            value, at = self.value(at, depth)
            found.append(value)

    def string(self, at: int) -> tuple[str, int]:
        end = closing(self.text, at, _AFTER, self.spent)
        if end < 0:
            raise ParseFailure("the string is not closed", at)
        if double_quoted(self.text, at, end):
            raise ambiguous("two quotes where one ends a text", at)
        written = self.text[at + 1 : end]
        return (content_of(written, at + 1) if self.paths else unescape(written)), end + 1


def _number(found: re.Match[str]) -> tuple[int | float, int]:
    if len(found[0]) > _LONGEST_NUMBER:
        raise ParseFailure("the number is too long", found.start())
    return (int(found[0]) if found[0].lstrip("+-").isdecimal() else float(found[0])), found.end()


def _comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text.startswith((",", "，"), at) else at


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()
