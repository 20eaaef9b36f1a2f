"""Align several runs of one task by the states that they came through, not by the numbers of their steps.

A run is the sequence of its states: what was seen before each step, and after the last one. Runs that begin alike
share what they have in common, as in a trie, so a common beginning is there once. Behind a fork a run joins a state of
another one again where that keeps the order of both; of the states that could be joined as many as possible are: the
longest increasing subsequence of their places, as in patience diff. A state that comes again in the same run, as after
a click without effect, counts by how often it was there before, so that two runs that wait in one place, one for
longer, meet behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass
class AlignedState:
    """Hold a state that one run or more came to.

    level: its row; the levels rise along each run. places: run -> number of the step that the run took there; the
    number of its steps where it ended there.
    """

    level: int = 0
    places: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunAlignment:
    """Hold runs aligned by state.

    states: in an order that every run keeps. order: numbers of the runs, those with a common beginning side by side.
    levels: number of rows.
    """

    states: tuple[AlignedState, ...]
    order: tuple[int, ...]
    levels: int


class _Branch:
    """Hold a node of the trie: a beginning that one run or more share."""

    __slots__ = ("key", "place", "runs", "then")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.runs: list[int] = []
        self.then: dict[Hashable, _Branch] = {}
        self.place: _Row | None = None


class _Row:
    """Hold a state while runs are joined. keys: of its branches are the same. at: its place in the list of rows."""

    __slots__ = ("at", "branches", "key")

    def __init__(self, key: Hashable) -> None:
        self.key, self.at = key, 0
        self.branches: list[_Branch] = []


def align_runs(runs: Sequence[Sequence[Hashable]]) -> RunAlignment:
    """Align runs by their states.

    runs: the keys of each run's states, in order; equal keys are the same state. Each state of a run is in exactly one
    `AlignedState`, which holds no other state of that run; the levels rise along each run; runs whose first n keys are
    equal share their first n states. A run of s steps costs O(s log s), and one walk over the rows so far.
    """
    paths = _build_trie(runs)
    rows: list[_Row] = []
    for path in paths:
        _join_path(rows, path)
    return _lay_out(rows, paths)


def _build_trie(runs: Sequence[Sequence[Hashable]]) -> list[list[_Branch]]:
    """Return of each run its branches of the common trie, from the first on."""
    root = _Branch(None)
    paths = []
    for number, states in enumerate(runs):
        before: Counter[Hashable] = Counter()
        branch, path = root, []
        for state in states:
            key = (state, before[state])
            before[state] += 1
            branch = branch.then.setdefault(key, _Branch(key))
            branch.runs.append(number)
            path.append(branch)
        paths.append(path)
    return paths


def _join_path(rows: list[_Row], path: Sequence[_Branch]) -> None:
    """Place the branches of a run that are in no row yet, all behind the last one that is: in rows of other runs where
    the order allows it, else in new ones."""
    shared = next((n for n, branch in enumerate(path) if branch.place is None), len(path))
    rest = path[shared:]
    if not rest:
        return
    after = path[shared - 1].place.at if shared else -1
    where: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows[after + 1 :]:
        where[row.key].append(row.at)
    joined = _choose_joins([where.get(branch.key, ()) for branch in rest])
    new: dict[int, list[_Row]] = defaultdict(list)  # behind the row at this place
    last = after
    for branch, at in zip(rest, joined, strict=True):
        if at is None:
            row = _Row(branch.key)
            new[last].append(row)
        else:
            row, last = rows[at], at
        row.branches.append(branch)
        branch.place = row
    merged = list(new[-1])
    for row in rows:
        merged += [row, *new.get(row.at, ())]
    rows[:] = merged
    for at, row in enumerate(rows):
        row.at = at


def _choose_joins(candidates: Sequence[Sequence[int]]) -> list[int | None]:
    """Choose of each branch one of its candidates or none, so that those chosen rise and are as many as possible.

    candidates: places of rows, in rising order (Hunt and Szymanski 1977: the longest increasing subsequence, each
    branch's candidates from the last one on, so that it takes one of them at most).
    """
    ends: list[int] = []  # the least place that a chain of that length ends with
    tails: list[int] = []  # the link that it ends with
    links: list[tuple[int, int, int]] = []  # branch, place, the link before
    for number, places in enumerate(candidates):
        for place in reversed(places):
            length = bisect_left(ends, place)
            links.append((number, place, tails[length - 1] if length else -1))
            ends[length : length + 1] = [place]
            tails[length : length + 1] = [len(links) - 1]
    chosen: list[int | None] = [None] * len(candidates)
    link = tails[-1] if tails else -1
    while link >= 0:
        number, chosen[number], link = links[link]
    return chosen


def _lay_out(rows: Sequence[_Row], paths: Sequence[Sequence[_Branch]]) -> RunAlignment:
    """Give each row the first level that lies behind the levels of what comes before it in any run."""
    states = [AlignedState() for _ in rows]
    before: dict[int, int] = {}  # run -> level of its last state so far
    for row, state in zip(rows, states, strict=True):
        here = [run for branch in row.branches for run in branch.runs]
        state.level = 1 + max((before.get(run, -1) for run in here), default=-1)
        before.update(dict.fromkeys(here, state.level))
    of_row = {id(row): state for row, state in zip(rows, states, strict=True)}
    for run, path in enumerate(paths):
        for step, branch in enumerate(path):
            of_row[id(branch.place)].places[run] = step
    order = sorted(range(len(paths)), key=lambda run: [branch.runs[0] for branch in paths[run]])
    return RunAlignment(tuple(states), tuple(order), 1 + max((state.level for state in states), default=-1))
