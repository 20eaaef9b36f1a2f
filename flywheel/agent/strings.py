"""Quoted strings and numbers in a model's text: what the call form and the tool form read alike.

Every pattern takes time linear in the text: none of them can be made to try a stretch of text twice.
"""

from __future__ import annotations

import re

from flywheel.agent.actions import whole
from flywheel.agent.parse_failure import ambiguous

# Opening quote -> what may close it.
QUOTES = {"'": "'", '"': '"', "‘": "‘’", "’": "‘’", "“": "“”", "”": "“”", "＇": "＇", "＂": "＂"}

_QUOTE = re.compile(r"\\.|(?P<quote>['\"‘’“”＇＂])", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "/": "/", "'": "'", '"': '"', "\\": "\\"}
# The begin of a path in Windows whose backslash nobody escaped: `C:\new`, `%TEMP%\new`, `\\server\new`.
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


def closing(text: str, at: int, after: re.Pattern[str], spent: set[str]) -> int:
    """The quote that ends the string opened at `at`; -1 where the string is not closed.

    Content may hold quotes that nobody escaped ("it's"), so a quote ends the string only where `after` follows it;
    the first such one, since content is seldom a whole call. Where there is none, the first quote of the opening's
    kind does, or before it one of another kind that `after` follows, since some models mix them.

    spent: kept over one reading of a text; the kinds of which no such quote is left, so that it is searched to its
    end once, and not for each string.
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


def double_quoted(text: str, at: int, end: int) -> bool:
    """Whether a quote that nobody escaped stands right behind the one at `at`, or before that at `end`."""
    inner = text[at + 1 : end]
    if not inner or (text[at] not in (inner[0], inner[-1])):
        return False
    return inner[0] == text[at] or not inner[:-1].endswith("\\")


def next_quote(text: str, at: int) -> int:
    """The quote, of whatever kind, that comes first behind the one at `at`; -1 where there is none."""
    return next((quote.start() for quote in _QUOTE.finditer(text, at + 1) if quote.lastgroup), -1)


def escape(text: str) -> str:
    """For between single quotes."""
    return unlike_path(text.translate(_ESCAPED))


def unlike_path(written: str) -> str:
    """Escaped text in which no line end stands where it would be taken for the backslash of a path (`A:\\nyes`)."""
    if ":\\" not in written and "%\\" not in written and "\\\\" not in written:
        return written
    return _LIKE_PATH.sub(lambda found: f"{found[1]}u{_LINE_ENDS[found[2]]}", written)


def unescape(text: str) -> str:
    """Escapes that there are not stay as they stand."""
    return whole(_ESCAPE.sub(_unescaped, text) if "\\" in text else text)


def content_of(text: str, at: int) -> str:
    """What a string says that begins at `at`: as `unescape`, and of a path in Windows as it was written.

    Raises ParseFailure where a path's `\\n` may as well be a line end: one that escapes nothing shows by an escape that
    there is not (`\\U`).
    """
    if not like_path(text):
        return unescape(text)
    if "\\\\" in text[2:] or "\\'" in text or '\\"' in text or text.endswith("\\n") or not _NO_ESCAPE.search(text):
        raise ambiguous(f"a path or line ends? escape the backslashes of {text[:40]!r}", at)
    return whole(text)


def like_path(text: str) -> bool:
    return "\\" in text and _PATH.search(text) is not None


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[0])


def numbers_in(text: str) -> list[float]:
    """The numbers of a point or a box in any of its spellings; none where there is anything else."""
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
