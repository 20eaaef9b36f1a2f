"""DVC: after a stage, its outputs are recorded; after a turn `dvc status` is clean and `dvc repro` does
nothing.

Each iteration has a dvc.yaml of its own, made from what the stages declare (`flywheel/store/pipeline.py`), and a
dvc.lock beside it: what is done here costs the same, whichever the iteration's number.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flywheel import settings as settings_module
from flywheel.errors import BadInput, DataError
from flywheel.files import write_text
from flywheel.progress import tell
from flywheel.settings import Settings
from flywheel.store import (
    decisions,
    dvc_lock,
    dvc_process,
    earlier_layout,
    manifest,
    newest,
    pipeline,
    pruned,
    sessions,
)
from flywheel.store import frozen as frozen_settings
from flywheel.store.dvc_process import VersioningError
from flywheel.workspace import Workspace, label

log = logging.getLogger(__name__)

_STAGE = re.compile(r"^  ([\w-]+):", re.MULTILINE)
_CONFIG = "[core]\n    analytics = false\n    autostage = false\n    check_update = false\n"


def stages(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """Names of the iteration's stages, in the order they run. Raises BadInput where it has not been begun."""
    try:
        return tuple(_STAGE.findall(pipeline.path(ws, iteration).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(
            f"iteration {label(iteration)} has not been begun",
            where=ws.relative(pipeline.path(ws, iteration)),
            fix=f"type `flywheel run --iterations {iteration}`",
        ) from None


def address(ws: Workspace, stage: str, iteration: int) -> str:
    """How a stage of an iteration is called: `rollout@007`, for DVC `iterations/007/dvc.yaml:rollout`. Raises BadInput
    where the iteration has none of that name.
    """
    known = stages(ws, iteration)
    if stage not in known:
        what = f"there is no stage {stage}@{label(iteration)}"
        raise BadInput(what, where=ws.relative(pipeline.path(ws, iteration)), fix=f"one of: {', '.join(known)}")
    return f"{stage}@{label(iteration)}"


def prepare(ws: Workspace) -> None:
    """Make the folder a DVC project of this version. What runs have made is kept; git's index is not touched."""
    dvc = ws.root / ".dvc"
    if not (dvc / "config").exists():
        write_text(dvc / "config", _CONFIG + ("" if _in_git(ws.root) else "    no_scm = true\n"))
        write_text(dvc / ".gitignore", "/config.local\n/tmp\n/cache\n")
    if not (ws.root / ".dvcignore").exists():
        write_text(ws.root / ".dvcignore", "# Patterns of files that DVC ignores\n.flywheel\n.venv\n")
    begun = iterations(ws)
    manifest.begin(ws, begun)
    newest.prepare(ws, max(begun, default=0))


def add_iteration(ws: Workspace, iteration: int, settings: Settings, later: sessions.Later | None = None) -> Settings:
    """Begin iteration k: its own copy of the parameters, its list of sessions, its stages.

    What was frozen stands: a resumed iteration keeps the parameters that it began with. Returns those. Its stages are
    those of this version until it is complete. later: as for `sessions.plan`. Raises DataError where the iteration
    before it is not there.
    """
    begun = iterations(ws)
    if iteration > 1 and iteration - 1 not in begun:
        raise DataError(
            f"iteration {label(iteration - 1)} has not been begun", where=ws.root / "iterations", fix="run it first"
        )
    with dvc_process.one_at_a_time(ws):
        frozen = ws.frozen_params(iteration)
        if not frozen.exists():
            write_text(frozen, settings_module.dump(settings))
        settings = frozen_settings.load(ws, iteration)
        decisions.begin(ws, iteration)
        own = settings.recording
        sessions.plan(ws, iteration, own.folder, own.sessions_per_iteration, own.imports_per_iteration, later)
    if not dvc_lock.complete(ws, iteration):
        _declare(ws, iteration, list(settings.synthesis.domains))
    newest.name(ws, max([*begun, iteration]))
    return settings


def iterations(ws: Workspace) -> list[int]:
    """The iterations that were begun, oldest first. Raises DataError where DVC's file of one is lost."""
    earlier_layout.leave(ws)
    folders = [int(path.name) for path in (ws.root / "iterations").glob("[0-9]*") if path.name.isdigit()]
    begun = sorted(k for k in folders if pipeline.path(ws, k).exists())
    lost = [k for k in range(1, max(begun, default=0)) if k not in set(begun)]
    if lost := sorted({*lost, *(k for k in folders if dvc_lock.path(ws, k).exists())} - set(begun)):
        path = pipeline.path(ws, lost[0])
        others = f", and those of {len(lost) - 1} more iterations" if len(lost) > 1 else ""
        raise DataError(
            f"the stages of iteration {label(lost[0])} are lost{others}",
            where=path,
            fix=f"restore them: `git checkout HEAD -- {ws.relative(path)}`",
        )
    return begun


def at_work(ws: Workspace) -> list[int]:
    """The newest iteration, and the one that it stands on while it is not complete."""
    begun = iterations(ws)
    return begun[-1:] if not begun or dvc_lock.complete(ws, begun[-1]) else begun[-2:]


def forget(ws: Workspace, iteration: int) -> None:
    """Take the newest iteration's stages and what is recorded of them away. Nothing happens where there are none."""
    dvc_lock.path(ws, iteration).unlink(missing_ok=True)
    pipeline.path(ws, iteration).unlink(missing_ok=True)
    newest.name(ws, max(iterations(ws), default=0))


def commit(ws: Workspace, stage: str, iteration: int) -> None:
    """Record a stage's inputs, parameters and outputs as they are now (`dvc commit --force`).

    Raises VersioningError naming what is missing.
    """
    name = address(ws, stage, iteration)
    with repository(ws) as repo:
        (recorded,) = load(repo, ws, iteration, [stage])
        missing = [str(item) for item in (*recorded.deps, *recorded.outs) if not item.exists]
        if missing:
            raise VersioningError(
                f"the stage {name} cannot be recorded: missing {', '.join(missing)}",
                where=ws.root,
                fix=f"type `flywheel stage {stage} --iteration {iteration}`",
            )
        began = time.perf_counter()
        # What `repo.commit` does, less its run cache, which works only where the process stands in the workspace.
        with repo.lock:
            recorded.save(run_cache=False)
            recorded.commit()
            dvc_lock.enter(ws, iteration, [recorded])
        log.info("recorded %s in DVC in %.2f s", name, time.perf_counter() - began)
    if stage == dvc_lock.LAST and iteration == iterations(ws)[-1]:
        newest.name(ws, iteration)


def is_done(ws: Workspace, stage: str, iteration: int) -> bool:
    """Whether the stage is recorded, and its command, parameters, inputs and outputs are as they were then."""
    return not unfinished(ws, (stage,), iteration)


def unfinished(ws: Workspace, names: Iterable[str], iteration: int) -> list[str]:
    """Those of the stages that are not done, in their order; one look at DVC for all of them."""
    names = [address(ws, name, iteration).partition("@")[0] for name in names]
    with repository(ws) as repo, repo.lock:
        return [stage.name for stage in load(repo, ws, iteration, names) if _changes(ws, stage)]


def status(ws: Workspace, which: Iterable[int] | None = None) -> dict[str, dict[str, str]]:
    """Stages that changed since they were recorded: `{"merge@001": {path: what happened to it}}`; empty is clean.

    which: iterations to look at; default: all.
    """
    found = {}
    with repository(ws) as repo, repo.lock:
        for k in iterations(ws) if which is None else which:
            for stage in load(repo, ws, k):
                if changes := _changes(ws, stage):
                    found[f"{stage.name}@{label(k)}"] = changes
            dvc_process.forget_listings()
    return found


def checkout(ws: Workspace, *, force: bool = False) -> dict[str, list[str]]:
    """Bring data and models to what `dvc.lock` names. Returns the paths added, deleted and modified.

    force: also throw away what was changed and never recorded. Raises VersioningError where that would be needed,
    or where the cache lacks a file.
    """
    with repository(ws) as repo:
        return {key: value for key, value in repo.checkout(force=force).items() if isinstance(value, list)}


def _changes(ws: Workspace, stage) -> dict[str, str]:
    """What changed of one stage: path -> change; not what was pruned. Paths from the workspace; DVC's own status has
    them from the current folder."""
    changes = {"dvc.yaml": "command modified"} if stage.changed_stage() else {}
    gone = pruned.read(ws, int(Path(stage.path).parent.name))
    found = [(item, item.status()) for item in stage.deps]
    found += [(item, item.workspace_status()) for item in stage.outs]  # what is here need not lie in the cache too
    for item, status in found:
        for change in status.values():
            path = Path(os.path.relpath(item.fs_path, ws.root)).as_posix()
            if path in gone and not item.exists:
                continue
            if not isinstance(change, str):  # of a parameter file: parameter -> change
                change = ", ".join(f"{name} {what}" for name, what in change.items())
            changes[path] = change
    return changes


@contextmanager
def repository(ws: Workspace) -> Iterator[Any]:
    """As `dvc_process.repository`, of this version."""
    earlier_layout.leave(ws)
    with dvc_process.repository(ws) as repo:
        yield repo


def load(repo: Any, ws: Workspace, iteration: int, names: Iterable[str] | None = None) -> list[Any]:
    """DVC's stages of an iteration, those of these names or all; its dvc.yaml and dvc.lock are read once."""
    from dvc.dvcfile import load_file

    loader = load_file(repo, str(pipeline.path(ws, iteration))).stages
    return [loader[name] for name in (loader if names is None else names)]


def _declare(ws: Workspace, iteration: int, domains: list[str]) -> None:
    """The iteration's dvc.yaml. What was recorded under another one is recorded anew, where it is unchanged."""
    path, text = pipeline.path(ws, iteration), pipeline.dvc_yaml(iteration, domains)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    sound = set(dvc_lock.recorded(ws, iteration))
    if sound:
        sound -= {name.partition("@")[0] for name in status(ws, [iteration])}
    write_text(path, text)
    if not sound:
        return
    with repository(ws) as repo, repo.lock:
        other = [stage for stage in load(repo, ws, iteration) if stage.name in sound and _changes(ws, stage)]
        for stage in other:
            stage.save(run_cache=False)
            stage.commit()
        dvc_lock.enter(ws, iteration, other)
    if other:
        tell("dvc", f"{len(other)} stages of {label(iteration)} are recorded by the declaration of this version")


def _in_git(root: Path) -> bool:
    """Whether `root` is the top of a git working tree (DVC wants it there, or nowhere)."""
    return (root / ".git").exists()
