"""Stages for tests of clusters, whose shards do nothing but wait; the nodes find this module by its name."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from flywheel.stages.base import Context, Stage, StageResult


def _wait(ctx: Context, shard: str, folder: Path) -> str:
    """Tell where it is, then wait for the test's word."""
    import ray  # it reads the environment as it is imported, which a test changes before

    tries = ctx.ws.root / "tries"
    note = tries / f"{shard} {uuid.uuid4().hex}"
    (hidden := tries / f".{note.name}").write_text(f"{ray.get_runtime_context().get_node_id()} {os.getpid()}")
    hidden.rename(note)
    ctx.report(f"{shard} is here")
    while not (ctx.ws.root / f"go {shard}").exists():
        time.sleep(0.02)
    return shard


def _die(ctx: Context, shard: str, folder: Path) -> None:
    os._exit(1)


def _finish(ctx: Context, results: dict) -> StageResult:
    return StageResult()


def stage(work) -> Stage:
    return Stage("waits", (), (), (), lambda ctx: (), work, _finish, needs=("browsers",))


WAITS, DIES = stage(_wait), stage(_die)
