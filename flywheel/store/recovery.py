"""Recorded files that are damaged or missing: found, and brought back from DVC's cache or remote.

A stage that is recorded and unchanged in its command, parameters and inputs is never done again for the sake of its
outputs: they are fetched. Else one cut file would replace a released model by another of the same name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.progress import tell
from flywheel.store import dvc_lock, git, versioning
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
    def mend(self) -> str:
        """What to type."""
        name, _, iteration = self.stage.partition("@")
        again = f"`flywheel stage {name} --iteration {int(iteration)}`"
        lost = "`dvc remote add --default NAME URL`, where a copy is, then `dvc pull`" if self.complete else again
        return {
            "cache": f"`dvc checkout --force {self.path}`",
            "remote": "`dvc pull`",
            "git": f"`git checkout HEAD -- {self.path}`",
        }.get(self.kept, lost)


def damaged(ws: Workspace) -> list[Damage]:
    """Every output that `dvc.lock` names and that is not so on disk, in the order of the stages.

    A stage whose own inputs changed is left out: it waits to be done again.
    """
    check_index(ws)
    if not dvc_lock.path(ws).exists():
        return []
    with versioning.repository(ws) as repo, repo.lock:
        return [damage for damage, _ in _damaged(ws, repo)]


def mend(ws: Workspace) -> list[Damage]:
    """Bring back what is damaged; returns what was. Raises DataError that says what to type where it cannot be."""
    check_index(ws)
    if not dvc_lock.path(ws).exists():
        return []
    with versioning.repository(ws) as repo:
        with repo.lock:
            found = list(_damaged(ws, repo))
        if any(damage.kept == "remote" for damage, _ in found):
            tell("data", f"{len(found)} recorded files and folders are not here: fetching them (dvc pull)")
            _try(repo.fetch)
        with repo.lock:
            for damage, output in found:
                if damage.kept in ("cache", "remote"):
                    _try(output.checkout, force=True)
    if not found:
        return []
    if left := damaged(ws):
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise DataError(
            f"{left[0].path}{others}: {left[0].change} since {left[0].stage} was recorded, and cannot be brought back",
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
            f"there are data of iterations ({ws.relative(lost[0])}), but neither iterations.yaml nor dvc.lock names "
            "them",
            where=ws.root,
            fix="restore both (`git checkout HEAD -- iterations.yaml dvc.lock`), or begin anew with `flywheel clean`",
        )


def _try(action: Callable[..., Any], **options: Any) -> None:
    """What fails here is told by what is still missing after it."""
    from dvc.exceptions import DvcException

    try:
        action(**options)
    except (DvcException, OSError) as error:
        log.warning("DVC: %s", error)


def _damaged(ws: Workspace, repo) -> Iterator[tuple[Damage, Any]]:
    """Each damage with DVC's own object of that output."""
    recorded = {f"{name}@{label(k)}" for k, names in dvc_lock.recorded(ws).items() for name in names}
    stages = [stage for stage in repo.index.stages if getattr(stage, "name", None) in recorded]
    order = {name: number for number, name in enumerate(versioning.stages(ws))}
    stages.sort(key=lambda stage: (stage.name.split("@")[1], order.get(stage.name.split("@")[0], len(order))))
    outputs = {out.fs_path: out for stage in stages for out in stage.outs}
    remote = bool(repo.config["core"].get("remote") or repo.config["remote"])
    for stage in stages:
        if stage.changed_stage() or any(_changed(dep, outputs) for dep in stage.deps):
            continue
        for out in stage.outs:
            if out.workspace_status():  # less than its whole status: a file that is here need not lie in the cache
                path = Path(os.path.relpath(out.fs_path, ws.root)).as_posix()
                change = "changed" if out.exists else "missing"
                complete = dvc_lock.complete(ws, int(stage.name.split("@")[1]))
                yield Damage(stage.name, path, change, _kept(ws, out, path, remote), complete), out


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
