"""Deciding a large iteration again, going back, comparing: seconds of each command, with the start of its process.

Peers: for `reroute` the decision alone, as one query of plain DuckDB from Parquet to Parquet, without contracts,
manifest, lineage and records; for `diff` pandas on the same files, with the same counts.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import store_synthetic
from bench_case import BenchCase

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stages.route import STAGE
from flywheel.store import manifest, partitions
from flywheel.store.routing import training_stores
from flywheel.store.versioning import stage_records
from flywheel.utils.files import write_json, write_text

_COMMAND = "from flywheel.cli import main; main()"


def cases(options: Namespace) -> Iterator[BenchCase]:
    count = options.trajectories
    ws = _workspace(options.folder / f"again-{count}", count)
    about = {"trajectories": count}

    before, size = _files(ws), sum(path.stat().st_size for path in ws.data.rglob("*.parquet"))
    spent = _cpu()
    seconds, told = _flywheel(ws, "data", "reroute", "1", "--threshold", "0", "--write", "--json")
    spent = _cpu() - spent
    (found,) = json.loads(told)
    anew = sum(bytes for content, bytes in _files(ws).items() if content not in before)
    back, _ = _flywheel(ws, "data", "reroute", "1", "--write")
    peer = _decided(ws)
    yield _case(
        "reroute_seconds", seconds, peer, "DuckDB, the decision alone", 10.0,
        {**about, "moved": found["moved_in_all"], "cpu_s": spent, "back_s": back, "anew": anew / size},
        also=anew <= 0.01 * size,
    )  # fmt: skip

    seconds, _ = _flywheel(ws, "iteration", "rollback", "1")
    undone, _ = _flywheel(ws, "iteration", "rollback", "--undo")
    yield _case("rollback_seconds", seconds, None, "", 5.0, {**about, "undo_s": undone})

    seconds, told = _flywheel(ws, "iteration", "diff", "1", "2", "--json")
    peer = _compared(ws, json.loads(told))
    yield _case("diff_seconds", seconds, peer, "pandas, counts alone", 5.0, {**about, "and": count // 10})


def _case(
    name: str, ours: float, peer: float | None, peer_name: str, goal: float, extra: dict, *, also: bool = True
) -> BenchCase:
    ratio = ours / peer if peer else None
    return BenchCase("store", name, "s", ours, peer, peer_name, ratio, goal, ours <= goal and also, extra)


def _flywheel(ws: Workspace, *arguments: str) -> tuple[float, str]:
    began = time.perf_counter()
    command = [sys.executable, "-c", _COMMAND, *arguments, "-w", str(ws.root)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def _cpu() -> float:
    """Seconds of CPU of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(ws: Workspace) -> dict[str, int]:
    """Bytes of each file of the data, by what is in it: what a cache or a remote has to take anew."""
    listed = [part for path in ws.data.rglob(partitions.PARTS_FILE) for part in partitions.read_part_list(path.parent)]
    return {part.sha256: part.bytes for part in listed}


def _workspace(folder: Path, count: int) -> Workspace:
    """Two iterations, the second of a tenth, routed, with `score` and `route` recorded in DVC; made once."""
    ws, done = Workspace(folder.resolve()), folder / "made"
    if done.is_file():
        return ws
    shutil.rmtree(ws.root, ignore_errors=True)
    ws.root.mkdir(parents=True)
    settings = Settings.model_validate({"recording": {"sessions_per_iteration": 0}})
    write_text(ws.params, "seed: 7\n")
    stage_records.init_dvc_project(ws)
    manifest.init_first_checkpoint(ws, digest="base")
    for k, rows in ((1, count), (2, count // 10)):
        begin_iteration(ws, k, settings)
        store_synthetic.workspace(ws.root, rows, iteration=k)
        for table, stage in (*STAGE.partitions(), ("metrics", "score"), ("metrics", "route")):
            if not ws.partition(table, k, stage).is_dir():
                partitions.write_partition(ws, table, k, stage, [])
        write_json(ws.levels(k), {"open": {}})
        staged = Workspace(ws.root / "staged")
        training_stores.build_training_stores(ws, k, settings, STAGE.partitions(), staged, page=False)
        training_stores.publish_training_stores(ws, k, staged)
        shutil.rmtree(staged.root)
        data = [one for one in STAGE.partitions() if one[0] != "scores"]
        manifest.write_manifest(ws, k, window=2, data=data)
        for stage in ("score", "route"):
            stage_records.record_stage(ws, stage, k)
    done.touch()
    return ws


def _decided(ws: Workspace) -> float:
    """Seconds of the same decision in plain DuckDB."""
    began = time.perf_counter()
    read = {table: f"read_parquet('{ws.partition(table, 1, stage)}/*.parquet')" for table, stage in
            (("trajectories", "rollout"), ("scores", "score"))}  # fmt: skip
    with duckdb.connect() as connection:
        connection.execute(
            f"""CREATE TEMP TABLE decided AS SELECT trajectory_id, min(score) AS score, bool_and(score >= 0) AS success,
            CASE WHEN success THEN 'sft' ELSE 'ct' END AS destination FROM {read["scores"]} GROUP BY ALL"""
        )
        stores = {name: f"SELECT t.* EXCLUDE (final_state), d.score FROM {read['trajectories']} t JOIN decided d "
                  f"USING (trajectory_id) WHERE destination = '{name}'" for name in ("sft", "ct")}  # fmt: skip
        for name, sql in {"routes": "FROM decided", **stores}.items():
            place = ws.root / f"peer-{name}.parquet"
            connection.execute(f"COPY ({sql} ORDER BY trajectory_id) TO '{place}' (COMPRESSION zstd)")
    return time.perf_counter() - began


def _compared(ws: Workspace, found: dict) -> float:
    """Seconds of the same counts in pandas, in this process; they are held against ours."""
    began = time.perf_counter()
    counts = {}
    for k in (1, 2):
        trajectories, routes = (
            pd.read_parquet(partitions.partition_files(ws, table, k, stage), columns=columns)
            for table, stage, columns in (
                ("trajectories", "rollout", ["trajectory_id", "status"]),
                ("routes", "route", ["trajectory_id", "destination", "score"]),
            )
        )
        joined = trajectories.merge(routes, on="trajectory_id")
        counts[k] = joined["destination"].value_counts().to_dict(), joined["status"].value_counts().to_dict()
        assert joined["score"].describe()["count"] == len(trajectories)
    seconds = time.perf_counter() - began
    ours = {(row["name"], row["value"]): (row["before"], row["after"]) for row in found["kinds"]}
    for name, number in counts[1][0].items():
        assert ours["destination", name] == (number, counts[2][0][name])
    return seconds
