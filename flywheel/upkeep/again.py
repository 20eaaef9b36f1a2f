"""Make what was decided again the workspace's, so that a process that is killed half way loses nothing.

All that changes is built beside the data first, in `.flywheel/again`. `plan.json`, written there last, makes it count:
from then on it is carried out, and where that was interrupted, the next command that changes the workspace goes on with
it (`resume`). Every step of it may be done twice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel import settings
from flywheel.files import write_json
from flywheel.progress import tell
from flywheel.store import decisions, dvc_lock, git, manifest, partitions, remote, versioning
from flywheel.store.decisions import Decision
from flywheel.workspace import Workspace, label

_STAGES = ("ingest", "rollout", "score", "route")  # whose partitions may be decided again, in their order


@dataclass(frozen=True)
class Again:
    """What was decided again of an iteration; its new partitions lie in `staged`."""

    iteration: int
    decision: Decision


def staged(ws: Workspace, iteration: int) -> Workspace:
    """Where an iteration's new partitions are built."""
    return Workspace(_folder(ws) / label(iteration))


def begin(ws: Workspace) -> None:
    """Finish what is to be carried out, and remove what is not. Under the workspace's lock."""
    resume(ws)
    shutil.rmtree(_folder(ws), ignore_errors=True)


def stale(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """Stages of decided iterations that read the iteration's stores as they are now, and are not done again."""
    found = []
    for k in versioning.iterations(ws):
        if k < iteration or not dvc_lock.decided(ws, k):
            continue
        out_of_window = ["sft"] * (k - manifest.own(ws, k)["window"] >= iteration)
        read = {ws.relative(ws.manifest(k)), ws.relative(ws.partition("scores", iteration, "score"))}
        for stage, entry in dvc_lock.read(dvc_lock.path(ws, k)).items():
            if stage not in (*_STAGES, *out_of_window) and read & {one["path"] for one in entry.get("deps", ())}:
                found.append(f"{stage}@{label(k)}")
    return tuple(found)


def carry_out(ws: Workspace, decided: Iterable[Again]) -> None:
    """Make it the workspace's: partitions, decisions, manifests, DVC's records. Under the workspace's lock."""
    again = [
        {"iteration": one.iteration, "version": decisions.version(ws, one.iteration) + 1, **asdict(one)}
        for one in decided
    ]
    first = min(one["iteration"] for one in again)
    chained = [k for k in versioning.iterations(ws) if k >= first and ws.manifest(k).exists()]
    manifests = {str(k): _content(ws.manifest(k))["md5"] for k in chained}
    recorded = {path: out["md5"] for one in again for path, out in dvc_lock.outputs(ws, one["iteration"]).items()}
    write_json(_plan(ws), {"again": again, "manifests": manifests, "recorded": recorded})
    resume(ws)


def resume(ws: Workspace) -> list[int]:
    """Go on with what was being carried out; returns its iterations, none where there is nothing. Under the lock."""
    try:
        plan = json.loads(_plan(ws).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    for one in plan["again"]:
        _adopt(ws, one)
    before = {int(k): md5 for k, md5 in plan["manifests"].items()}
    for k in sorted(before):
        if k - 1 in before:
            manifest.chain(ws, k)
        if dvc_lock.decided(ws, k):
            named = [(before[j], ws.manifest(j)) for j in (k - 1, k) if j in before]
            now = {ws.relative(path): (old, _content(path)) for old, path in named}
            made = {path: (plan["recorded"].get(path, ""), one) for path, one in dvc_lock.outputs(ws, k).items()}
            dvc_lock.renew(ws, k, {**made, **now})
    which = [one["iteration"] for one in plan["again"]]
    versions = settings.load(ws.params).versioning
    if versions.git:
        git.commit(ws.root, f"Decided again: iteration {', '.join(map(label, which))}", ("iterations",))
    shutil.rmtree(_folder(ws))
    remote.push(ws, versions.remote)
    tell("again", f"iteration {', '.join(map(label, which))}: what was decided again is in place")
    return which


def _adopt(ws: Workspace, one: dict[str, Any]) -> None:
    k, new = one["iteration"], staged(ws, one["iteration"])
    changed = set()
    for path in sorted(new.data.glob("*/iteration=*/stage=*")):
        table, stage = path.parts[-3], path.name.removeprefix("stage=")
        partitions.adopt(ws, new, table, k, stage)
        changed.add(stage)
    decided = decisions.read(ws, k)[: one["version"] - 1]
    decisions.write(ws, k, (*decided, decisions.decision(one["decision"])))
    manifest.write_again(ws, k)
    recorded = set(dvc_lock.recorded(ws, k))
    for stage in _STAGES:
        if stage in recorded and (stage in changed or stage in ("score", "route")):
            versioning.commit(ws, stage, k)


def _content(path: Path) -> dict[str, Any]:
    """As DVC names a file."""
    content = path.read_bytes()
    return {"md5": hashlib.md5(content, usedforsecurity=False).hexdigest(), "size": len(content)}


def _folder(ws: Workspace) -> Path:
    return ws.state / "again"


def _plan(ws: Workspace) -> Path:
    return _folder(ws) / "plan.json"
