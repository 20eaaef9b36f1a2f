"""dedup: near-duplicates among made-up episodes whose truth is known, beside datasketch on the same tokens.

Each family is a task on a page: one episode; one more of it with a tenth of its steps edited, points off by
up to a hundredth of the screen and texts in another case; the same steps under another name of the task, on the same
screens; and three that are none: the task solved another way, and two other tasks on the page that differ from it in
one step and in two.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
from bench_case import BenchCase

from flywheel.store.dedup import episode_similarity
from flywheel.store.dedup.episode_similarity import StepSequences
from flywheel.store.dedup.near_duplicates import find_near_duplicates

STEPS = 15
KINDS = ("first", "edited", "renamed", "another way", "one step else", "two steps else")
NONE = 3  # of the kinds, from here on no near-duplicate of the first
LEAST = 0.8


def cases(options: Namespace) -> Iterator[BenchCase]:
    made, tasks = episodes(options.trajectories, options.seed)
    seconds, cpu_seconds, found = min((_ours(made, tasks) for _ in range(3)), key=lambda one: one[0])
    count = len(tasks)
    peer_seconds, peer = _datasketch(made)
    recall, precision = _judged(found, tasks)
    peer_recall, peer_precision = _judged(peer, tasks)
    name = "datasketch MinHashLSH"
    extra = {"trajectories": count, "steps": STEPS, "least": LEAST, "cpu_seconds": cpu_seconds}
    for case, unit, ours, theirs, goal in (
        ("dedup_per_second", "trajectories/s", count / seconds, count / peer_seconds, 20_000),
        ("dedup_recall", "fraction", recall, peer_recall, 0.9),
        ("dedup_precision", "fraction", precision, peer_precision, 0.99),
    ):
        yield BenchCase(
            "store", case, unit, ours, theirs, name, ours / theirs if theirs else None, goal, ours >= goal, extra
        )


def episodes(count: int, seed: int) -> tuple[pa.Table, pa.Table]:
    """Rows of `steps` without those columns that do not matter here, and one row an episode: its name, content,
    arguments, family and kind."""
    rng = np.random.default_rng(seed)
    families = -(-count // len(KINDS))
    pages = rng.random((families // 8 + 1, 24, 2)).round(3)
    rows, tasks = [], []
    for family in range(families):
        page = pages[family // 8]
        first = _task(rng, page, family)
        others = {
            "first": first,
            "edited": _edited(rng, page, first),
            "renamed": first,
            "another way": _another_way(rng, page, first),
            "one step else": _elsewhere(rng, page, first, 1),
            "two steps else": _elsewhere(rng, page, first, 2),
        }
        for kind, done in others.items():
            name = f"t{family:09d}{KINDS.index(kind)}"
            own = kind in ("first", "edited", "another way")
            tasks.append((name, f"c{family}" if own else f"c{family} {kind}", "", family, kind))
            rows += [(name, step, *one) for step, one in enumerate(done)]
    columns = ("trajectory_id", "step", "action_type", "action", "x", "y", "x2", "y2")
    made = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))
    about = pa.table(
        dict(zip(("trajectory_id", "content", "arguments", "family", "kind"), zip(*tasks, strict=True), strict=True))
    )
    return made, about


def _task(rng, page, family: int) -> list[tuple]:
    """Three steps that all tasks of the page begin with, then its own; every fourth types."""
    begin = [_click(page[k]) for k in range(3)]
    return begin + [
        _typed(f"Text {family} {k}") if k % 4 == 3 else _click(page[rng.integers(3, 24)]) for k in range(STEPS - 3)
    ]


def _click(point) -> tuple:
    x, y = (float(value) for value in point)
    return "click", f"click(point='<point>{int(x * 1000)} {int(y * 1000)}</point>')", x, y, None, None


def _typed(text: str) -> tuple:
    return "type", f"type(content='{text}')", None, None, None, None


def _edited(rng, page, done: list[tuple]) -> list[tuple]:
    """A tenth of the steps replaced, left out or put in (of 15: one or two), and each a little off."""
    result = []
    for one in done:
        if one[0] == "click":
            result.append(_click(np.clip(np.array(one[2:4]) + rng.uniform(-0.01, 0.01, 2), 0, 0.999)))
        else:
            result.append(
                (one[0], one[1].upper().replace("TYPE(CONTENT=", "type(content=").replace(" ", "  "), *one[2:])
            )
    for _ in range(int(len(done) / 10 + rng.random())):
        place = int(rng.integers(len(result)))
        how = rng.integers(3)
        if how:
            del result[place]
        if how < 2:
            result.insert(place, _click(rng.random(2).round(3)))
    return result


def _another_way(rng, page, done: list[tuple]) -> list[tuple]:
    return [one if k % 3 == 0 else _click(rng.random(2).round(3)) for k, one in enumerate(done)]


def _elsewhere(rng, page, done: list[tuple], steps: int) -> list[tuple]:
    result = list(done)
    for place in rng.choice(np.arange(3, len(done)), steps, replace=False):
        old = done[place]
        result[place] = _typed(f"{old[1][14:-2]} else") if old[0] == "type" else _click(((old[2] + 0.3) % 1, old[3]))
    return result


def _ours(made: pa.Table, tasks: pa.Table) -> tuple[float, float, set[tuple[str, str]]]:
    """Seconds, CPU seconds, and pairs of a trajectory and its twin."""
    began, cpu = time.perf_counter(), time.process_time()
    with duckdb.connect() as connection:
        connection.register("made", made)
        connection.register("coded", pa.concat_tables(episode_similarity.encode_steps(connection, "FROM made")))
        connection.register("tasks", tasks)
        # All tasks of a page have the same screens, which tell nothing: here each family has its own.
        connection.execute(
            """CREATE TABLE episodes AS SELECT trajectory_id, content, arguments, 'sft' AS store, step_codes,
            true AS new, family::VARCHAR AS first_image_sha256, first_image_sha256 AS last_image_sha256
            FROM tasks JOIN coded USING (trajectory_id)"""
        )
        find_near_duplicates(connection, "FROM episodes", LEAST, lambda pairs: [left == right for left, right in pairs])
        found = connection.execute("SELECT trajectory_id, duplicate_of FROM near_duplicates").fetchall()
    return time.perf_counter() - began, time.process_time() - cpu, set(found)


def _datasketch(made: pa.Table) -> tuple[float, set[tuple[str, str]]]:
    """The peer: the same coarse steps, hashed as datasketch's users do, candidates confirmed by the estimate."""
    from datasketch import MinHash, MinHashLSH

    began = time.perf_counter()
    with duckdb.connect() as connection:
        connection.register("made", made)
        coded = pa.concat_tables(episode_similarity.encode_steps(connection, "FROM made"))
    sequences, ids = StepSequences.from_lists(coded["step_codes"]), coded["trajectory_id"].to_pylist()
    lsh, signed = MinHashLSH(threshold=0.6, num_perm=64), {}
    coarse = episode_similarity.coarsen_steps(sequences)
    for row, name in enumerate(ids):
        own = coarse[sequences.offsets[row] : sequences.offsets[row + 1]]
        signed[name] = MinHash(num_perm=64, seed=22)
        signed[name].update_batch([value.tobytes() for value in own])
        lsh.insert(name, signed[name])
    pairs = set()
    for name in ids:
        pairs |= {(name, twin) for twin in lsh.query(signed[name]) if twin != name}
    pairs = {(one, twin) for one, twin in pairs if signed[one].jaccard(signed[twin]) >= 0.6}
    return time.perf_counter() - began, pairs


def _judged(pairs: set[tuple[str, str]], tasks: pa.Table) -> tuple[float, float]:
    """Recall over the edited and the renamed; precision over all that is said."""
    ids, kinds = tasks["trajectory_id"].to_pylist(), tasks["kind"].to_pylist()
    near = {name for name, kind in zip(ids, kinds, strict=True) if KINDS.index(kind) < NONE}
    true = {(one, twin) for one, twin in pairs if one[:-1] == twin[:-1] and one in near and twin in near}
    wanted = [name for name, kind in zip(ids, kinds, strict=True) if kind in ("edited", "renamed")]
    said = {one for one, _ in true}
    return sum(name in said for name in wanted) / len(wanted), len(true) / max(len(pairs), 1)
