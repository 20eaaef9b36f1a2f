"""Read strings, numbers, key names and lenient JSON from a model's text, and escape and spell them for writing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from flywheel.agent.actions import MAX_JSON_DEPTH, ParseError, replace_surrogates
from flywheel.utils.json_text import refuse_constant

SYNONYMS = yaml.safe_load(resources.files("flywheel.agent.parsing").joinpath("synonyms.yaml").read_text("utf-8"))

# Where a text is understood and refused all the same, the reason begins with one of these phrases.

NO_SUCH_ACTION = "no such action here"  # understood, but nothing of the action set equals it
AMBIGUOUS = "ambiguous"  # it may mean two things, and what models mean is not guessed
ONLY_THOUGHT = "only thinking"  # the thinking does not end, so nothing that was written is meant yet


class ParseFailure(Exception):
    """Signal a text that cannot be parsed; `parser.parse_response` turns it into a `ParseError` (`error`).

    reason: what is wrong. position: offset of the fault in the text, in characters.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.error = ParseError(reason, position)


def unsupported_action(what: str, at: int) -> ParseFailure:
    """Make the failure for an action that is understood, but that the action set lacks.

    what: the action, in words. at: offset of it in the text.
    """
    return ParseFailure(f"{NO_SUCH_ACTION}: {what[:60]}", at)


def ambiguous_text(what: str, at: int) -> ParseFailure:
    """Make the failure for a text with several meanings. what: these, in words. at: offset of the text."""
    return ParseFailure(f"{AMBIGUOUS}: {what}", at)


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True)
class RawCall:
    """Hold a call as the model wrote it, before its names are translated.

    values: arguments by the model's own names. at: character offset of the call. inline: positional arguments. tool:
    the module or tool that the function belongs to. places: character offset of each value, by name. behind: the calls
    that follow in the same list.
    """

    name: str
    values: Mapping[str, Any]
    at: int
    inline: tuple[Any, ...] = ()
    tool: str = ""
    places: Mapping[str, int] | None = None
    behind: tuple[RawCall, ...] = ()


@lru_cache(maxsize=1024)
def fold_name(word: str) -> str:
    """Fold the spellings of a name to one: `doubleClick`, `Double Click`, `DOUBLE-CLICK` -> double_click."""
    if not word.isupper():
        word = _CAMEL.sub("_", word)
    return word.strip().lower().replace(" ", "_").replace("-", "_")


def is_number(value: Any) -> bool:
    """Tell whether `value` is a number, or the text of one, as `to_number` reads it."""
    return to_number(value) is not None


def to_number(value: Any) -> float | None:
    """Convert a number or a numeric text to a number; None for anything else, or if its size is 1e15 or more."""
    if isinstance(value, str) and len(value) < 20:
        try:
            value = float(value)
        except ValueError:
            return None
    return value if type(value) in (int, float) and abs(value) < 1e15 else None


def to_flag(value: Any) -> bool:
    """Tell whether `value` means true: True, or the text `true`, `1` or `yes`."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes"))


# Quoted strings and numbers. Every pattern takes time linear in the text.

# Opening quote -> what may close it.
QUOTES = {"'": "'", '"': '"', "‘": "‘’", "’": "‘’", "“": "“”", "”": "“”", "＇": "＇", "＂": "＂"}

_QUOTE = re.compile(r"\\.|(?P<quote>['\"‘’“”＇＂])", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "/": "/", "'": "'", '"': '"', "\\": "\\"}
# Beginning of a Windows path whose backslashes are not escaped: `C:\new`, `%TEMP%\new`, `\\server\new`.
_ROOT = r"(?:(?<![\w\\])[A-Za-z]:|%\w{1,40}%|(?:^|(?<=['\"]))\\\\[\w.-]{1,80})"
_PATH = re.compile(_ROOT + r"\\(?![\\'\"/]|u[0-9a-fA-F]{4}|\Z)")
_LIKE_PATH = re.compile(rf"({_ROOT}\\)([ntrbf])")
_NO_ESCAPE = re.compile(r"\\(?![ntr/'\"\\]|u[0-9a-fA-F]{4})")
_LINE_ENDS = {"n": "000a", "t": "0009", "r": "000d", "b": "0008", "f": "000c"}
_ESCAPED = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})

_TAGS = re.compile(r"</?(?:point|bbox|box)>|<\|(?:box|point)_(?:start|end)\|>|[{}]")
_AXIS = re.compile(r"['\"]?\b([xyXY])['\"]?\s*[:=：＝]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NUMBERS = re.compile(r"[\s,，;()（）\[\]]*(-?\d+(?:\.\d+)?(?:[\s,，;()（）\[\]]+-?\d+(?:\.\d+)?)*)[\s,，;()（）\[\]]*")
_LONGEST_POINT = 200  # characters; longer text is no point, and is not searched for one


def find_closing_quote(text: str, at: int, after: re.Pattern[str], spent: set[str]) -> int:
    """Find the quote that ends the string opened at the offset `at`; return its offset, -1 where it is not closed.

    Content may hold unescaped quotes ("it's"), so the first matching quote that is followed by `after` ends the string.
    If there is none, the first matching quote ends it, or an earlier quote of another kind that is followed by `after`,
    because some models mix kinds.

    after: pattern of what may follow a string. spent: kinds of quotes that have no such end in the rest of the text;
    the caller passes the same set for all strings of one text, so that the text is searched once per kind.
    """
    kinds, first, other = QUOTES[text[at]], -1, -1
    known = kinds in spent
    for quote in _QUOTE.finditer(text, at + 1):
        if quote.lastgroup is None:
            continue
        same = quote[0] in kinds
        if (not known if same else other < 0) and after.match(text, quote.end()):
            if same:
                return quote.start()
            other = quote.start()
        if same and first < 0:
            first = quote.start()
            if known:
                break
    spent.add(kinds)
    return other if 0 <= other < first or first < 0 else first


def has_doubled_quote(text: str, at: int, end: int) -> bool:
    """Tell whether a string's quote is also, unescaped, the first or last character of its content, as in `''a'`.

    at, end: offsets of the opening and the closing quote.
    """
    inner = text[at + 1 : end]
    if not inner or (text[at] not in (inner[0], inner[-1])):
        return False
    return inner[0] == text[at] or not inner[:-1].endswith("\\")


def find_next_quote(text: str, at: int) -> int:
    """Find the first unescaped quote of any kind after the offset `at`; return its offset, -1 where there is none."""
    return next((quote.start() for quote in _QUOTE.finditer(text, at + 1) if quote.lastgroup), -1)


def escape_text(text: str) -> str:
    """Escape backslashes, single quotes, line ends and tabs in `text` for a text in single quotes in an action.

    Returns it without the quotes; `unescape_text` restores it.
    """
    return escape_path_lookalikes(text.translate(_ESCAPED))


def escape_path_lookalikes(written: str) -> str:
    """Rewrite an escape like `\\n` after `A:` as `\\u000a`, so that `A:\\nyes` is not read as a Windows path.

    written: an escaped text.
    """
    if ":\\" not in written and "%\\" not in written and "\\\\" not in written:
        return written
    return _LIKE_PATH.sub(lambda found: f"{found[1]}u{_LINE_ENDS[found[2]]}", written)


def unescape_text(text: str) -> str:
    """Resolve the backslash escapes in `text`; unknown ones stay as they are."""
    return replace_surrogates(_ESCAPE.sub(_unescaped, text) if "\\" in text else text)


def read_string_content(text: str, at: int) -> str:
    """Unescape `text`, the content of a string; return a Windows path unchanged. at: its offset, for the error.

    Raises ParseFailure where a path's `\\n` may also be a line end: only an invalid escape (`\\U`) shows that the
    backslashes are not escapes.
    """
    if not looks_like_path(text):
        return unescape_text(text)
    if "\\\\" in text[2:] or "\\'" in text or '\\"' in text or text.endswith("\\n") or not _NO_ESCAPE.search(text):
        raise ambiguous_text(f"a path or line ends? escape the backslashes of {text[:40]!r}", at)
    return replace_surrogates(text)


def looks_like_path(text: str) -> bool:
    """Tell whether `text` holds the beginning of a Windows path whose backslashes are not escaped, as `C:\\new`."""
    return "\\" in text and _PATH.search(text) is not None


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[0])


def parse_numbers(text: str) -> list[float]:
    """List the numbers of a point (two) or a box (four) in any spelling; an empty list for any other text."""
    if len(text) > _LONGEST_POINT:
        return []
    text = _TAGS.sub(" ", text)
    if "y" in text or "Y" in text:  # `x=100, y=200`, in this order alone
        axes = "".join(_AXIS.findall(text)).lower()
        if axes not in ("xy", "xyxy"):
            return []
        text = _AXIS.sub(" ", text)
    numbers = _NUMBERS.fullmatch(text)
    return [float(number) for number in _NUMBER.findall(numbers[1])] if numbers else []


# Keys: from the names that models write, alone or combined, to words in lower case and back.

MODIFIERS = frozenset(SYNONYMS["modifiers"].split())
_SIGNS: dict[str, str] = SYNONYMS["signs"]
_FOREIGN = {word: key for key, words in SYNONYMS["foreign_keys"].items() for word in words.split()}
_LONGEST = 200  # characters
_COMMAS = re.compile(r"(?<=[^\s,])\s*,\s*(?=[^\s,])")
_LIST = re.compile(r"[\[(](?:\S.*|.*['\"][^'\"\s]+['\"].*)[\])]", re.DOTALL)
_DANGLING_END = re.compile(r"[^+]\+\Z")
_NAME = re.compile(r"\w+(?:-+\w+)*")
_ITEM = re.compile(r"'([^']+)'|\"([^\"]+)\"|([\w+-]+)")
_ITEMS = re.compile(rf"\s*(?:{_ITEM.pattern})\s*(?:,\s*(?:{_ITEM.pattern})\s*)*,?\s*")


def split_keys(text: str, at: int = 0) -> list[str]:
    """Split a key combination (`Ctrl+Shift t`, `ctrl, c`, `['ctrl', 'c']`, `ctrl-c`) into the keys' names.

    A lone separator is itself a key. at: offset of the text, for the error. Raises ParseFailure for what is no key, and
    where a comma may be a key or a separator, or keys are pressed in turn (`ctrl+a delete`).
    """
    if len(text) > _LONGEST:
        raise ParseFailure("too long for keys", at)
    text = text.lower()
    if text[:1] in ("[", "(") and len(text) > 3 and _LIST.fullmatch(text):
        if not _ITEMS.fullmatch(text, 1, len(text) - 1):
            raise ParseFailure(f"not a list of keys: {text[:40]!r}", at)
        return [key for item in _ITEM.findall(text[1:-1]) for key in split_keys("".join(item), at)]
    if "," in text and text != ",":
        text = _without_commas(text, at)
    words, keys = text.split(), []
    if words and (_DANGLING_END.search(words[-1]) or (words[0][0] == "+" and words[0].strip("+"))):
        raise ParseFailure(f"a key is missing beside the plus: {text[:40]!r}", at)
    for index, word in enumerate(words):
        if word == "+":
            keys += ["+"] if index in (0, len(words) - 1) else []
            continue
        parts = [key for part in word.split("+") if part for key in _hyphened(part, at)]
        if len(parts) > 1 and index + 1 < len(words) and words[index + 1] != "+" and parts[-1] not in MODIFIERS:
            raise ambiguous_text(f"keys together, or one after the other? {text[:40]!r}", at)
        keys += parts
        keys += ["+"] if word.endswith("++") else []
    return keys if words or not text else ["space"]


def _without_commas(text: str, at: int) -> str:
    """Replace commas between keys by spaces (`ctrl, c`, `ctrl,c`); a comma after a plus, or alone, is itself a key."""
    words = text.split()
    if "," in words[1:-1] or (words and len(words[-1]) > 1 and words[-1][-1] == "," and words[-1][-2] != "+"):
        raise ambiguous_text(f"the key comma, or one that separates? {text[:40]!r}", at)
    return _COMMAS.sub(lambda found: found[0] if text[found.start() - 1] == "+" else " ", text)


def _hyphened(word: str, at: int) -> list[str]:
    """Split `ctrl-c` into ctrl and c; other hyphens belong to the name of a key."""
    if "-" in word and len(word) > 1:
        first, _, rest = word.partition("-")
        if first in MODIFIERS and rest:
            return [first, *_hyphened(rest, at)]
    if len(word) > 1 and not _NAME.fullmatch(word):
        raise ParseFailure(f"no key is called {word[:20]!r}", at)
    return [_SIGNS.get(word) or _FOREIGN.get(word, word)]


def spell_keys(keys: tuple[str, ...]) -> list[str]:
    """Replace the separator keys `+` and `,` by the words `plus` and `comma`; other keys stay as they are."""
    return [{"+": "plus", ",": "comma"}.get(key, key) for key in keys]


# JSON as models write it: strict JSON, and the usual slips, read in linear time. The slips: single and curly quotes,
# quotes inside a string that nobody escaped, real line ends in strings, paths in Windows, trailing commas, keys without
# quotes, Python's True, False and None, full-width punctuation, and closing brackets left out before an end tag or the
# end. What is cut off in the middle is no value: half a number may be another number.

_LONGEST_NUMBER = 400  # digits; a double has no more than 309 before its point

_SPACE = re.compile(r"\s*")
_JSON_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_JSON_KEY = re.compile(r"[^\n{}\[\]:=\"]{0,200}")
_JSON_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Allowed after a string; a comma only where JSON follows it.
_AFTER_JSON_STRING = re.compile(
    r"\s*(?:[:：}\]]|$|</|[,，]\s*(?:['\"‘“＇＂{}\[\]\d-]|(?:[Tt]rue|[Ff]alse|null|None)\b|[A-Za-z_]\w*\s*[:：]))"
)
# Where missing closing brackets are supplied: before an end tag, at the end of the text.
_END_TAG = re.compile(r"\s*(?:</[\w:]{1,20}>|`{3}|<\||\Z)")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


STRICT_JSON = json.JSONDecoder(strict=False, parse_constant=refuse_constant)  # allows real line ends, no other slip


def parse_json(text: str, at: int, *, paths: bool = False) -> tuple[Any, int]:
    """Parse the JSON value that begins at the offset `at`, leniently; return it and the offset after it.

    paths: whether strings may hold Windows paths with unescaped backslashes. Raises ParseFailure where it cannot be
    read.
    """
    if not (paths and looks_like_path(text)):
        try:
            return STRICT_JSON.raw_decode(text, at)
        except RecursionError:
            raise ParseFailure("nested too deeply", at) from None
        except ValueError:
            pass
    return _JsonReader(text, paths).value(at, 0)


class _JsonReader:
    """Read one text leniently. Each method reads from `at`, returns (value, end offset), and raises ParseFailure."""

    def __init__(self, text: str, paths: bool) -> None:
        self.text = text
        self.paths = paths
        self.spent: set[str] = set()
        self.cut = False  # whether the text ends with a word or a number, which may be half of one

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        at = _skip_space(self.text, at)
        sign = self.text[at : at + 1]
        if sign in ("{", "["):
            if depth >= MAX_JSON_DEPTH:
                raise ParseFailure("nested too deeply", at)
            return (self.object if sign == "{" else self.array)(at + 1, depth + 1)
        if sign and sign in QUOTES:
            return self.string(at)
        number = _JSON_NUMBER.match(self.text, at)
        if number:
            return _to_json_number(number)
        word = _JSON_WORD.match(self.text, at)
        if word and word[0].lower() in _CONSTANTS:
            return _CONSTANTS[word[0].lower()], word.end()
        raise ParseFailure("a JSON value was expected", at)

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text, found = self.text, {}
        while True:
            before, at = at, _skip_comma(text, at)
            if text.startswith("}", at):
                return found, at + 1
            self.cut = self.cut or (at == len(text) and "," in text[before:at])
            if found and _END_TAG.match(text, at) and not self.cut:
                return found, at
            if at < len(text) and text[at] in QUOTES:
                begin = at
                key, at = self.string(at)
                if not _JSON_KEY.fullmatch(key):
                    raise ParseFailure("a key was expected", begin)
            else:
                word = _JSON_WORD.match(text, at)
                if word is None:
                    raise ParseFailure("a key or a closing brace was expected", at)
                key, at = word[0], word.end()
            at = _skip_space(text, at)
            if not text.startswith((":", "："), at):
                raise ParseFailure("a colon was expected", at)
            found[key], at = self.value(at + 1, depth)
            self.cut = at == len(text) and text[-1:].isalnum()

    def array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            at = _skip_comma(self.text, at)
            if self.text.startswith("]", at):
                return found, at + 1
            if found and self.text.startswith("}", at):
                return found, at
            value, at = self.value(at, depth)
            found.append(value)

    def string(self, at: int) -> tuple[str, int]:
        end = find_closing_quote(self.text, at, _AFTER_JSON_STRING, self.spent)
        if end < 0:
            raise ParseFailure("the string is not closed", at)
        if has_doubled_quote(self.text, at, end):
            raise ambiguous_text("two quotes where one ends a text", at)
        written = self.text[at + 1 : end]
        return (read_string_content(written, at + 1) if self.paths else unescape_text(written)), end + 1


def _to_json_number(found: re.Match[str]) -> tuple[int | float, int]:
    if len(found[0]) > _LONGEST_NUMBER:
        raise ParseFailure("the number is too long", found.start())
    return (int(found[0]) if found[0].lstrip("+-").isdecimal() else float(found[0])), found.end()


def _skip_comma(text: str, at: int) -> int:
    at = _skip_space(text, at)
    return _skip_space(text, at + 1) if text.startswith((",", "，"), at) else at


def _skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()
