"""Push the outputs that DVC records to a remote, and restore outputs that are damaged or missing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging.handlers
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.store.versioning.dvc_files import VersioningError
from flywheel.utils.errors import BadInput, DataError, FlywheelError, first_line
from flywheel.utils.files import expand_home, sha256_file, write_json
from flywheel.utils.progress import announce

# DVC's exceptions only count files; the reasons are in its log. Libraries of remote stores raise classes of their own.

_LOGGERS = ("dvc", "dvc_data", "dvc_objects")
# Fixes by the class of an error or of its cause, or by words in it. s3fs raises Python's own classes, botocore its own.
_REMOTE_FIXES = {
    "NoCredentialsError": "put its keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or into ~/.aws/credentials",
    "PermissionError": "see its keys (AWS_ACCESS_KEY_ID, or ~/.aws/credentials) and what they may do",
    "bucket does not exist": "make the bucket, or see versioning.remote",
    "EndpointConnectionError": "see whether the store is there, and AWS_ENDPOINT_URL",
    "HTTPClientError": "see whether the store is there, and AWS_ENDPOINT_URL",
}


@contextmanager
def _name_copy_errors(where: object) -> Iterator[None]:
    """Turn all errors of a copy to or from `where` into VersioningError, and keep DVC's log off the terminal."""
    heard = logging.handlers.BufferingHandler(sys.maxsize)
    heard.setLevel(logging.WARNING)
    with ExitStack() as after:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            after.callback(setattr, logger, "propagate", logger.propagate)
            after.callback(logger.removeHandler, heard)
            logger.propagate = False
            logger.addHandler(heard)
        try:
            yield
        except Exception as error:
            fault: BaseException | str = error
            for record in heard.buffer[:1]:
                fault = (record.exc_info and record.exc_info[1]) or record.getMessage()
            what = first_line(str(fault)) or type(fault).__name__
            raise VersioningError(what, where=where, fix=_suggest_remote_fix(fault)) from error


def _probe_remote(repo: Any, name: str | None) -> None:
    """Send one request to the remote `name` (None: the default): else each file would fail after all its retries."""
    store = repo.cloud.get_remote_odb(name)
    with suppress(FileNotFoundError):
        store.fs.info(store.oid_to_path("0" * 32))


def _suggest_remote_fix(fault: BaseException | str) -> str:
    message, names = str(fault), set()
    while isinstance(fault, BaseException):
        names |= {kind.__name__ for kind in type(fault).__mro__}
        fault = fault.__cause__ or ""
    return next(
        (fix for sign, fix in _REMOTE_FIXES.items() if sign in names or sign in message),
        "`dvc status --cloud` tells more",
    )


# The remote (`versioning.remote`) is in `.dvc/config`, which git tracks: `dvc pull` works in clones too.

REMOTE_NAME = "flywheel"


def check_remote_url(ws: Workspace, url: str) -> None:
    """Check that DVC, as it is installed, can copy to the remote at `url`, which is not contacted.

    url: such as s3://bucket/folder, or a folder's path, relative to the workspace or begun with `~`; "": none, which
    passes. Raises BadInput where it cannot, where `url` contains a password, or where the parent of the folder `url`
    does not exist, as on a disk that is not mounted.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if url and not (parent := _remote_folder(ws, url).parent).is_dir():
            raise BadInput(
                f"the folder {parent}, which the copy is to lie in, is not there",
                where="versioning.remote",
                fix="mount its disk, or make it",
            )
        return
    from dvc_objects.fs import known_implementations

    kinds = known_implementations.keys() - {"local", "memory"}  # of memory nothing would stay
    package = known_implementations.get(scheme, {}).get("class", "").partition(".")[0]
    if ":" in rest.rpartition("@")[0].partition("/")[0]:
        what = "a password stands in the address, and would stand in git with it"
        fix = "leave it out: `dvc remote modify --local flywheel password` keeps it on this machine"
    elif scheme not in kinds:
        what, fix = f"DVC knows no {scheme}://", f"a folder, or one of {', '.join(sorted(kinds))}"
    elif importlib.util.find_spec(package) is None:
        what = f"DVC's part for {scheme}:// is not installed"
        fix = "pip install -e '.[s3]'" if scheme == "s3" else f"pip install {package.replace('_', '-')}"
    else:
        return
    raise BadInput(what, where="versioning.remote", fix=fix)


def _remote_folder(ws: Workspace, url: str) -> Path:
    return ws.resolve(str(expand_home(url))).resolve()


def configure_remote(ws: Workspace, url: str) -> None:
    """Make the remote at `url` DVC's default, in `.dvc/config`; "" changes nothing.

    url: as for `check_remote_url`, which this does not call. The remote is not contacted; other options of the remote
    `flywheel` in that file are dropped where its address or the default changes. Raises VersioningError as `open_dvc`,
    for a damaged config too.
    """
    if not url:
        return
    url = url if "://" in url else str(_remote_folder(ws, url))
    with dvc_files.open_dvc(ws) as repo, repo.config.edit("repo") as config:
        if config["remote"].get(REMOTE_NAME, {}).get("url") != url or config["core"].get("remote") != REMOTE_NAME:
            config["remote"][REMOTE_NAME] = {"url": url}
            config["core"]["remote"] = REMOTE_NAME


def push_iterations(ws: Workspace, url: str) -> list[int]:
    """Push what iterations recorded since their last push to the remote at `url`; return these iterations' numbers.

    url: as for `check_remote_url`. Returns [] where `url` is "", nothing is new, or the push fails for any reason; what
    the remote lacks is pushed with the next iteration. The result, or the reason of a failure, is announced. The remote
    becomes DVC's default (`configure_remote`). Raises VersioningError where that fails, DataError where DVC's file of
    an iteration is lost, DiskFull.
    """
    if not url:
        announce("data", "no copy is made: versioning.remote names none")
        return []
    try:
        check_remote_url(ws, url)  # a disk may have been unmounted since the run began
    except BadInput as error:
        announce("data", f"not copied to the remote: {error}. The next iteration tries again, or `dvc push`")
        return []
    configure_remote(ws, url)
    known = _pushed_before(ws, url)
    locks = {k: dvc_files.dvc_lock_path(ws, k) for k in stage_records.list_iterations(ws)}
    now = {iteration_label(k): sha256_file(path) for k, path in locks.items() if path.exists()}
    fresh = [int(label) for label, sha256 in now.items() if known.get(label) != sha256]
    if not fresh:
        announce("data", f"{url} has all that is recorded")
        return []
    try:
        with dvc_files.open_dvc(ws) as repo, _name_copy_errors(url):
            _probe_remote(repo, REMOTE_NAME)
            files = repo.push(targets=[str(dvc_files.dvc_yaml_path(ws, k)) for k in fresh], remote=REMOTE_NAME)
    except (FlywheelError, OSError) as error:
        announce("data", f"not copied to the remote: {error}. The next iteration tries again, or `dvc push`")
        return []
    write_json(_pushed_path(ws), {"url": url, "pushed": now})
    names, size = ", ".join(map(iteration_label, fresh)), sum(dvc_files.recorded_bytes(ws, k) for k in fresh)
    announce("data", f"iteration {names} copied to {url}: {size / 1e6:.1f} MB, of which {files} files were new there")
    return fresh


def _pushed_before(ws: Workspace, url: str) -> dict[str, str]:
    try:
        pushed = json.loads(_pushed_path(ws).read_text(encoding="utf-8"))
        return pushed["pushed"] if pushed["url"] == url else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _pushed_path(ws: Workspace) -> Path:
    return ws.state / "pushed.json"


# A stage whose command, parameters and inputs are as recorded never runs again because of damaged outputs: they are
# fetched. Else one damaged file would replace a released model by another of the same name.

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DamagedOutput:
    """Hold a recorded output that differs on disk.

    stage: `name@NNN`. path: relative to the workspace. change: missing or changed. kept: where its recorded content is:
    `cache`, `remote` (perhaps: one is configured), `git`, or "" for nowhere. complete: whether its iteration is
    complete, so that the stage must not be run again.
    """

    stage: str
    path: str
    change: str
    kept: str
    complete: bool

    @property
    def iteration(self) -> int:
        """Return the number of the output's iteration."""
        return int(self.stage.partition("@")[2])

    @property
    def repair_command(self) -> str:
        """Return the command that restores the output, in words."""
        again = f"`flywheel stage {self.stage.partition('@')[0]} --iteration {self.iteration}`"
        lost = "`dvc remote add --default NAME URL`, where a copy is, then `dvc pull`" if self.complete else again
        return {
            "cache": f"`dvc checkout --force {self.path}`",
            "remote": "`dvc pull`",
            "git": f"`git checkout HEAD -- {self.path}`",
        }.get(self.kept, lost)


def find_damaged_outputs(ws: Workspace, which: Iterable[int] | None = None) -> list[DamagedOutput]:
    """Find every recorded output that differs on disk, in the order of the stages; nothing is changed.

    which: iterations to check; default: all. Left out are stages whose own inputs changed, since they have to run
    again, and pruned outputs. Raises DataError where there are data but no recorded iteration, DVC's file of one is
    lost, or a list of pruned outputs is damaged; VersioningError where DVC cannot compare, as with a damaged dvc.lock;
    FlywheelError where git does not answer; OSError as `lock_dvc`.
    """
    check_iterations_recorded(ws)
    which = _recorded_to_compare(ws, stage_records.list_iterations(ws) if which is None else which)
    if not which:
        return []
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        gone = {k: dvc_files.read_pruned(ws, k) for k in which}
        return [damage for damage, _ in _iter_damaged(ws, repo, which) if damage.path not in gone[damage.iteration]]


def restore_damaged_outputs(ws: Workspace) -> list[DamagedOutput]:
    """Restore damaged or missing outputs of the iterations that the next run reads; return what was damaged.

    They come from DVC's cache, else from the remote, which is announced. A file that was changed by hand is
    overwritten. A pruned output comes back where training reads it. Raises DataError with the command to type where one
    cannot be restored, after restoring the others; else as `find_damaged_outputs`, and DataError for a damaged manifest
    where a pruned output is missing.
    """
    check_iterations_recorded(ws)
    which = _recorded_to_compare(ws, _needed_iterations(ws))
    if not which:
        return []
    from dvc.exceptions import DvcException

    hindered = ""
    with dvc_files.open_dvc(ws) as repo:
        with repo.lock:
            found = [one for one in _iter_damaged(ws, repo, which) if _is_needed(ws, one[0])]
        if any(damage.kept == "remote" for damage, _ in found):
            announce("data", f"{len(found)} recorded files and folders are not here: fetching them (dvc pull)")
            targets = {str(dvc_files.dvc_yaml_path(ws, damage.iteration)) for damage, _ in found}
            hindered = _fetch_from_remote(repo, sorted(targets))
        with repo.lock:
            for _, output in (one for one in found if one[0].kept in ("cache", "remote")):
                try:
                    output.checkout(force=True)
                except (DvcException, OSError) as error:  # reported by what is still missing after it
                    log.warning("DVC: %s", error)
    if not found:
        return []
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        left = [one for one, _ in _iter_damaged(ws, repo, which) if _is_needed(ws, one)]
    if left:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise DataError(
            f"{left[0].path}{others}: {left[0].change} since {left[0].stage} was recorded, and cannot be brought back"
            f"{hindered}",
            where=ws.root,
            fix=f"type {left[0].repair_command}, then the same command; nothing was done again",
        )
    for damage, _ in found[:_SHOWN]:
        announce("data", f"{damage.path} was {damage.change}: brought back as {damage.stage} recorded it")
    if len(found) > _SHOWN:
        announce("data", f"and {len(found) - _SHOWN} more")
    return [damage for damage, _ in found]


_SHOWN = 5


def check_iterations_recorded(ws: Workspace) -> None:
    """Check that a workspace with data of iterations still has DVC's records of them (`iterations/NNN/dvc.yaml`).

    Raises DataError where there are data but no iteration at all is recorded, or DVC's file of one is lost.
    """
    if not stage_records.list_iterations(ws) and (lost := sorted(ws.data.glob("*/iteration=*"))):
        raise DataError(
            f"there are data of iterations ({ws.relative(lost[0])}), but no iterations/NNN/dvc.yaml names them",
            where=ws.root,
            fix="restore it (`git checkout HEAD -- iterations`), or begin anew with `flywheel workspace reset`",
        )


def _fetch_from_remote(repo: Any, targets: list[str]) -> str:
    """Fetch the outputs of `targets` from the remote; return why it failed, to end a later message, or ""."""
    name = repo.config["core"].get("remote") or next(iter(repo.config["remote"]))
    try:
        with _name_copy_errors(repo.config["remote"].get(name, {}).get("url", name)):
            _probe_remote(repo, name)
            repo.fetch(targets=targets)
    except VersioningError as error:
        return f": {error}"
    return ""


def _is_needed(ws: Workspace, damage: DamagedOutput) -> bool:
    """Tell whether the output was not pruned, or training reads it nevertheless."""
    if damage.path not in dvc_files.read_pruned(ws, damage.iteration):
        return True
    return any(one.path.startswith(damage.path + "/") for one in manifest.read_manifest(ws, damage.iteration).files)


def _needed_iterations(ws: Workspace) -> list[int]:
    """Return the iterations at work, and earlier ones of which a file that training reads is missing."""
    begun = stage_records.list_iterations(ws)
    needed = set(stage_records.active_iterations(ws))
    built = next((k for k in reversed(begun) if ws.manifest(k).exists()), 0)
    with contextlib.suppress(DataError):  # other checks report a damaged manifest
        needed |= {
            shard.iteration for shard in manifest.read_manifest(ws, built).files if not ws.resolve(shard.path).exists()
        }
    return sorted(k for k in needed if k in begun and dvc_files.dvc_lock_path(ws, k).exists())


def _recorded_to_compare(ws: Workspace, which: Iterable[int]) -> list[int]:
    """Return those iterations of `which` that have records and may have changed."""
    return stage_records.iterations_to_compare(ws, [k for k in which if dvc_files.dvc_lock_path(ws, k).exists()])


def _iter_damaged(ws: Workspace, repo: Any, which: Iterable[int]) -> Iterator[tuple[DamagedOutput, Any]]:
    """Yield each damaged output, with DVC's object for it."""
    remote = bool(repo.config["core"].get("remote") or repo.config["remote"])
    stages: dict[int, list[Any]] = {}
    for k in which:
        for one in (k - 1, k):  # an iteration reads small files of the one before
            if one not in stages:
                recorded = dvc_files.recorded_stages(ws, one)
                found = stage_records.load_dvc_stages(repo, ws, one) if recorded else []
                stages[one] = [stage for stage in found if stage.name in recorded]
        outputs = {out.fs_path: out for one in (k - 1, k) for stage in stages[one] for out in stage.outs}
        complete = dvc_files.is_iteration_complete(ws, k)
        for stage in stages[k]:
            if stage.changed_stage() or any(_is_input_changed(dep, outputs) for dep in stage.deps):
                continue
            for out in stage.outs:
                if out.workspace_status():  # a sound file here need not lie in the cache too
                    path = Path(os.path.relpath(out.fs_path, ws.root)).as_posix()
                    name, change = f"{stage.name}@{iteration_label(k)}", "changed" if out.exists else "missing"
                    yield DamagedOutput(name, path, change, _where_kept(ws, out, path, remote), complete), out
        dvc_files.forget_dvc_listings()


def _where_kept(ws: Workspace, out, path: str, remote: bool) -> str:
    if not out.use_cache:
        return "git" if git_tags.is_tracked_by_git(ws.root, path) else ""
    if not out.changed_cache():
        return "cache"
    return "remote" if remote else ""


def _is_input_changed(dependency, outputs) -> bool:
    """Tell whether an input differs from what the stage recorded. If another stage recorded it equally, it is only
    damaged."""
    made = outputs.get(dependency.fs_path)
    if made is not None and made.hash_info == dependency.hash_info:
        return False
    return bool(dependency.status())
