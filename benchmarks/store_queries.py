"""Questions an analyst asks again and again, warm, through the catalogue and by pandas on the same files.

Goals are milliseconds on two free cores: steps of one trajectory 30, with their screens (of 20,000 of 20 kB) 60, where
it went 60, success by domain 200, a LIKE over all thoughts 500. Both ways must give the same answer.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import store_synthetic as synthetic
from bench_case import BenchCase

from flywheel.config.workspace import Workspace
from flywheel.store import lineage, partitions
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES

SCREENS, SCREEN_BYTES = 20_000, 20_000
REPETITIONS = 7
WORDS = "press open close"
CHECKPOINT = "models/iteration=001/sft"


def cases(options: Namespace) -> Iterator[BenchCase]:
    count = options.trajectories
    ws = synthetic.workspace(
        options.folder / f"queries-{count}", count, screens=SCREENS, screen_bytes=SCREEN_BYTES, seed=options.seed
    )
    route(ws, count)
    asked = synthetic.identity(1, count // 3)
    with database.connect_catalog(ws) as connection:
        for case, goal, sql, peer in _questions(ws, asked):
            yield _measure(connection, case, goal, sql, peer, count)


def _questions(ws: Workspace, asked: str) -> Iterator[tuple[str, float, str, Callable[[], Any]]]:
    """Figure, goal in ms, the question in SQL, and what pandas answers: a value that the first column must equal."""

    def steps() -> pd.DataFrame:
        found = pd.read_parquet(ws.data / "steps", filters=[("trajectory_id", "==", asked)])
        return found.sort_values("step")

    def replay() -> list:
        mine = steps()
        screens = pd.read_parquet(ws.data / "images", filters=[("sha256", "in", set(mine["image_sha256"]))])
        return mine.merge(screens, left_on="image_sha256", right_on="sha256", how="left")["bytes"].tolist()

    def went() -> list:
        (row,) = pd.read_parquet(ws.data / "trajectories", filters=[("trajectory_id", "==", asked)]).to_dict("records")
        task = pd.read_parquet(ws.data / "tasks", filters=[("task_id", "==", row["task_id"])])
        route = pd.read_parquet(ws.data / "routes", filters=[("trajectory_id", "==", asked)])
        score = pd.read_parquet(ws.data / "scores", filters=[("trajectory_id", "==", asked)])
        stores = pd.read_parquet(
            ws.data / "lineage", filters=[("parent", "==", asked), ("relation", "in", ["holds", "trained on"])]
        )["child"]
        drew = pd.read_parquet(
            ws.data / "lineage", filters=[("parent", "in", set(stores)), ("relation", "==", "drew from")]
        )
        assert len(task) == len(route) == len(score) == 1
        return [sorted(drew["child"])]

    def success() -> list:
        routes = pd.read_parquet(ws.data / "routes", columns=["trajectory_id", "success", "iteration"])
        played = pd.read_parquet(ws.data / "trajectories", columns=["trajectory_id", "domain", "iteration", "stage"])
        both = routes.merge(played[played["stage"] == "rollout"], on="trajectory_id")
        return [both["success"].mean(), *both.groupby("domain")["success"].mean()]

    def like() -> list:
        thoughts = pd.read_parquet(ws.data / "steps", columns=["thought"])["thought"]
        return [int(thoughts.str.contains(WORDS, regex=False).sum())]

    yield "trajectory_ms", 30, f"SELECT step, * FROM steps_of('{asked}')", lambda: steps()["step"].tolist()
    yield "trajectory_images_ms", 60, f"SELECT screen, * FROM replay('{asked}')", replay
    yield "lineage_ms", 60, f"SELECT trained_checkpoints, * FROM lineage_of('{asked}')", went
    yield "success_ms", 200, "SELECT p, * FROM p_v1 ORDER BY iteration, domain", success
    yield "like_ms", 500, f"SELECT count(*) FROM steps WHERE thought LIKE '%{WORDS}%'", like


def _measure(
    connection: duckdb.DuckDBPyConnection, case: str, goal: float, sql: str, peer: Callable[[], Any], count: int
) -> BenchCase:
    """Ours and the peer in turns, so that what else the machine does is shared by both."""
    ours, theirs = [], []
    answer, expected = _first(connection, sql), peer()
    if pa.types.is_floating(answer.type):
        assert np.allclose(answer.to_pylist(), expected), case
    else:
        assert answer.to_pylist() == expected, case
    for _ in range(REPETITIONS):
        ours.append(_timed(lambda: database.run_query(connection, sql)))
        theirs.append(_timed(peer))
    wall, cpu = (statistics.median(times) for times in zip(*ours, strict=True))
    peer_wall = statistics.median(wall for wall, _ in theirs)
    extra = {"n": count, "best": min(wall for wall, _ in ours), "cpu": cpu, "repetitions": REPETITIONS}
    return BenchCase("store", case, "ms", wall, peer_wall, "pandas", wall / peer_wall, goal, wall <= goal, extra)


def _first(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.ChunkedArray:
    return database.run_query(connection, sql).column(0)


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds: of the clock, of all cores."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - spent)


def route(ws: Workspace, count: int) -> None:
    """What routing leaves of the workspace, and one checkpoint that drew from its SFT store."""
    if ws.partition("lineage", 1, "sft").exists():
        return
    scores = synthetic.scores(0, count, 1, [], 0)
    names, good = scores["trajectory_id"].to_pylist(), scores["success"].to_numpy()
    store = np.where(good, "sft", "ct")
    schema = TABLES["routes"]
    reason = np.where(good, "verified", "not verified")
    routes = dict(zip(schema.names, (names, store, reason, scores["score"], good), strict=True))
    partitions.write_partition(ws, "routes", 1, "route", pa.table(routes, schema))
    links = {
        "child": [*(f"{one}@001" for one in store), *names, *names],
        "child_kind": ["dataset"] * count + ["trajectory"] * 2 * count,
        "parent": [*names, *(f"k001{number // 4:012d}" for number in range(count)), *["run"] * count],
        "parent_kind": ["trajectory"] * count + ["task"] * count + ["run"] * count,
        "relation": ["holds"] * count + ["attempts"] * count + ["produced in"] * count,
        "times": [None] * 3 * count,
    }
    partitions.write_partition(ws, "lineage", 1, "route", pa.table(links, TABLES["lineage"]))
    partitions.write_partition(
        ws, "lineage", 1, "sft", lineage.checkpoint_links(CHECKPOINT, "d", datasets=[lineage.dataset_name("sft", 1)])
    )
