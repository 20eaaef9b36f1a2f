"""Recorded files that are damaged or missing: found, and brought back from DVC's cache or remote.

A stage that is recorded and unchanged in its command, parameters and inputs is never done again for the sake of its
outputs: they are fetched. Else one cut file would replace a released model by another of the same name.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.progress import tell
from flywheel.store import dvc_lock, dvc_process, git, manifest, pipeline, pruned, versioning
from flywheel.store.copying import RemoteError, copying, look
from flywheel.workspace import Workspace, label

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Damage:
    """A recorded output that is not as it was. change: missing or changed.

    kept: where its recorded content is: `cache`, `remote` (perhaps: one is configured), `git`, or "" for nowhere.
    complete: whether its iteration is, so that the stage must not be done again.
    """

    stage: str
    path: str
    change: str
    kept: str
    complete: bool

    @property
    def iteration(self) -> int:
        return int(self.stage.partition("@")[2])

    @property
    def mend(self) -> str:
        """What to type."""
        again = f"`flywheel stage {self.stage.partition('@')[0]} --iteration {self.iteration}`"
        lost = "`dvc remote add --default NAME URL`, where a copy is, then `dvc pull`" if self.complete else again
        return {
            "cache": f"`dvc checkout --force {self.path}`",
            "remote": "`dvc pull`",
            "git": f"`git checkout HEAD -- {self.path}`",
        }.get(self.kept, lost)


def damaged(ws: Workspace, which: Iterable[int] | None = None) -> list[Damage]:
    """Every recorded output that is not so on disk, in the order of the stages.

    which: iterations to look at; default: all. A stage whose own inputs changed is left out: it waits to be done again;
    so is what was pruned.
    """
    check_index(ws)
    which = versioning.iterations(ws) if which is None else list(which)
    if not any(dvc_lock.path(ws, k).exists() for k in which):
        return []
    with versioning.repository(ws) as repo, repo.lock:
        gone = {k: pruned.read(ws, k) for k in which}
        return [damage for damage, _ in _damaged(ws, repo, which) if damage.path not in gone[damage.iteration]]


def mend(ws: Workspace) -> list[Damage]:
    """Bring back what is damaged of the iterations that a run reads; returns what was.

    Raises DataError that says what to type where it cannot be.
    """
    check_index(ws)
    which = _needed(ws)
    if not which:
        return []
    hindered = ""
    with versioning.repository(ws) as repo:
        with repo.lock:
            found = [(damage, out) for damage, out in _damaged(ws, repo, which) if not _unread(ws, damage)]
        if any(damage.kept == "remote" for damage, _ in found):
            tell("data", f"{len(found)} recorded files and folders are not here: fetching them (dvc pull)")
            hindered = _fetch(repo, sorted({str(pipeline.path(ws, damage.iteration)) for damage, _ in found}))
        with repo.lock:
            for damage, output in found:
                if damage.kept in ("cache", "remote"):
                    _try(output.checkout, force=True)
    if not found:
        return []
    if left := damaged(ws, which):
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise DataError(
            f"{left[0].path}{others}: {left[0].change} since {left[0].stage} was recorded, and cannot be brought back"
            f"{hindered}",
            where=ws.root,
            fix=f"type {left[0].mend}, then the same command; nothing was done again",
        )
    for damage, _ in found[:_SHOWN]:
        tell("data", f"{damage.path} was {damage.change}: brought back as {damage.stage} recorded it")
    if len(found) > _SHOWN:
        tell("data", f"and {len(found) - _SHOWN} more")
    return [damage for damage, _ in found]


_SHOWN = 5


def check_index(ws: Workspace) -> None:
    """Raises DataError for the data of iterations that nothing records any more."""
    if not versioning.iterations(ws) and (lost := sorted(ws.data.glob("*/iteration=*"))):
        raise DataError(
            f"there are data of iterations ({ws.relative(lost[0])}), but no iterations/NNN/dvc.yaml names them",
            where=ws.root,
            fix="restore it (`git checkout HEAD -- iterations`), or begin anew with `flywheel clean`",
        )


def _fetch(repo: Any, targets: list[str]) -> str:
    """What hindered it, to be told where something is still missing after it; "" for nothing."""
    name = repo.config["core"].get("remote") or next(iter(repo.config["remote"]))
    try:
        with copying(repo.config["remote"].get(name, {}).get("url", name)):
            look(repo, name)
            repo.fetch(targets=targets)
    except RemoteError as error:
        return f": {error}"
    return ""


def _try(action: Callable[..., Any], **options: Any) -> None:
    """What fails here is told by what is still missing after it."""
    from dvc.exceptions import DvcException

    try:
        action(**options)
    except (DvcException, OSError) as error:
        log.warning("DVC: %s", error)


def _unread(ws: Workspace, damage: Damage) -> bool:
    """Whether it was pruned, and is not of what training reads."""
    if damage.path not in pruned.read(ws, damage.iteration):
        return False
    return all(not one.path.startswith(damage.path + "/") for one in manifest.read(ws, damage.iteration).all())


def _needed(ws: Workspace) -> list[int]:
    """The iterations at work, and earlier ones of which a file that training reads is not here."""
    begun = versioning.iterations(ws)
    needed = set(versioning.at_work(ws))
    built = next((k for k in reversed(begun) if ws.manifest(k).exists()), 0)
    with contextlib.suppress(DataError):  # a manifest that cannot be read is told as damage, or by who reads it
        needed |= {shard.iteration for shard in manifest.read(ws, built).all() if not ws.resolve(shard.path).exists()}
    return sorted(k for k in needed if k in begun and dvc_lock.path(ws, k).exists())


def _damaged(ws: Workspace, repo: Any, which: Iterable[int]) -> Iterator[tuple[Damage, Any]]:
    """Each damage with DVC's own object of that output."""
    remote = bool(repo.config["core"].get("remote") or repo.config["remote"])
    stages: dict[int, list[Any]] = {}
    for k in which:
        for one in (k - 1, k):  # an iteration reads small files of the one before
            if one not in stages:
                recorded = dvc_lock.recorded(ws, one)
                found = versioning.load(repo, ws, one) if recorded else []
                stages[one] = [stage for stage in found if stage.name in recorded]
        outputs = {out.fs_path: out for one in (k - 1, k) for stage in stages[one] for out in stage.outs}
        complete = dvc_lock.complete(ws, k)
        for stage in stages[k]:
            if stage.changed_stage() or any(_changed(dep, outputs) for dep in stage.deps):
                continue
            for out in stage.outs:
                if out.workspace_status():  # less than its whole status: a file here need not lie in the cache too
                    path = Path(os.path.relpath(out.fs_path, ws.root)).as_posix()
                    change = "changed" if out.exists else "missing"
                    yield Damage(f"{stage.name}@{label(k)}", path, change, _kept(ws, out, path, remote), complete), out
        dvc_process.forget_listings()


def _kept(ws: Workspace, out, path: str, remote: bool) -> str:
    if not out.use_cache:
        return "git" if git.keeps(ws.root, path) else ""
    if not out.changed_cache():
        return "cache"
    return "remote" if remote else ""


def _changed(dependency, outputs) -> bool:
    """Whether an input is another than the stage recorded. What another stage recorded the same is only damaged."""
    made = outputs.get(dependency.fs_path)
    if made is not None and made.hash_info == dependency.hash_info:
        return False
    return bool(dependency.status())
