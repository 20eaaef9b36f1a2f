"""Compare the changes made to a site's records with those asked for, and given answers with right ones, for verifiers.

Records are JSON values: collections (id -> fields) and single values. A change is a leaf that differs from its value at
the start. Keys that begin with an underscore are bookkeeping (counters, read marks) and never count. The id of a new
entry of a collection does not count either: new entries are compared by their content.
"""

from __future__ import annotations

import fnmatch
import json
import pickle
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

# A number: a currency, the digits, and a unit of four words at most that take nothing back.
_WORD = r"(?!(?:or|and|no|not|nor|but|is|was|isn|wrong|false|incorrect)\b)[^\s\d.,;:!?不错非]+"
_NUMBER = re.compile(
    r"(?:[a-z]{0,2}[$€£¥₹₽₩￥]|eur|usd|gbp|jpy|cny|rmb)?\s*(-?\d[\d,]*(?:\.\d+)?)"
    rf"(?:\s*{_WORD}(?:\s+{_WORD}){{0,3}})?\s*[.。]?",
    re.IGNORECASE,
)


def share_of_changes(
    start: Mapping[str, Any], goal: Mapping[str, Any], now: Mapping[str, Any], ignore: Iterable[str] = ()
) -> float:
    """Return the share of right changes to records, among all that were asked for or made; 1.0 where there are none.

    A change nobody asked for, a side effect, so lowers the share. start, goal, now: the records at the start, as the
    task wants them, and as they are. ignore: fnmatch patterns of paths (collection/id/field) that do not count, such as
    "mails/*/unread".
    """
    trees = _keep_differing((start, goal, now))
    before, asked_for, made = (_leaves(one, trees[0]) for one in trees)
    patterns = tuple(ignore)
    moved = {
        key
        for key in {**before, **asked_for, **made}
        if not before.get(key, _NONE) == asked_for.get(key, _NONE) == made.get(key, _NONE)
        and not any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
    }
    asked = {key for key in moved if asked_for.get(key, _NONE) != before.get(key, _NONE)}
    done = {key for key in moved if made.get(key, _NONE) != before.get(key, _NONE)}
    right = {key for key in asked if made.get(key, _NONE) == asked_for.get(key, _NONE)}
    return len(right) / len(asked | done) if asked | done else 1.0


def share_of_values(
    start: Mapping[str, Any], goal: Mapping[str, Any], now: Mapping[str, Any], absent: Any = None
) -> float:
    """Return the share of right changes to a flat mapping of values, among all that were asked for or made.

    start, goal, now: values at the start, as wanted, and as they are; some value of `goal` or `now` must differ from
    the start. absent: the value that a missing key stands for. Raises ZeroDivisionError where none differs.
    """
    keys = {*start, *goal, *now}
    asked = {key for key in keys if goal.get(key, absent) != start.get(key, absent)}
    made = {key for key in keys if now.get(key, absent) != start.get(key, absent)}
    right = {key for key in asked if now.get(key, absent) == goal.get(key, absent)}
    return len(right) / len(asked | made)


def copy_records(records: Any) -> Any:
    """Return a deep copy of JSON values, several times as fast as copy.deepcopy."""
    return pickle.loads(pickle.dumps(records, pickle.HIGHEST_PROTOCOL))


def same_answer(given: str, wanted: str | float | Iterable[str]) -> bool:
    """Tell whether the answer that an agent has `given` equals the one `wanted`: a text, a number, or several texts.

    Of texts, case, accents, spaces and punctuation around them are ignored. A number may carry a currency, thousands
    separators or a unit, and no words that take it back. Several texts come in any order, separated by commas,
    semicolons or "and" (also in Chinese).
    """
    if isinstance(wanted, str):
        return _plain(given) == _plain(wanted)
    if isinstance(wanted, int | float):
        found = _NUMBER.fullmatch(given.strip())
        return bool(found) and abs(float(found[1].replace(",", "")) - wanted) <= 1e-9 * max(1.0, abs(wanted))
    parts = re.split(r"[,;，、；]|\band\b|和", given)
    return sorted(filter(None, map(_plain, parts))) == sorted(map(_plain, wanted))


def is_one_answer(given: str, wanted: Iterable[str | float | Iterable[str]]) -> bool:
    """Tell whether the answer `given` equals one of the answers `wanted`, compared as by `same_answer`.

    A text of `wanted` that is a number is compared as a number too.
    """
    return any(
        same_answer(given, one) or (isinstance(one, str) and same_answer(given, _as_number(one))) for one in wanted
    )


def _as_number(text: str) -> str | float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def normalise_text(text: str) -> str:
    """Normalise a text for comparison: composed Unicode (NFC), each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _plain(text: str) -> str:
    """Fold a text to lower case, without accents and without punctuation and quotes around it."""
    bare = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return normalise_text(bare).casefold().strip(" .。\"'“”‘’")


_NONE = object()


def _keep_differing(trees: tuple[Mapping[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """Return the trees without the collection entries that are equal in all of them: thousands need not be walked."""
    left: tuple[dict[str, Any], ...] = tuple({} for _ in trees)
    for name in dict.fromkeys(chain.from_iterable(trees)):
        there = [tree.get(name, _NONE) for tree in trees]
        if all(isinstance(one, Mapping) for one in there):
            keys = () if _alike(there) else dict.fromkeys(chain.from_iterable(there))
            moved = [key for key in keys if not _alike([one.get(key, _NONE) for one in there])]
            there = [{key: one[key] for key in moved if key in one} for one in there]
        for kept, one in zip(left, there, strict=True):
            if one is not _NONE:
                kept[name] = one
    return left


def _alike(values: Sequence[Any]) -> bool:
    return all(one is values[0] or one == values[0] for one in values[1:])


def _leaves(records: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Map the path of each leaf to its value. New entries of a collection have their content as key, their count as
    value."""
    found: dict[str, Any] = {}
    for name, value in records.items():
        if name.startswith("_"):
            continue
        if not isinstance(value, Mapping):
            found[name] = _value(value)
            continue
        known = start.get(name, {})
        for key, entry in value.items():
            if key.startswith("_"):
                continue
            if isinstance(entry, Mapping) and key not in known:
                text = json.dumps(_content(entry), sort_keys=True, ensure_ascii=False)
                path = f"{name}/+{text}"
                found[path] = found.get(path, 0) + 1
            else:
                _walk(f"{name}/{key}", entry, found)
    return found


def _walk(path: str, value: Any, found: dict[str, Any]) -> None:
    if not isinstance(value, Mapping):
        found[path] = _value(value)
        return
    found[path] = True  # so that adding or removing an entry without fields is a change
    for key, inner in value.items():
        if not key.startswith("_"):
            _walk(f"{path}/{key}", inner, found)


def _content(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _content(inner) for key, inner in value.items() if not key.startswith("_")}
    return _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return normalise_text(value)
    if isinstance(value, list):
        return [_content(inner) for inner in value]
    return value
