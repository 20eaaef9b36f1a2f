"""Writing and routing a large iteration: time beside pyarrow writing the same rows raw, memory, and how both grow.

Each runs in a process of its own, with its peak memory as the system tells it. The contracts' page is made by a process
of its own: its seconds of CPU count among ours, its memory is told apart (`page_gib`).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import store_synthetic
from bench_case import BenchCase

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.store import manifest, partitions
from flywheel.store.dedup import near_duplicates
from flywheel.store.routing import training_stores
from flywheel.store.schema import TABLES

TABLES_WRITTEN = ("trajectories", "steps", "scores")
READ = [("trajectories", "rollout"), ("steps", "rollout"), ("images", "rollout"), ("tasks", "synthesize")]


def cases(options: Namespace) -> Iterator[BenchCase]:
    sizes = (options.trajectories // 10, options.trajectories)
    found = {}
    for size in sizes:
        raw, ours = (_in_process(kind, options.folder / f"write-{size}-{kind}", size) for kind in ("raw", "ours"))
        found[size] = ours
        about = {"trajectories": size, "steps_each": store_synthetic.STEPS, "parts_s": ours["parts"]}
        about |= {"raw": raw, "cpu_s": ours["cpu"], "page": [ours["page_cpu"], ours["page_gib"]]}
    small, large = (found[size] for size in sizes)
    ratio = raw["cpu"] / large["cpu"], raw["wall"] / large["wall"]
    yield BenchCase(
        "store", "write_route", "s", large["wall"], raw["wall"], "pyarrow, raw", ratio[1], 0.5, ratio[1] >= 0.5,
        {**about, "cpu_ratio": ratio[0],
         "without_near_duplicates": raw["wall"] / (large["wall"] - large["parts"]["of it near-duplicates"])},
    )  # fmt: skip
    peak = large["peak_gib"]
    yield BenchCase(
        "store", "peak_memory_gib", "GiB", peak, raw["peak_gib"], "pyarrow, raw", None, 2.0, peak < 2.0,
        {"trajectories": sizes[1]},
    )  # fmt: skip
    times, memory = large["cpu"] / small["cpu"], large["peak_gib"] / small["peak_gib"]
    yield BenchCase(
        "store", "scaling", "times", times, memory, "memory, times", None, None, times <= 13 and memory <= 1.2,
        {"from": sizes[0], "to": sizes[1], "cpu_s": [small["cpu"], large["cpu"]],
         "gib": [small["peak_gib"], large["peak_gib"]]},
    )  # fmt: skip


def _in_process(kind: str, folder: Path, size: int) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, kind, str(folder), str(size)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _raw(ws: Workspace, size: int) -> dict:
    """As pyarrow writes them: the same batches, to one file a table."""
    for table in TABLES_WRITTEN:
        folder = ws.partition(table, 1, "rollout")
        folder.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(folder / "part-00000.parquet", TABLES[table], compression="zstd") as writer:
            for batch in _timed(store_synthetic.batches(table, size)):
                writer.write_table(batch)
    return {}


def _ours(ws: Workspace, size: int) -> dict:
    parts = {}
    for table in TABLES_WRITTEN:
        began = time.perf_counter()
        made = _made[0]
        with partitions.open_partition_writer(ws, table, 1, "score" if table == "scores" else "rollout") as writer:
            for batch in _timed(store_synthetic.batches(table, size)):
                writer.write(batch)
        parts[f"write {table}"] = round(time.perf_counter() - began - (_made[0] - made), 2)
    manifest.init_manifests(ws)
    began = time.perf_counter()
    staged = Workspace(ws.root / "staged")
    near = _clocked(near_duplicates, "find_near_duplicates")
    built = training_stores.build_training_stores(ws, 1, Settings(), READ, staged)
    training_stores.publish_training_stores(ws, 1, staged)
    assert sum(built.routed.values()) == size, built.routed
    assert not built.routed["quarantine"], built.reasons
    parts["route"] = round(time.perf_counter() - began, 2)
    parts["of it near-duplicates"] = round(near[0], 2)
    return {"parts": parts}


def _clocked(module: ModuleType, name: str) -> list[float]:
    """Seconds that a function takes from now on."""
    function, seconds = getattr(module, name), [0.0]

    def clocked(*arguments, **named):
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds[0] += time.perf_counter() - began

    setattr(module, name, clocked)
    return seconds


_made = [0.0, 0.0]  # seconds, wall and CPU, that making the rows took


def _timed(batches: Iterator) -> Iterator:
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        batch = next(batches, None)
        _made[0] += time.perf_counter() - wall
        _made[1] += time.process_time() - cpu
        if batch is None:
            return
        yield batch


def main(kind: str, folder: str, size: str) -> None:
    ws = store_synthetic.workspace(Path(folder), 0)
    partitions.write_partition(ws, "tasks", 1, "synthesize", store_synthetic.tasks(int(size), 1))
    partitions.write_partition(ws, "images", 1, "rollout", store_synthetic.images(64))
    wall, cpu = time.perf_counter(), time.process_time()
    found = {"raw": _raw, "ours": _ours}[kind](ws, int(size))
    page = resource.getrusage(resource.RUSAGE_CHILDREN)
    found |= {
        "wall": round(time.perf_counter() - wall - _made[0], 2),
        "cpu": round(time.process_time() - cpu - _made[1] + page.ru_utime + page.ru_stime, 2),
        "page_cpu": round(page.ru_utime + page.ru_stime, 2),
        "peak_gib": round(store_synthetic.peak_gib(), 3),
        "page_gib": round(page.ru_maxrss / 2**20, 3),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
