"""Record an iteration's stages in DVC, find what changed since, and load the parameters that it began with.

Each iteration has its own dvc.yaml, made from what the stages declare (`flywheel/pipeline/dag.py`), and its own
dvc.lock, so the cost of all this does not grow with the number of iterations.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel import config
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import manifest
from flywheel.store.schema import COUNTERFACTUAL
from flywheel.store.versioning import dvc_files, git_tags
from flywheel.store.versioning.dvc_files import VersioningError
from flywheel.utils.errors import BadInput, DataError, DiskFull, FlywheelError
from flywheel.utils.files import disk_full_errors, file_signature, is_changed_just_now, write_json, write_text

if TYPE_CHECKING:
    from flywheel.config import Settings

log = logging.getLogger(__name__)

_STAGE = re.compile(r"^  ([\w-]+):", re.MULTILINE)
_DOTTED = re.compile(r"\w+(?:\.(?!ya?ml\b)\w+)+")  # no name of a file
_OUTPUT = re.compile(r"(?:data|models)/[\w./=-]+")
_CONFIG = "[core]\n    analytics = false\n    autostage = false\n    check_update = false\n"


def stage_names(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """Return the names of the iteration's stages, in the order in which they run.

    Raises BadInput where it has not been begun.
    """
    try:
        return tuple(_STAGE.findall(dvc_files.dvc_yaml_path(ws, iteration).read_text("utf-8", "replace")))
    except FileNotFoundError:
        raise BadInput(
            f"iteration {iteration_label(iteration)} has not been begun",
            where=ws.relative(dvc_files.dvc_yaml_path(ws, iteration)),
            fix=f"type `flywheel run --iterations {iteration}`",
        ) from None


def stage_address(ws: Workspace, stage: str, iteration: int) -> str:
    """Return the name of a stage of an iteration for people: `rollout@007`.

    To DVC it is `iterations/007/dvc.yaml:rollout`. Raises BadInput where the iteration has no stage of that name, or
    has not been begun.
    """
    known = stage_names(ws, iteration)
    if stage not in known:
        raise BadInput(
            f"iteration {iteration_label(iteration)} has no stage {stage}",
            where=ws.relative(dvc_files.dvc_yaml_path(ws, iteration)),
            fix=f"use one of: {', '.join(known)}; `flywheel run` adds a new one to an iteration that is not complete",
        )
    return f"{stage}@{iteration_label(iteration)}"


def find_orphaned_outputs(ws: Workspace, iteration: int) -> list[str]:
    """Return the paths of the iteration's partitions and models that none of its stages writes.

    Such are those of a stage that was renamed while the iteration was open; those of counterfactual runs are left out.
    Paths are relative to the workspace. Raises BadInput where it has not been begun.
    """
    stage_names(ws, iteration)
    declared = _OUTPUT.findall(dvc_files.dvc_yaml_path(ws, iteration).read_text("utf-8", "replace"))
    label = iteration_label(iteration)
    folders = (*ws.data.glob(f"*/iteration={label}/stage=*"), *(ws.root / "models").glob(f"iteration={label}/[!.]*"))
    found = (path for path in folders if path.is_dir() and path.name != f"stage={COUNTERFACTUAL}")
    return sorted({*map(ws.relative, found)}.difference(declared))


def remove_orphaned_outputs(ws: Workspace, iteration: int) -> list[str]:
    """Remove what `find_orphaned_outputs` lists, and the dvc.lock's entries of stages that are not declared.

    DVC's cache keeps its copies. Returns the removed paths. Raises BadInput where the iteration has not been begun,
    DataError for a damaged dvc.lock, DiskFull.
    """
    names, lock = set(stage_names(ws, iteration)), dvc_files.dvc_lock_path(ws, iteration)
    if not names.issuperset(dvc_files.recorded_stages(ws, iteration)):
        entries = dvc_files.read_dvc_lock(lock)
        write_text(lock, dvc_files.dump_dvc_lock({name: entries[name] for name in entries if name in names}))
    orphaned = find_orphaned_outputs(ws, iteration)
    for path in orphaned:
        shutil.rmtree(ws.root / path)
    return orphaned


def orphaned_output_line(ws: Workspace, iteration: int, path: str) -> str:
    """Return a line for people with the command that removes the orphaned output `path` (`find_orphaned_outputs`).

    Raises DataError as `list_iterations`.
    """
    is_complete = dvc_files.is_iteration_complete(ws, iteration)
    repair = f"flywheel workspace gc --keep {list_iterations(ws)[-1]} --write" if is_complete else "flywheel run"
    return f"{path} is of no stage of its iteration: `{repair}` removes it"


def init_dvc_project(ws: Workspace) -> None:
    """Make the workspace a DVC project of this version. Existing files of runs stay; git's index is not touched.

    Raises DataError where DVC's file of an iteration is lost or damaged, DiskFull.
    """
    dvc, in_git = ws.root / ".dvc", (ws.root / ".git").exists()  # DVC wants the top of a git repository, or no_scm
    if not (dvc / "config").exists():
        write_text(dvc / "config", _CONFIG + ("" if in_git else "    no_scm = true\n"))
        write_text(dvc / ".gitignore", "/config.local\n/tmp\n/cache\n")
    if not (ws.root / ".dvcignore").exists():
        write_text(ws.root / ".dvcignore", dvc_files.DVCIGNORE)
    if in_git and not (ws.root / ".gitattributes").exists():
        write_text(ws.root / ".gitattributes", git_tags.GITATTRIBUTES)
    begun = list_iterations(ws)
    manifest.init_manifests(ws, begun)
    dvc_files.write_workspace_dvc_yaml(ws, max(begun, default=0))


def list_iterations(ws: Workspace) -> list[int]:
    """Return the iterations that were begun, oldest first. Raises DataError where DVC's file of one is lost."""
    folders = [int(path.name) for path in (ws.root / "iterations").glob("[0-9]*") if path.name.isdigit()]
    begun = sorted(k for k in folders if dvc_files.dvc_yaml_path(ws, k).exists())
    lost = [k for k in range(1, max(begun, default=0)) if k not in set(begun)]
    if lost := sorted({*lost, *(k for k in folders if dvc_files.dvc_lock_path(ws, k).exists())} - set(begun)):
        path = dvc_files.dvc_yaml_path(ws, lost[0])
        others = f", and those of {len(lost) - 1} more iterations" if len(lost) > 1 else ""
        raise DataError(
            f"the stages of iteration {iteration_label(lost[0])} are lost{others}",
            where=path,
            fix=f"restore them: `git checkout HEAD -- {ws.relative(path)}`",
        )
    return begun


def check_iterations_begun(ws: Workspace, which: Iterable[int], where: str = "ITERATION") -> None:
    """Check that the iterations `which` were begun. where: what named them on the command line.

    Raises BadInput for the first that was not, DataError as `list_iterations`.
    """
    begun = list_iterations(ws)
    for k in which:
        if k not in begun:
            raise BadInput(f"iteration {k} has not been begun", where=where, fix="see `flywheel status`")


def active_iterations(ws: Workspace) -> list[int]:
    """Return the newest iteration, and, while it is not complete, before it the one whose results it reads.

    Empty before the first iteration. Raises DataError as `list_iterations`.
    """
    begun = list_iterations(ws)
    return begun[-1:] if not begun or dvc_files.is_iteration_complete(ws, begun[-1]) else begun[-2:]


def forget_iteration(ws: Workspace, iteration: int) -> None:
    """Remove an iteration's dvc.yaml and dvc.lock, and make the one before it DVC's newest.

    iteration: the newest; its data stay, in DVC's cache too. Missing files are no error. Raises DataError where DVC's
    file of another iteration is lost or damaged, DiskFull.
    """
    dvc_files.dvc_lock_path(ws, iteration).unlink(missing_ok=True)
    dvc_files.dvc_yaml_path(ws, iteration).unlink(missing_ok=True)
    dvc_files.set_newest_iteration(ws, max(list_iterations(ws), default=0))


def record_stage(ws: Workspace, stage: str, iteration: int) -> None:
    """Record the present inputs, parameters and outputs of a stage of `iteration` (`dvc commit --force`).

    Outputs go to DVC's cache; git is not touched. With the last stage of the newest iteration, the workspace's files
    name it as the newest that ended. stage: its name. Raises VersioningError naming what is missing, or where DVC
    fails; BadInput for an unknown stage, or an iteration that has not been begun; DataError where DVC's file of an
    iteration is lost; VersioningError or DataError for a damaged dvc.lock; DiskFull; OSError as `lock_dvc`.
    """
    name = stage_address(ws, stage, iteration)
    with disk_full_errors(ws.root), dvc_files.open_dvc(ws) as repo:
        (recorded,) = load_dvc_stages(repo, ws, iteration, [stage])
        missing = [str(item) for item in (*recorded.deps, *recorded.outs) if not item.exists]
        if missing:
            raise VersioningError(
                f"the stage {name} cannot be recorded: missing {', '.join(missing)}",
                where=ws.root,
                fix=f"type `flywheel stage {stage} --iteration {iteration}`",
            )
        began = time.perf_counter()
        # As `repo.commit`, without its run cache, which works only in the working directory of the workspace.
        with repo.lock:
            recorded.save(run_cache=False)
            recorded.commit()
            dvc_files.add_lock_entries(ws, iteration, [recorded])
        log.info("recorded %s in DVC in %.2f s", name, time.perf_counter() - began)
    if stage == dvc_files.LAST_STAGE and iteration == list_iterations(ws)[-1]:
        dvc_files.set_newest_iteration(ws, iteration)


def rerecord_changed(ws: Workspace, iteration: int, names: Collection[str]) -> int:
    """Record again in DVC the stages whose declaration or files changed; return their number.

    iteration: whose stages. names: those that may be recorded again. Stages that do not differ from their record stay,
    and so do those that lack an output which is newly declared: they have to run again. Raises VersioningError where
    DVC fails, DataError for a damaged list of pruned outputs, either of these two for a damaged dvc.lock, DiskFull,
    OSError as `lock_dvc`.
    """
    with disk_full_errors(ws.root), dvc_files.open_dvc(ws) as repo, repo.lock:
        other = [stage for stage in load_dvc_stages(repo, ws, iteration) if stage.name in names and _changes(ws, stage)]
        other = [stage for stage in other if all(out.exists for out in stage.outs)]
        for stage in other:
            stage.save(run_cache=False)
            stage.commit()
        dvc_files.add_lock_entries(ws, iteration, other)
    return len(other)


def is_stage_done(ws: Workspace, stage: str, iteration: int) -> bool:
    """Tell whether a stage of `iteration` is recorded, and neither it nor its inputs and outputs changed since.

    Command and parameters count too. Raises as `unfinished_stages`.
    """
    return not unfinished_stages(ws, (stage,), iteration)


def unfinished_stages(ws: Workspace, names: Iterable[str], iteration: int) -> list[str]:
    """Return those of the stages `names` of `iteration` that are not recorded or have changed since, in order.

    DVC is opened once, and only where a stage may have changed. Raises BadInput where the iteration has no such stage,
    or has not been begun; VersioningError where DVC fails, as with a damaged dvc.lock; DataError for a damaged list of
    pruned outputs; OSError as `lock_dvc`.
    """
    names = [stage_address(ws, name, iteration).partition("@")[0] for name in names]
    unchanged = find_unchanged_stages(ws, iteration)
    left = [name for name in names if name not in unchanged]
    if not set(left).intersection(dvc_files.recorded_stages(ws, iteration)):
        return left
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        return [stage.name for stage in load_dvc_stages(repo, ws, iteration, left) if _changes(ws, stage)]


def iterations_to_compare(ws: Workspace, which: Iterable[int]) -> list[int]:
    """Return those of the iterations `which` that DVC has to compare: a stage is not recorded, or may have changed.

    Raises BadInput for one that has not been begun.
    """
    return [k for k in which if not find_unchanged_stages(ws, k).issuperset(stage_names(ws, k))]


def changed_stages(ws: Workspace, which: Iterable[int] | None = None) -> dict[str, dict[str, str]]:
    """Return the stages that are not recorded, or have changed since: `{"merge@001": {path: change}}`; {} if none.

    which: iterations to check; default: all. Changes are DVC's words, such as `modified` and `deleted`; paths are
    relative to the workspace. Pruned outputs do not count. Raises BadInput for an iteration that has not been begun;
    VersioningError where DVC fails, as with a damaged dvc.lock; DataError where DVC's file of an iteration is lost or a
    list of pruned outputs is damaged; OSError as `lock_dvc`.
    """
    asked = iterations_to_compare(ws, list_iterations(ws) if which is None else which)
    if not asked:
        return {}
    found = {}
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        for k in asked:
            for stage in load_dvc_stages(repo, ws, k):
                if changes := _changes(ws, stage):
                    found[f"{stage.name}@{iteration_label(k)}"] = changes
            dvc_files.forget_dvc_listings()
    return found


def _changes(ws: Workspace, stage) -> dict[str, str]:
    """Return path -> change of one stage, without pruned outputs.

    Paths are relative to the workspace; in DVC's own status they are relative to the current folder.
    """
    changes = {"dvc.yaml": "command modified"} if stage.changed_stage() else {}
    gone = dvc_files.read_pruned(ws, int(Path(stage.path).parent.name))
    found = [(item, item.status()) for item in stage.deps]
    found += [(item, item.workspace_status()) for item in stage.outs]  # a sound file here need not lie in the cache too
    for item, status in found:
        for change in status.values():
            path = Path(os.path.relpath(item.fs_path, ws.root)).as_posix()
            if path in gone and not item.exists:
                continue
            if not isinstance(change, str):  # for a parameter file: parameter -> change
                change = ", ".join(f"{name} {what}" for name, what in change.items())
            changes[path] = change
    return changes


def load_dvc_stages(repo: Any, ws: Workspace, iteration: int, names: Iterable[str] | None = None) -> list[Any]:
    """Load DVC's own objects for the stages of an iteration; dvc.yaml and dvc.lock are read once.

    repo: from `open_dvc`. names: of the stages; None: all. Raises KeyError for an unknown one, and DVC's errors.
    """
    from dvc.dvcfile import load_file

    loader = load_file(repo, str(dvc_files.dvc_yaml_path(ws, iteration))).stages
    return [loader[name] for name in (loader if names is None else names)]


# Unchanged stages are found without loading DVC, which takes half a second: where nothing changed, neither
# `flywheel status` nor the beginning of a run waits for it. DVC's rules are followed as far as flywheel's own files
# need them: `dvc.yaml` as `pipeline/dag.py` writes it, MD5 of files and of folders' listings, parameters by block. A
# stage counts as unchanged only where that is certain; DVC has to be asked about the others, and says what changed.

_STAGE_KEYS = {"wdir", "cmd", "params", "deps", "outs"}
_LOCK_KEYS = {"path", "hash", "md5", "size", "nfiles", "isexec"}
_BLOCK = re.compile(r"\w+")  # DVC reads other names as patterns
_READ_BYTES = 2**28  # beyond it DVC is asked, which caches hashes
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)  # from a file that flywheel did not write


def find_unchanged_stages(ws: Workspace, iteration: int) -> frozenset[str]:
    """Return the stages of `iteration` whose command, parameters, inputs and outputs are certain to be as recorded."""
    from ruamel.yaml import YAMLError

    hashes = _ContentHashes(ws, iteration)
    read_params = cache(lambda path: dvc_files.parse_dvc_yaml(ws.resolve(path).read_text(encoding="utf-8")))
    try:
        ignored = (ws.root / ".dvcignore").read_text(encoding="utf-8")
        text = dvc_files.dvc_yaml_path(ws, iteration).read_text(encoding="utf-8")
        declared = dvc_files.parse_dvc_yaml(text)
        if not (ws.root / ".dvc").is_dir() or ignored != dvc_files.DVCIGNORE:
            return frozenset()
        if declared.keys() != {"stages"} or "${" in text:  # not as flywheel writes it
            return frozenset()
        recorded = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, iteration))
        unchanged = frozenset(
            name
            for name, stage in declared["stages"].items()
            if name in recorded and _is_unchanged(stage, recorded[name], read_params, hashes)
        )
    except (OSError, YAMLError, DataError, *_MALFORMED):  # DVC reports what is wrong
        return frozenset()
    hashes.save()
    return unchanged


def _is_unchanged(
    stage: Mapping[str, Any], recorded: Mapping[str, Any], read_params: Callable[[str], Any], hashes: _ContentHashes
) -> bool:
    if not stage.keys() <= _STAGE_KEYS or stage["wdir"] != "../.." or stage["cmd"] != recorded.get("cmd"):
        return False
    for block in stage.get("params", ()):
        ((path, names),) = block.items()
        now, before = read_params(path), recorded.get("params", {}).get(path, {})
        known = all(_BLOCK.fullmatch(name) and name in now and name in before for name in names)
        if not known or any(now[name] != before[name] for name in names):
            return False
    for key in ("deps", "outs"):
        entries = {entry["path"]: entry for entry in recorded.get(key, ())}
        for path in _paths(stage.get(key, ())):
            entry = entries.get(path, {})
            if not entry.keys() <= _LOCK_KEYS or entry.get("hash") != "md5" or hashes.md5(path) != entry["md5"]:
                return False
    return True


def _paths(declared: Iterable[str | Mapping[str, Any]]) -> Iterator[str]:
    """Yield the paths of declared inputs or outputs. Raises ValueError for one declared as flywheel never does."""
    for one in declared:
        if not isinstance(one, str):
            ((one, options),) = one.items()
            if options != {"cache": False}:
                raise ValueError(one)
        if one.startswith("/") or "://" in one or ".." in one.split("/"):
            raise ValueError(one)
        yield one


class _ContentHashes:
    """Compute MD5 of files and folders as DVC does. Hashes are cached in `.flywheel/hashes/NNN.json` while inodes,
    sizes and times stay, so that models are not read each time."""

    def __init__(self, ws: Workspace, iteration: int) -> None:
        self._root = ws.root
        self._file = ws.state / "hashes" / f"{iteration_label(iteration)}.json"
        self._before: dict[str, list[str]] = {}
        with contextlib.suppress(OSError, ValueError):
            self._before = json.loads(self._file.read_text(encoding="utf-8"))
        self._known: dict[str, list[str]] = {}  # path -> [digest of its files' signatures, MD5]
        self._found: dict[str, str | None] = {}
        self._bytes_left = _READ_BYTES

    def md5(self, path: str) -> str | None:
        """Return the MD5 of a file, or of a folder with the suffix `.dir`; None where DVC may compute another."""
        if path not in self._found:
            try:
                self._found[path] = self._compute(path)
            except FileNotFoundError:  # also one removed just now
                self._found[path] = None
        return self._found[path]

    def _compute(self, path: str) -> str | None:
        place = self._root / path
        files = dict(_list_files(place))
        if None in files.values():
            return None
        signatures = sorted((name, *file_signature(status)) for name, status in files.items())
        signature = hashlib.sha256(json.dumps(signatures).encode()).hexdigest()
        known = self._before.get(path)
        if known is None or known[0] != signature:
            self._bytes_left -= sum(status.st_size for status in files.values())
            if self._bytes_left < 0:
                return None
            known = [signature, (dvc_files.folder_md5 if place.is_dir() else dvc_files.file_md5)(place)]
        if not is_changed_just_now(files.values()):
            self._known[path] = known
        return known[1]

    def save(self) -> None:
        """Store the hashes. Where the workspace cannot be written, the files are read again the next time."""
        if self._known != self._before:
            with contextlib.suppress(OSError, DiskFull):
                write_json(self._file, self._known)


def _list_files(place: Path, name: str = "") -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield (relative path, status) of each file at or below `place`; None for what DVC may ignore or follow."""
    if not name and (place.is_symlink() or not place.is_dir()):
        yield "", None if place.is_symlink() else place.stat()
        return
    with os.scandir(place) as entries:
        for entry in entries:
            inner = f"{name}{entry.name}"
            if entry.name.startswith(".") or entry.is_symlink():
                yield inner, None
            elif entry.is_dir():
                yield from _list_files(place / entry.name, f"{inner}/")
            else:
                yield inner, entry.stat() if entry.is_file() else None


# An iteration's own parameters can be corrected only in its file, so every error about one names that file.


def load_iteration_params(ws: Workspace, iteration: int) -> Settings:
    """Load the parameters that the iteration began with (its own `params.yaml`).

    Raises BadInput where it has not been begun, or its file is missing or wrong.
    """
    path = ws.frozen_params(iteration)
    if not path.is_file() and dvc_files.recorded_stages(ws, iteration):
        raise BadInput("the iteration's parameters are missing", where=path, fix=_suggest_fix(ws, iteration))
    if not path.is_file():
        raise BadInput(
            f"iteration {iteration_label(iteration)} has not been begun", where=path, fix="`flywheel run` does"
        )
    try:
        return config.load_settings(path)
    except BadInput as error:
        from flywheel.config.params_file import MIGRATE_FIX

        fix = error.fix if error.fix == MIGRATE_FIX else _suggest_fix(ws, iteration)
        raise BadInput(error.what, where=error.where, fix=fix) from None


@contextlib.contextmanager
def name_params_file_in_errors(ws: Workspace, iteration: int) -> Iterator[None]:
    """Name the iteration's parameter file in every FlywheelError of the block that is about a parameter.

    The parameter comes from there, so that an edit of params.yaml would change nothing; the error names it as its place
    or in its fix. The error is raised again as the same class.
    """
    try:
        yield
    except FlywheelError as error:
        parameter = error.where.split(":")[0].split(",")[0]
        is_named = _is_frozen_parameter(parameter)
        is_to_change = any(map(_is_frozen_parameter, _DOTTED.findall(error.fix)))
        if not is_named and not is_to_change:
            raise
        file = ws.relative(ws.frozen_params(iteration))
        where = error.where.replace(parameter, f"{parameter} in {file}", 1) if is_named else error.where
        fix = _suggest_fix(ws, iteration) if is_to_change or isinstance(error, BadInput) else ""
        raise type(error)(error.what, where=where, fix="; ".join(filter(None, (error.fix, fix)))) from error


# Blocks of the whole workspace: a change counts at once, also for an iteration that was begun with other values.
WORKSPACE_BLOCKS = frozenset({"cluster", "operations", "versioning"})


def _is_frozen_parameter(name: str) -> bool:
    return name.partition(".")[0] not in WORKSPACE_BLOCKS and config.is_settings_parameter(name)


def _suggest_fix(ws: Workspace, iteration: int) -> str:
    if dvc_files.is_iteration_complete(ws, iteration):
        return f"restore it: `git checkout HEAD -- {ws.relative(ws.frozen_params(iteration))}`"
    return (
        f"change it in {ws.relative(ws.frozen_params(iteration))} (params.yaml is for new iterations), "
        f"or give the iteration up with `flywheel iteration drop --iteration {iteration}`"
    )
