"""What runs on a node: the look at it before work begins, and the worker that does shards of one stage there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

import flywheel
from flywheel.cluster import needs
from flywheel.environments import catalogue, foreign, kind
from flywheel.errors import BadInput, ClusterError, last_line
from flywheel.progress import listening
from flywheel.settings import Settings
from flywheel.stages.base import Context, Stage, Worker
from flywheel.training.parallel.workers import begun_by
from flywheel.workspace import label

if TYPE_CHECKING:
    from flywheel.cluster.trainers import Team

_OVER = None  # in place of a line: the shard is over
Fault = tuple[str, str]  # what is wrong with a node, and how to mend it


@dataclass(frozen=True)
class Shared:
    """What tells a node that it sees the run's own folder: a file that the run has just written, and holds locked.
    root: of the workspace."""

    path: Path
    text: str
    source: str
    root: Path


@cache
def source() -> str:
    """Digest of flywheel's own source: nodes with another one would do other things."""
    root, sha = Path(flywheel.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sha.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:12]


def fault(shared: Shared, settings: Settings, plays: bool) -> Fault | None:
    """Why this machine cannot take part; None where it can. plays: it is to open environments."""
    if source() != shared.source:
        return "it has another version of flywheel", "install the same one on all nodes"
    try:
        text, file = shared.path.read_text(encoding="utf-8"), shared.path.open("a")
    except OSError as error:
        return f"the workspace is not there: {error.strerror}", f"share {shared.path.parent} with it, at the same path"
    with file:
        if text != shared.text:
            return "it has another folder at the workspace's path", "share the run's own folder with it"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # the run's lock is felt here, so that of a shard will be
        else:
            return "locks on files of the shared folder do not reach it", "mount the folder with locks (NFS 4 has them)"
    try:
        foreign.register_all(settings, shared.root)  # this process opened no `Context`: it was sent one
        if plays:
            kind.check(settings, catalogue.kinds(settings))
    except BadInput as error:
        return str(error), "mend that machine, or start its node without the resource browsers"
    return None


def refuse(node: str, fault: Fault | None) -> None:
    """Raises ClusterError for a node that has a fault."""
    if fault:
        raise ClusterError(fault[0], where=f"node {node}", fix=fault[1])


def reason(error: RayError) -> str:
    """In one line: what it says ends in the last line of a traceback where there is one."""
    return last_line(str(error)) or type(error).__name__


class ShardWorker:
    """The actor: `stages/base.py: Worker`, and the lines that it says meanwhile. Two calls run at once: one does a
    shard, the other hears of it. environ: variables of the environment that its process gets. team: its nodes, where it
    has several."""

    def __init__(self, stage: Stage, ctx: Context, environ: Mapping[str, str], team: Team | None = None) -> None:
        os.environ.update(environ)  # not by Ray's runtime_env, which stands in logs and in command lines
        self._stage, self._ctx, self._team = stage, ctx, team
        self._worker = Worker(stage, ctx)
        self._said: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call it."""
        return f"{self._stage.name} {label(self._ctx.iteration)} of {self._ctx.ws.root.name}"

    def fault(self, shared: Shared) -> tuple[str, Fault | None]:
        """The node's address, and its fault: it may have joined after the others were looked at."""
        settings = self._ctx.settings
        return ray.util.get_node_ip_address(), fault(shared, settings, needs.plays(self._stage, settings))

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        try:
            with listening(lambda stage, line: self._said.put((stage, line))), self._training():
                return self._worker.do_shard(shard)
        finally:
            self._said.put(_OVER)

    def _training(self) -> AbstractContextManager[None]:
        """Within it the processes that train one model are on all of its nodes."""
        if self._team is None:
            return nullcontext()
        return begun_by(self._team)

    def news(self, seconds: float) -> list[tuple[str, str]]:
        """Lines said since the last call, once there are any, the shard is over, or so many seconds have passed: the
        worker's sign of life."""
        found = []
        try:
            line = self._said.get(timeout=seconds)
            while line is not _OVER:
                found.append(line)
                line = self._said.get_nowait()
        except queue.Empty:
            pass
        return found

    def close(self) -> None:
        self._worker.close()
