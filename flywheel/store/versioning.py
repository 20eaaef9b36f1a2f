"""DVC: after a stage, its outputs are recorded; after a turn `dvc status` is clean and `dvc repro` does
nothing.

`dvc.yaml` is made from what the stages declare and the domains that the iterations have (`flywheel/store/pipeline.py`).
DVC runs in this process (0.2 s a call, against 0.6 s for its command), one call at a time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from flywheel import settings as settings_module
from flywheel.errors import BadInput, DataError, FlywheelError
from flywheel.files import write_text
from flywheel.progress import tell
from flywheel.settings import Settings
from flywheel.store import dvc_lock, manifest, pipeline, sessions
from flywheel.store import frozen as frozen_settings
from flywheel.workspace import Workspace, label

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 300.0
_PIPELINE = "dvc.yaml"
_SPECIALIST = "rl-"  # and its domain
_PREVIOUS = "prev"  # in the index: the iteration before
_CONFIG = "[core]\n    analytics = false\n    autostage = false\n    check_update = false\n"


class VersioningError(FlywheelError):
    """DVC could not record, compare or restore something."""


def stages(ws: Workspace) -> tuple[str, ...]:
    """Names of the workspace's stages, in the order they run."""
    return tuple(yaml.safe_load((ws.root / _PIPELINE).read_text(encoding="utf-8"))["stages"])


def address(ws: Workspace, stage: str, iteration: int) -> str:
    """DVC's name of a stage of an iteration: `rollout@007`. Raises BadInput for an unknown stage."""
    if stage not in stages(ws):
        raise BadInput(f"unknown stage {stage}", where=_PIPELINE, fix=f"one of: {', '.join(stages(ws))}")
    return f"{stage}@{label(iteration)}"


def prepare(ws: Workspace) -> None:
    """Make the folder a DVC project with an index of iterations, and its pipeline that of this version. What runs have
    made is kept; git's index is not touched.
    """
    dvc = ws.root / ".dvc"
    if not (dvc / "config").exists():
        write_text(dvc / "config", _CONFIG + ("" if _in_git(ws.root) else "    no_scm = true\n"))
        write_text(dvc / ".gitignore", "/config.local\n/tmp\n/cache\n")
    if not (ws.root / ".dvcignore").exists():
        write_text(ws.root / ".dvcignore", "# Patterns of files that DVC ignores\n.flywheel\n.venv\n")
    index = _index(ws)
    if not (ws.root / "iterations.yaml").exists():
        _write_index(ws, index)
    manifest.begin(ws, map(int, index))
    _write_pipeline(ws, index)


def add_iteration(ws: Workspace, iteration: int, settings: Settings) -> Settings:
    """Enter iteration k into the index, with its own copy of the parameters and its list of sessions.

    What was frozen stands: a resumed iteration keeps the parameters that it began with. Returns those.
    Raises DataError where the iteration before it is not there.
    """
    path = ws.root / "iterations.yaml"
    with _one_at_a_time(ws):
        index = _index(ws)
        previous = label(iteration - 1)
        if iteration > 1 and previous not in index:
            raise DataError(f"iteration {previous} is not in the index", where=path, fix="run it first")
        frozen = ws.frozen_params(iteration)
        if not frozen.exists():
            write_text(frozen, settings_module.dump(settings))
        settings = frozen_settings.load(ws, iteration)
        own = settings.recording
        sessions.plan(ws, iteration, own.folder, own.sessions_per_iteration, own.imports_per_iteration)
        if label(iteration) not in index:
            index[label(iteration)] = _entry(ws, iteration, settings)
            _write_index(ws, index)
    _write_pipeline(ws, index)
    return settings


def iterations(ws: Workspace) -> list[int]:
    """The iterations in the index, oldest first."""
    return sorted(int(name) for name in _index(ws))


def forget(ws: Workspace, iteration: int) -> None:
    """Take an iteration out of dvc.lock and out of the index. Nothing happens where it is in neither."""
    with _one_at_a_time(ws):
        dvc_lock.drop(ws, iteration)
        index = _index(ws)
        if index.pop(label(iteration), None):
            _write_index(ws, index)


def commit(ws: Workspace, stage: str, iteration: int) -> None:
    """Record a stage's inputs, parameters and outputs as they are now (`dvc commit --force`).

    Raises VersioningError naming what is missing.
    """
    name = address(ws, stage, iteration)
    with repository(ws) as repo:
        (recorded,) = _load(repo, name)
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
            dvc_lock.enter(ws, [recorded])
        log.info("recorded %s in DVC in %.2f s", name, time.perf_counter() - began)


def is_done(ws: Workspace, stage: str, iteration: int) -> bool:
    """Whether the stage is recorded, and its command, parameters, inputs and outputs are as they were then."""
    return not unfinished(ws, (stage,), iteration)


def unfinished(ws: Workspace, names: Iterable[str], iteration: int) -> list[str]:
    """Those of the stages that are not done, in their order; one look at DVC for all of them."""
    addresses = {name: address(ws, name, iteration) for name in names}
    with repository(ws) as repo:
        recorded = _load(repo, *addresses.values())
        with repo.lock:
            return [name for name, stage in zip(addresses, recorded, strict=True) if _changes(ws, stage)]


def status(ws: Workspace) -> dict[str, dict[str, str]]:
    """Stages that changed since they were recorded: `{"merge@001": {path: what happened to it}}`; empty is clean."""
    with repository(ws) as repo, repo.lock:
        found = {stage.name: _changes(ws, stage) for stage in repo.index.stages}
    return {name: changes for name, changes in found.items() if changes}


def checkout(ws: Workspace, *, force: bool = False) -> dict[str, list[str]]:
    """Bring data and models to what `dvc.lock` names. Returns the paths added, deleted and modified.

    force: also throw away what was changed and never recorded. Raises VersioningError where that would be needed,
    or where the cache lacks a file.
    """
    with repository(ws) as repo:
        return {key: value for key, value in repo.checkout(force=force).items() if isinstance(value, list)}


def _changes(ws: Workspace, stage) -> dict[str, str]:
    """What changed of one stage: path -> change. Paths from the workspace; DVC's own status has them from the
    current folder."""
    changes = {"dvc.yaml": "command modified"} if stage.changed_stage() else {}
    found = [(item, item.status()) for item in stage.deps]
    found += [(item, item.workspace_status()) for item in stage.outs]  # what is here need not lie in the cache too
    for item, status in found:
        for change in status.values():
            path = Path(os.path.relpath(item.fs_path, ws.root)).as_posix()
            if not isinstance(change, str):  # of a parameter file: parameter -> change
                change = ", ".join(f"{name} {what}" for name, what in change.items())
            changes[path] = change
    return changes


def _load(repo, *names: str) -> list:
    """DVC's stages of these addresses; dvc.yaml and dvc.lock are read once."""
    from dvc.dvcfile import load_file
    from dvc.stage.exceptions import StageNotFound

    loader = load_file(repo, str(Path(repo.root_dir) / "dvc.yaml")).stages
    try:
        return [loader[name] for name in names]
    except StageNotFound as error:
        missing = error.name
        raise BadInput(
            f"there is no stage {missing}",
            where="iterations.yaml",
            fix=f"type `flywheel run --iterations {int(missing.rsplit('@', 1)[1])}`",
        ) from None


@contextmanager
def repository(ws: Workspace) -> Iterator:
    """DVC's view of the workspace, fresh from disk. Its errors become VersioningError, in one line."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    with _one_at_a_time(ws):
        try:
            with Repo(str(ws.root)) as repo:
                yield repo
        except DvcException as error:
            raise VersioningError(f"DVC: {error}", where=ws.root, fix="type `dvc status` there for more") from error


@contextmanager
def _one_at_a_time(ws: Workspace) -> Iterator[None]:
    """Parallel DVC processes meet lock errors: wait here, with a deadline."""
    ws.state.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with (ws.state / "dvc.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise VersioningError(
                        f"another process has been recording for {_LOCK_TIMEOUT_S:.0f} s",
                        where=ws.state / "dvc.lock",
                        fix="let it end, or end it",
                    ) from None
                time.sleep(0.05)
        yield


def _index(ws: Workspace) -> dict[str, dict[str, str]]:
    path = ws.root / "iterations.yaml"
    known = dvc_lock.recorded(ws)
    try:
        index = yaml.safe_load(path.read_text(encoding="utf-8"))["turns"] or {}
        index = {str(name): {str(key): str(value) for key, value in entry.items()} for name, entry in index.items()}
    except FileNotFoundError:
        index = {}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"not an index of iterations: {error}", where=path, fix="restore it from git") from None
    if lost := [label(k) for k in sorted(known) if label(k) not in index]:
        raise DataError(
            f"the index of iterations {'lacks' if path.exists() else 'is missing, and with it'} {', '.join(lost)}, "
            "which dvc.lock records",
            where=path,
            fix="restore it: `git checkout HEAD -- iterations.yaml`",
        )
    return index


def _entry(ws: Workspace, iteration: int, settings: Settings) -> dict[str, str]:
    """An iteration's line of the index: its predecessor, and its specialist of each domain, which `merge` reads."""
    models = {domain: ws.model(iteration, f"{_SPECIALIST}{domain}") for domain in settings.synthesis.domains}
    return {_PREVIOUS: label(iteration - 1), **{domain: ws.relative(path) for domain, path in models.items()}}


def _domains(ws: Workspace, index: dict[str, dict[str, str]]) -> list[str]:
    """Those that an iteration has; before the first iteration, those of the parameters."""
    if not index:
        return list(settings_module.load(ws.params).synthesis.domains)
    return list(dict.fromkeys(key for _, entry in sorted(index.items()) for key in entry if key != _PREVIOUS))


def _trained(entry: dict[str, str]) -> dict[str, str]:
    """The specialists of an iteration: domain -> folder."""
    return {key: path for key, path in entry.items() if Path(path).name == f"{_SPECIALIST}{key}"}


def _write_index(ws: Workspace, index: dict[str, dict[str, str]]) -> None:
    # As JSON, which is YAML too: PyYAML writes 008 bare, which is text to it and a number to DVC (YAML 1.1, 1.2).
    lines = []
    domains = _domains(ws, index)
    # An iteration without a domain names a specialist that it has in its place: to DVC, `merge` reads that one alone.
    turns = {k: {**dict.fromkeys(domains, next(iter(_trained(entry).values()))), **entry} for k, entry in index.items()}
    trained = {domain: {k: True for k, entry in index.items() if domain in _trained(entry)} for domain in domains}
    for name, entries in {"turns": turns, **trained}.items():
        lines.append(f"{name}:" if entries else f"{name}: {{}}")
        lines += [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(entries.items())]
    write_text(ws.root / "iterations.yaml", "\n".join(lines) + "\n")


def _write_pipeline(ws: Workspace, index: dict[str, dict[str, str]]) -> None:
    """dvc.yaml for these iterations. What was recorded under another one is recorded anew, where it is unchanged."""
    path, text = ws.root / _PIPELINE, pipeline.dvc_yaml(_domains(ws, index))
    before = path.read_text(encoding="utf-8") if path.exists() else text
    if before == text and path.exists():
        return
    names = {f"{name}@{label(k)}" for k, stages in dvc_lock.recorded(ws).items() for name in stages}
    sound = names - status(ws).keys() if names else names
    write_text(path, text)
    if not sound:
        return
    with repository(ws) as repo, repo.lock:
        other = [stage for stage in repo.index.stages if stage.name in sound and _changes(ws, stage)]
        for stage in other:
            stage.save(run_cache=False)
            stage.commit()
        dvc_lock.enter(ws, other)
    if other:
        tell("dvc", f"{len(other)} stages of earlier iterations are recorded by the declaration of this version")


def _in_git(root: Path) -> bool:
    """Whether `root` is the top of a git working tree (DVC wants it there, or nowhere)."""
    return (root / ".git").exists()
