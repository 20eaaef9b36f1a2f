"""Mutate a solution's end state (JSON), as if an agent had done the task almost, wrongly, or twice.

Nothing here knows a task: a mutation is guided by what differs between the start and a known solution. States are never
changed in place, and what a mutation leaves alone is the same object in it, so that comparing two is cheap.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

State = Mapping[str, Any]
Path = tuple[Any, ...]  # keys, from the state to a value in it
GONE = object()  # a value that is not there
_LETTERS, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
_ROWS = 3  # other records, and other fields of one, that a change is moved to


@dataclass(frozen=True)
class Variation:
    """Hold a changed state. kind: how it was changed. what: where, and to what, in a few words."""

    kind: str
    what: str
    state: State


def get_at(tree: Any, path: Path) -> Any:
    """Return the value at `path` of a JSON tree; GONE where there is none."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return GONE
        tree = tree[key]
    return tree


def put_at(tree: Any, path: Path, value: Any) -> Any:
    """Return a JSON tree with `value` at `path`, all else shared with `tree`; GONE removes what is there.

    Missing objects on the way are made.
    """
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, Mapping) else {}
    inner = put_at(copy.get(path[0]), path[1:], value)
    if inner is GONE:
        copy.pop(path[0], None)
    else:
        copy[path[0]] = inner
    return copy


def list_changes(one: Any, other: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths at which two JSON trees differ: of leaves, lists, and what only one of them has."""
    if one is other or one == other:
        return
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        yield path
        return
    for key in dict.fromkeys([*one, *other]):
        yield from list_changes(one.get(key, GONE), other.get(key, GONE), (*path, key))


def list_leaves(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values of a JSON tree that are no objects; keys that begin with _ are left out."""
    if not isinstance(tree, Mapping):
        yield path
        return
    for key, value in tree.items():
        if not str(key).startswith("_"):
            yield from list_leaves(value, (*path, key))


def misspell(text: str, rng: random.Random) -> Iterator[str]:
    """Yield texts that differ from `text` by one character: another letter or digit, one more, one less."""
    places = [n for n, one in enumerate(text) if one.isalnum()]
    for n in rng.sample(places, min(2, len(places))):
        pool = _DIGITS if text[n] in _DIGITS else _LETTERS
        yield text[:n] + rng.choice([one for one in pool if one != text[n].lower()]) + text[n + 1 :]
    if places:
        n = rng.choice(places)
        yield text[: n + 1] + text[n:]
        if len(places) > 1:
            yield text[:n] + text[n + 1 :]
    else:
        yield f"{text}x"


def vary_value(value: Any, rng: random.Random) -> Iterator[Any]:
    """Yield values of the same type that differ from `value`, a JSON value, by little."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        yield from misspell(value, rng)
    elif isinstance(value, list):
        if value:
            yield value[:-1]
            n = rng.randrange(len(value))
            yield from ([*value[:n], one, *value[n + 1 :]] for one in itertools.islice(vary_value(value[n], rng), 2))
            yield [*value, value[0]]
        if value[::-1] != value:
            yield value[::-1]
    elif isinstance(value, Mapping):
        for path in rng.sample(leaves := list(list_leaves(value)), min(3, len(leaves))):
            for one in itertools.islice(vary_value(get_at(value, path), rng), 2):
                yield put_at(value, path, one)
            yield put_at(value, path, GONE)
    else:
        yield "x"


def mutate_state(
    start: State, gold: State, parts: tuple[Path, ...], donors: Sequence[State], rng: random.Random
) -> Iterator[Variation]:
    """Yield mutations of a known solution's end, the kinds in turn.

    start, gold: the states at the solution's start and end. parts: paths of what is mutated, such as ("records",).
    donors: other states of the suite, whose entries are added to it. A mutation may still be a legal end, which the
    caller finds out by the contract.
    """
    changed = [path for part in parts for path in _changes_of(start, gold, part)]
    rng.shuffle(changed)
    kinds: list[Iterator[Variation]] = [
        _variations(kind, made(start, gold, path, rng)) for path in changed[:6] for kind, made in _OF_CHANGES.items()
    ]
    if len(changed) > 1:
        kinds.append(_variations("part", ((path, _undo(start, gold, [path])) for path in changed)))
        kinds.append(_variations("part", ((p, _undo(start, gold, [q for q in changed if q != p])) for p in changed)))
    kinds.append(_variations("undone", iter([((), _undo(start, gold, changed))])))
    kinds += [_variations(kind, made(gold, part, rng)) for part in parts for kind, made in _OF_PARTS.items()]
    kinds += [_variations("entry of another task", _donate(gold, part, donors, rng)) for part in parts]
    yield from take_turns(kinds)


def take_turns(kinds: list[Iterator[Variation]]) -> Iterator[Variation]:
    """Yield one element of each iterator in turn, until all have ended."""
    while kinds:
        left = []
        for kind in kinds:
            if (one := next(kind, None)) is not None:
                yield one
                left.append(kind)
        kinds = left


Made = Iterator[tuple[Path, State]]


def _variations(kind: str, made: Made) -> Iterator[Variation]:
    for path, state in made:
        value = get_at(state, path)
        told = "gone" if value is GONE else json.dumps(value, ensure_ascii=False, default=str)[:80]
        yield Variation(kind, f"{'/'.join(map(str, path))} {told}" if path else "", state)


def _changes_of(start: State, gold: State, part: Path) -> Iterator[Path]:
    return list_changes(get_at(start, part), get_at(gold, part), part)


def _undo(start: State, gold: State, paths: list[Path]) -> State:
    for path in paths:
        gold = put_at(gold, path, get_at(start, path))
    return gold


def _undo_one(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    yield path, _undo(start, gold, [path])


def _spoil(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    if (value := get_at(gold, path)) is not GONE:
        for one in vary_value(value, rng):
            yield path, put_at(gold, path, one)


def _other_field(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    """The right value in another field of the same record."""
    value, record = get_at(gold, path), get_at(gold, path[:-1])
    fields = [key for key in record if key != path[-1] and type(record[key]) is type(value) and record[key] != value]
    for key in rng.sample(fields, min(_ROWS, len(fields))):
        place = (*path[:-1], key)
        yield place, put_at(_undo(start, gold, [path]), place, value)


def _other_rows(gold: State, path: Path, rng: random.Random) -> list[Path]:
    """Paths of the same field of other records that have another value."""
    collection, value = get_at(gold, path[:-2]) if len(path) > 1 else {}, get_at(gold, path)
    paths = (
        [(*path[:-2], key, path[-1]) for key in collection if key != path[-2]]
        if isinstance(value, list | str | int | float | bool)
        else []
    )
    rows = [one for one in paths if get_at(gold, one) is not GONE and get_at(gold, one) != value]
    return rng.sample(rows, min(_ROWS, len(rows)))


def _wrong_row(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    for row in _other_rows(gold, path, rng):
        yield row, put_at(_undo(start, gold, [path]), row, get_at(gold, path))


def _row_more(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    for row in _other_rows(gold, path, rng):
        yield row, put_at(gold, row, get_at(gold, path))


def _wrong_deletion(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    if get_at(gold, path) is GONE:
        for place, _ in _delete(gold, path[:-1], rng):
            yield place, put_at(_undo(start, gold, [path]), place, GONE)


def _entry_twice(start: State, gold: State, path: Path, rng: random.Random) -> Made:
    if get_at(start, path) is GONE:
        place = (*path[:-1], f"{path[-1]}x")
        yield place, put_at(gold, place, get_at(gold, path))


def _delete(gold: State, part: Path, rng: random.Random) -> Made:
    tree = get_at(gold, part)
    objects = (
        [part, *((*part, key) for key, value in tree.items() if isinstance(value, Mapping))]
        if isinstance(tree, Mapping)
        else []
    )
    places = [(*path, key) for path in objects for key in get_at(gold, path) if not str(key).startswith("_")]
    for place in rng.sample(places, min(_ROWS, len(places))):
        yield place, put_at(gold, place, GONE)


def _copy_entry(gold: State, part: Path, rng: random.Random) -> Made:
    tree = get_at(gold, part)
    objects = [part, *((*part, key) for key in tree)] if isinstance(tree, Mapping) else []
    places = [(*path, key) for path in objects if isinstance(get_at(gold, path), Mapping) for key in get_at(gold, path)]
    places = [path for path in places if not str(path[-1]).startswith("_")]
    for path in rng.sample(places, min(_ROWS, len(places))):
        place = (*path[:-1], f"{path[-1]}x")
        yield place, put_at(gold, place, get_at(gold, path))


def _donate(gold: State, part: Path, donors: Sequence[State], rng: random.Random) -> Made:
    """What another state has in the same place, and this one lacks."""
    tree = get_at(gold, part)
    for donor in rng.sample(donors, min(_ROWS, len(donors))):
        there = get_at(donor, part)
        new = [path for path in list_changes(tree, there) if _fits(get_at(tree, path), get_at(there, path))]
        for path in rng.sample(new, min(2, len(new))):
            yield (*part, *path), put_at(gold, (*part, *path), get_at(donor, (*part, *path)))


def _fits(old: Any, new: Any) -> bool:
    return new is not GONE and (old is GONE or type(old) is type(new))


def _side_effect(gold: State, part: Path, rng: random.Random) -> Made:
    leaves = [(*part, *path) for path in list_leaves(get_at(gold, part))]
    for path in rng.sample(leaves, min(12, len(leaves))):
        for one in itertools.islice(vary_value(get_at(gold, path), rng), 1):
            yield path, put_at(gold, path, one)


_OF_CHANGES: dict[str, Callable[[State, State, Path, random.Random], Made]] = {
    "one change undone": _undo_one,
    "one character or number": _spoil,
    "wrong field": _other_field,
    "wrong row": _wrong_row,
    "another row as well": _row_more,
    "wrong deletion": _wrong_deletion,
    "done twice": _entry_twice,
}
_OF_PARTS: dict[str, Callable[[State, Path, random.Random], Made]] = {
    "extra deletion": _delete,
    "extra entry": _copy_entry,
    "something else changed": _side_effect,
}
