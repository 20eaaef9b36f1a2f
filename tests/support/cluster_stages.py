"""Stages for tests of clusters, whose shards wait for the test's word; the nodes find this module by its name."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from pathlib import Path

from flywheel.pipeline.stage import Stage, StageContext, StageResult
from flywheel.pipeline.stages import rollout
from flywheel.utils.progress import add_listener


def _here() -> str:
    """The node that this process is on."""
    import ray  # it reads the environment as it is imported, which a test changes before

    return ray.get_runtime_context().get_node_id()


def _wait(ctx: StageContext, shard: str, folder: Path) -> str:
    """Tell where it is, then wait for the test's word."""
    tries = ctx.ws.root / "tries"
    note = tries / f"{shard} {uuid.uuid4().hex}"
    (hidden := tries / f".{note.name}").write_text(f"{_here()} {os.getpid()}")
    hidden.rename(note)
    ctx.report(f"{shard} is here")
    while not (ctx.ws.root / f"go {shard}").exists():
        time.sleep(0.02)
    return shard


def _play(ctx: StageContext, shard: str, folder: Path) -> dict:
    """As rollout does; the first worker that has played a part of its shard says where it is, and goes no further while
    the test's file is there."""

    def hold(stage: str, line: str) -> None:
        if ": 1 of " not in line:
            return
        try:
            (ctx.ws.root / "hold").rename(held := ctx.ws.root / f"held {_here()}")
        except FileNotFoundError:
            return
        while held.exists():
            time.sleep(0.02)

    with add_listener(hold):
        return rollout.STAGE.work(ctx, shard, folder)


def _die(ctx: StageContext, shard: str, folder: Path) -> None:
    os._exit(1)


def _finish(ctx: StageContext, results: dict) -> StageResult:
    return StageResult()


def stage(work) -> Stage:
    return Stage("waits", (), (), (), lambda ctx: (), work, _finish, needs=("browsers",))


WAITS, DIES = stage(_wait), stage(_die)
PLAYS = dataclasses.replace(rollout.STAGE, work=_play)
