"""Workspaces of made-up trajectories of any number, streamed to disk: what the parts of `flywheel bench store` work on.

Rows keep the contracts: each trajectory has a training task, its steps a log-probability a token and a screen that is
there. A third of them succeed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.schema import TABLES

AT_ONCE = 2_000  # trajectories in memory: few, so that what is measured is not the making of them
STEPS = 15
TOKENS = 40
WORDS = ("I", "see", "the", "list", "so", "now", "press", "open", "close", "blue", "red", "next", "type", "name")
_ROW_GROUP = {"images": 100}  # rows; else 20,000
_BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
_WRITERS = {
    "tasks": "synthesize",
    "trajectories": "rollout",
    "steps": "rollout",
    "images": "rollout",
    "scores": "score",
}


def workspace(
    folder: Path,
    trajectories: int,
    *,
    iteration: int = 1,
    screens: int = 64,
    screen_bytes: int = 2_000,
    seed: int = 2026,
) -> Workspace:
    """A workspace whose iteration holds so many trajectories of 15 steps, with tasks, screens and scores; made once."""
    ws = Workspace(folder.resolve())
    done = ws.root / f"made-{iteration:03d}"
    if done.is_file():
        return ws
    names = screen_names(screens, screen_bytes)
    _write(ws, "images", iteration, [images(screens, screen_bytes)])
    _write(ws, "tasks", iteration, [tasks(trajectories, iteration)])
    for table, make in (("trajectories", episodes), ("steps", steps), ("scores", scores)):
        firsts = range(0, trajectories, AT_ONCE)
        parts = (make(first, min(AT_ONCE, trajectories - first), iteration, names, seed) for first in firsts)
        _write(ws, table, iteration, parts)
    done.touch()
    return ws


def batches(
    table: str, trajectories: int, *, iteration: int = 1, screens: int = 64, seed: int = 2026
) -> Iterator[pa.Table]:
    """The rows of `trajectories`, `steps` or `scores` in order, some trajectories at a time."""
    make = {"trajectories": episodes, "steps": steps, "scores": scores}[table]
    names = screen_names(screens)
    for first in range(0, trajectories, AT_ONCE):
        yield make(first, min(AT_ONCE, trajectories - first), iteration, names, seed)


def peak_gib() -> float:
    """Most memory that this process has had. What `getrusage` says begins with its parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def identity(iteration: int, number: int) -> str:
    """Ids grow with the number, so rows that are made in order are sorted."""
    return f"t{iteration:03d}{number:016d}"


@cache
def _screens(count: int, size: int) -> dict[str, bytes]:
    """Bytes by name; they do not compress, as those of PNG files do not."""
    made = (np.random.default_rng(number).bytes(size) for number in range(count))
    return dict(sorted((hashlib.sha256(content).hexdigest(), content) for content in made))


def screen_names(count: int, size: int = 2_000) -> list[str]:
    return list(_screens(count, size))


def tasks(trajectories: int, iteration: int) -> pa.Table:
    """Four trajectories share a task; half of the tasks are of `games`, half of `sites`."""
    count = -(-trajectories // 4)
    numbers = np.arange(count)
    domains = np.where(numbers % 2, "sites", "games")
    return _table(
        "tasks",
        count,
        task_id=[f"k{iteration:03d}{number:012d}" for number in numbers],
        domain=domains,
        world=np.where(numbers % 2, "shop", "tiles"),
        template=[f"template {number % 20}" for number in numbers],
        level=(numbers % 3 + 1).astype(np.int32),
        seed=numbers,
        instruction=[f"Open the page of order {number}." for number in numbers],
        params=["{}"] * count,
        max_steps=np.full(count, 30, np.int32),
        split=["train"] * count,
        verifier=["world:reached"] * count,
        threshold=np.ones(count),
        environment=["browser"] * count,
    )


def episodes(first: int, count: int, iteration: int, names: list[str], seed: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    began = [_BEGAN + timedelta(seconds=int(number % 100_000)) for number in numbers]
    return _table(
        "trajectories",
        count,
        trajectory_id=[identity(iteration, number) for number in numbers],
        task_id=[f"k{iteration:03d}{number // 4:012d}" for number in numbers],
        domain=np.where(numbers // 4 % 2, "sites", "games"),
        world=np.where(numbers // 4 % 2, "shop", "tiles"),
        level=(numbers // 4 % 3 + 1).astype(np.int32),
        instruction=[f"Open the page of order {number // 4}." for number in numbers],
        source=["rollout"] * count,
        author=["model"] * count,
        sample=(numbers % 4).astype(np.int32),
        policy_version=[f"{iteration:064d}"] * count,
        status=["completed"] * count,
        steps=np.full(count, STEPS, np.int32),
        reward=_verified(numbers).astype(float),
        final_state=['{"score": 1, "page": "orders"}'] * count,
        started_at=began,
        ended_at=[at + timedelta(seconds=60) for at in began],
        run_id=["run"] * count,
    )


def steps(first: int, count: int, iteration: int, names: list[str], seed: int) -> pa.Table:
    rng = np.random.default_rng([seed, iteration, first])
    rows = count * STEPS
    numbers, places = (
        np.repeat(np.arange(first, first + count), STEPS),
        np.tile(np.arange(STEPS, dtype=np.int32), count),
    )
    thoughts = [" ".join(WORDS[word] for word in line) for line in rng.integers(0, len(WORDS), (4096, 30))]
    # No two thoughts are the same, as in life: a dictionary of a few would make any search of them too quick.
    said = pc.binary_join_element_wise(
        pa.array(thoughts).take(pa.array(rng.integers(0, len(thoughts), rows))),
        pa.array(numbers * STEPS + places).cast(pa.string()),
        " ",
    )
    x, y = np.round(rng.random((2, rows)), 3)
    actions = [f"click(point='<point>{a} {b}</point>')" for a, b in (np.stack([x, y], 1) * 224).astype(int)]
    began = np.datetime64("2026-11-01", "us") + (numbers % 100_000 * 1_000_000 + places * 4_000_000).astype(
        "timedelta64[us]"
    )
    offsets = pa.array(np.arange(0, rows * TOKENS + 1, TOKENS, dtype=np.int32))
    tokens = rng.integers(0, 8192, rows * TOKENS, dtype=np.int32)
    logprobs = -rng.random(rows * TOKENS, dtype=np.float32)
    ids = [identity(iteration, number) for number in range(first, first + count)]
    return _table(
        "steps",
        rows,
        trajectory_id=pa.array(ids).take(pa.array(np.repeat(np.arange(count), STEPS))),
        step=places,
        author=["model"] * rows,
        thought=said,
        action_type=["click"] * rows,
        action=actions,
        raw_text=pc.binary_join_element_wise("Thought: ", said, "\nAction: ", pa.array(actions), ""),
        x=x,
        y=y,
        prompt_tokens=np.full(rows, 300, np.int32),
        token_ids=pa.ListArray.from_arrays(offsets, pa.array(tokens)),
        logprobs=pa.ListArray.from_arrays(offsets, pa.array(logprobs)),
        weight_version=[f"{iteration:064d}"] * rows,
        image_sha256=pa.array(names).take(pa.array(rng.integers(0, len(names), rows))),
        url=["shop/"] * rows,
        reward=np.where(places == STEPS - 1, _verified(numbers), 0).astype(float),
        terminated=places == STEPS - 1,
        truncated=np.zeros(rows, bool),
        started_at=pa.array(began, pa.timestamp("us", tz="UTC")),
        ended_at=pa.array(began + np.timedelta64(3_000_000, "us"), pa.timestamp("us", tz="UTC")),
    )


def scores(first: int, count: int, iteration: int, names: list[str], seed: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    verified = _verified(numbers)
    return _table(
        "scores",
        count,
        trajectory_id=[identity(iteration, number) for number in numbers],
        scorer=["verifier"] * count,
        score=verified.astype(float),
        threshold=np.ones(count),
        success=verified,
        version=["1"] * count,
    )


def images(count: int, size: int = 2_000) -> pa.Table:
    screens = _screens(count, size)
    return _table(
        "images",
        count,
        sha256=list(screens),
        width=np.full(count, 224, np.int32),
        height=np.full(count, 224, np.int32),
        format=["png"] * count,
        bytes=list(screens.values()),
    )


def _verified(numbers: np.ndarray) -> np.ndarray:
    return numbers * 2654435761 % 2**32 < 2**32 // 3


def _table(table: str, rows: int, **columns) -> pa.Table:
    schema = TABLES[table]
    made = {name: pa.nulls(rows, schema.field(name).type) for name in schema.names}
    for name, values in columns.items():
        kind = schema.field(name).type
        made[name] = values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
    return pa.table(made, schema=schema)


def _write(ws: Workspace, table: str, iteration: int, batches: Iterable[pa.Table]) -> None:
    with partitions.open_partition_writer(ws, table, iteration, _WRITERS[table]) as writer:
        for batch in batches:
            writer.write(batch)
