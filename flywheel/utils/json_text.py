"""Read JSON of other programs strictly: duplicate names, NaN and infinite numbers are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pydantic import ValidationError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def parse_foreign_json(text: bytes) -> Any:
    """Parse a JSON text of another program in UTF-8, with a byte-order mark or without; return its value.

    Raises ValueError for text that is not UTF-8 or not JSON, a name that occurs twice in an object, a number that is
    not finite, and too deep nesting.
    """
    try:
        return json.loads(
            text.decode("utf-8-sig"),
            object_pairs_hook=refuse_doubled_fields,
            parse_constant=refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def iter_json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of each line of a file of JSON lines.

    Only U+000A ends a line: a JSON text may contain other line separators. Line ends and a byte-order mark are left
    out, and blank lines, which count. It is a generator; at the first line it raises OSError where the file cannot be
    read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def refuse_doubled_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its (name, value) `pairs`; raise ValueError where a name occurs twice.

    It is an `object_pairs_hook` of `json.loads`, which would keep the last value.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:80]} stands twice")
    return made


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for the JSON constant `name`: NaN, Infinity or -Infinity, which Python's parser accepts.

    It is a `parse_constant` of `json.loads`.
    """
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number that can be kept")
    return number


def describe_first_fault(error: ValidationError) -> str:
    """Describe the first fault of pydantic's `error` in one line: the field's dotted path, and what it expected."""
    fault = error.errors(include_url=False)[0]
    said = "Input should be an object" if fault["type"] in ("model_type", "dataclass_type") else fault["msg"]
    return f"{'.'.join(map(str, fault['loc'])) or 'the whole'}: {said}"
