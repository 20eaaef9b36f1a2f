"""Turns of the least work for `flywheel bench orchestration`: real in each part, small, and the same bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
from bench_case import BenchCase

from flywheel import config
from flywheel.cli import scaffold
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import partitions
from flywheel.utils.errors import FlywheelError
from flywheel.utils.files import write_text

END_S, _TURN_S = 30, 3600  # that a process has to end in
# Of a run's processes, which words their commands have; what trains is forked (where `sft.processes` is 2).
_KINDS = {
    "worker": "flows.ops.process_worker",
    "server": "flows.ops.prefect_server_main",
    "browser": "--remote-debugging",
    "trainer": "forkserver",
}
FLYWHEEL = str(Path(sys.executable).with_name("flywheel"))

# As little to train and to play as there can be: what is seen of a turn does not hang on it.
LEAST = {
    "ct.num_examples": 12,
    "sft.num_examples": 12,
    "synthesis.num_grounding_examples": 12,
    "synthesis.eval_tasks": 4,
    "rl.tasks_per_step": 2,
    "rl.value_pretraining_tasks": 2,
    "promotion.tasks": 10,
    "promotion.margin": 0.5,
}
# Each answer by itself: in a batch its last bits depend on who else asks at the moment.
SAME_BITS = {"policy.max_num_seqs": 1, "policy.cache_mb": 0, "rl.deterministic": True, "rl.max_staleness": 0}

# What two runs of the same never have in common: clocks, the names of flow runs, the ports of servers; and how often a
# page had to be opened again, which says truly what a kill did.
_OWN_COLUMNS = {"started_at", "ended_at", "at", "run_id"}
_OWN_METRICS = {"seconds", "steps_per_second", "rollout_s", "update_s", "utilisation", "answers", "crashes", "retries"}
_PORT = re.compile(r"(127\.0\.0\.1|localhost):\d+")


def figure(name: str, unit: str, ours: float, goal: float | None, met: bool, **extra: object) -> BenchCase:
    """One without a peer."""
    return BenchCase("orchestration", name, unit, ours, None, "", None, goal, met, extra)


def make(folder: Path, **overrides: object) -> Workspace:
    """A workspace of the profile `small` with these parameters, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    ws = scaffold.create_workspace(folder, "small")
    log(ws).unlink(missing_ok=True)
    write_text(ws.params, config.dump_settings(config.load_settings(ws.params, overrides)))
    return ws


def start(ws: Workspace, *words: str) -> subprocess.Popen:
    """`flywheel` with these words in the workspace; what it says is appended to `FOLDER.log` beside it."""
    with log(ws).open("ab") as out:
        return subprocess.Popen(
            [FLYWHEEL, *words, "-w", str(ws.root)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


def log(ws: Workspace) -> Path:
    return ws.root.with_suffix(".log")


def ends(ws: Workspace, process: subprocess.Popen) -> None:
    """Waits until it ends well. Raises FlywheelError where it does not."""
    try:
        process.wait(_TURN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise FlywheelError(f"the turn took more than {_TURN_S} s", where=log(ws)) from None
    if process.returncode:
        raise said(ws, process)


def said(ws: Workspace, process: subprocess.Popen) -> FlywheelError:
    """The error that a command which should have succeeded has ended with."""
    lines = log(ws).read_text(encoding="utf-8", errors="replace").splitlines()
    return FlywheelError(f"exit code {process.returncode}: {lines[-1] if lines else ''}", where=log(ws))


def by_kind(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """What may be killed of them: of several of a kind the youngest, so a trainer, not the server that forks them."""
    found = {}
    for one in processes:
        with contextlib.suppress(psutil.Error):
            words = " ".join(one.cmdline())
            found |= {kind: one for kind, mark in _KINDS.items() if mark in words and "--type=" not in words}
    return found


def hashes(ws: Workspace, iteration: int = 1) -> dict[str, str]:
    """sha256 of what an iteration has stored: of the rows of each partition, of the bytes of each checkpoint's weights,
    of what is decided by its promotion. Left out is what two runs of the same never have in common."""
    found = {}
    for folder in sorted(ws.data.glob(f"*/iteration={iteration_label(iteration)}/stage=*")):
        table, stage = folder.parent.parent.name, folder.name.partition("=")[2]
        if table != "runs":
            found[f"{table} {stage}"] = _rows(ws, table, iteration, stage)
    for weights in sorted(ws.root.glob(f"models/iteration={iteration_label(iteration)}/*/*.safetensors")):
        found[ws.relative(weights)] = hashlib.sha256(weights.read_bytes()).hexdigest()
    decided = json.loads(ws.promotion(iteration).read_text(encoding="utf-8"))
    found["promotion"] = _hash([{name: decided[name] for name in ("digest", "promoted", "reason")}])
    return found


def _rows(ws: Workspace, table: str, iteration: int, stage: str) -> str:
    data = partitions.read_partition(ws, table, iteration, stage)
    return _hash([_without_own(row) for row in data.to_pylist() if not _is_own(table, row)])


def _without_own(row: dict) -> dict:
    """What was set aside is kept whole, as JSON: its clocks too."""
    whole = {name: value for name, value in row.items() if name not in _OWN_COLUMNS}
    return whole | ({"record": _without_own(json.loads(row["record"]))} if row.get("record") else {})


def _is_own(table: str, row: dict) -> bool:
    return (table == "metrics" and row["name"] in _OWN_METRICS) or (table == "lineage" and row["parent_kind"] == "run")


def _hash(rows: list[dict]) -> str:
    """In whichever order: lineage is sorted by the names of runs too."""
    lines = sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)
    return hashlib.sha256(_PORT.sub(r"\1", "\n".join(lines)).encode()).hexdigest()
