"""Remove outputs of past iterations that nothing needs, by a retention rule (`flywheel workspace gc`).

These always stay: the weights of every model that was promoted or is the best so far, and the bases of adapters; all
files that the chain of manifests names (unless training data are asked for explicitly); the newest iteration, and while
it is open the one before it. Small tables that tell the history stay too: metrics, runs, routes, scores, lineage.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.policy import checkpoint
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError

_BULKY = ("steps", "images", "events")
_TRAINED = ("steps", "images", "utterances", "grounding_examples", "candidates")


@dataclass(frozen=True)
class Prunable:
    """Hold an output that may be removed.

    iteration: the one that made it. path: its folder, relative to the workspace. bytes: the total size of its files.
    """

    iteration: int
    path: str
    bytes: int


def plan_prune(
    ws: Workspace, *, keep: int | None = None, older: timedelta | None = None, training_data: bool = False
) -> list[Prunable]:
    """List the outputs that may be removed, oldest iteration first; nothing is changed.

    They are outputs of complete iterations that are neither among the newest `keep` nor younger than `older`; and of
    every complete iteration, whatever its age, those that none of its stages writes (`find_orphaned_outputs`). But for
    the latter, the newest iteration, the one that an open iteration reads, promoted models and bases of adapters always
    stay. keep: number of iterations, 0 or more; None: any number may go. older: time since the end of an iteration;
    None: of any age. training_data: also list partitions that training reads; a run that needs them fetches them from
    DVC's cache or remote. Raises BadInput where neither `keep` nor `older` is given, or where `training_data` is set
    while an iteration is open; DataError for damaged records, manifests, promotions or tables, or where DVC's file of
    an iteration is lost; ModelError for a damaged adapter; FlywheelError as `query_catalog`.
    """
    if keep is None and older is None:
        raise BadInput("no rule", where="flywheel workspace gc", fix="give --keep N, or --older-than DAYS, or both")
    begun = stage_records.list_iterations(ws)
    complete = [k for k in begun if dvc_files.is_iteration_complete(ws, k)]
    is_open = len(complete) < len(begun)
    if training_data and is_open:
        what = f"iteration {iteration_label(begun[-1])} is open, and trains on them"
        raise BadInput(what, where="--training-data", fix="bring it to its end, or discard it, first")
    spared = set(complete[-keep:] if keep else ()) | set(stage_records.active_iterations(ws) if is_open else begun[-1:])
    if older is not None:
        rows = database.query_catalog(ws, "SELECT iteration, max(ended_at) AS at FROM runs GROUP BY ALL").to_pylist()
        ended = {row["iteration"]: row["at"] for row in rows if row["at"]}
        for k in complete:  # an iteration without a recorded run counts by the time of its dvc.lock
            written = datetime.fromtimestamp(dvc_files.dvc_lock_path(ws, k).stat().st_mtime, UTC)
            if ended.get(k, written) > datetime.now(UTC) - older:
                spared.add(k)
    needed = _promoted_models(ws, begun) | _adapter_bases(ws)
    found = []
    for k in complete:
        gone, chosen = dvc_files.read_pruned(ws, k), stage_records.find_orphaned_outputs(ws, k)
        chosen += _prunable_paths(ws, k, needed, training_data) if k not in spared else ()
        for path in dict.fromkeys(chosen):
            if path not in gone:
                files = (file for file in (ws.root / path).rglob("*") if file.is_file())
                found.append(Prunable(k, path, sum(file.stat().st_size for file in files)))
    return found


def prune_outputs(ws: Workspace, chosen: list[Prunable]) -> None:
    """Remove the outputs `chosen`, which `plan_prune` listed. Call it under the workspace's lock.

    They are first entered in their iteration's `pruned.json`, so that an interrupted removal does not count as damage.
    Copies in DVC's cache and remote stay. Raises FileNotFoundError for an output that has disappeared since, DataError
    for a damaged `pruned.json`, DiskFull.
    """
    for k in sorted({one.iteration for one in chosen}):
        dvc_files.add_pruned(ws, k, [one.path for one in chosen if one.iteration == k])
    for one in chosen:
        shutil.rmtree(ws.root / one.path)


def find_unreferenced_cache_files(ws: Workspace, pruned: Collection[str] = ()) -> list[tuple[Path, int]]:
    """List the files of DVC's cache, as (path, bytes), that no dvc.lock of an iteration names; nothing is removed.

    Iterations that rollbacks have set aside count too. Files that only pruned outputs contain are listed, and so are
    versions that only earlier git commits name. pruned: outputs to count as pruned besides those in `pruned.json`, by
    paths relative to the workspace. Raises BadInput where DVC's setting `cache.dir` names a folder outside of the
    workspace, since other workspaces may use it; DataError for a damaged dvc.lock or `pruned.json`, or a damaged folder
    listing in the cache; VersioningError as `open_dvc`.
    """
    cache = dvc_files.find_cache_folder(ws)
    if not any(cache.is_relative_to(root) for root in (ws.root, ws.root.resolve())):
        what = "DVC's cache lies outside of the workspace, where others may use it"
        raise BadInput(what, where=cache, fix="leave --cache out; for a shared cache see `dvc gc --help`")
    used: set[str] = set()
    for place in (ws, *(Workspace(path) for path in (ws.state / "aside").glob("after-*"))):
        for k in place.list_iteration_folders():
            gone = {*dvc_files.read_pruned(place, k), *pruned}
            for entry in dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(place, k)).values():
                used |= {one["md5"] for one in entry.get("outs", ()) if one["path"] not in gone and "md5" in one}
    for name in [name for name in used if name.endswith(".dir")]:
        listing = cache / name[:2] / name[2:]
        if listing.exists():
            try:
                used |= {one["md5"] for one in json.loads(listing.read_text(encoding="utf-8"))}
            except (ValueError, KeyError, TypeError) as error:
                fix = "delete it; `dvc fetch` brings it back where there is a remote"
                raise DataError(f"not a folder's list of files: {error!r}", where=listing, fix=fix) from None
    files = (path for path in cache.glob("??/*") if path.is_file())
    return [(path, path.stat().st_size) for path in files if path.parent.name + path.name not in used]


def _prunable_paths(ws: Workspace, iteration: int, needed: set[str], training_data: bool) -> Iterator[str]:
    # Later manifests name the same files of this iteration as its own manifest does.
    named = (shard for shard in manifest.read_manifest(ws, iteration).files if shard.iteration == iteration)
    trained = {shard.path.rpartition("/")[0] for shard in named}
    for table in dict.fromkeys((*_BULKY, *_TRAINED)):
        for folder in sorted((ws.data / table / f"iteration={iteration_label(iteration)}").glob("stage=*")):
            name = ws.relative(folder)
            if name in trained:
                if training_data and table in _TRAINED:
                    yield name
            elif table in _BULKY:
                yield name
    for folder in sorted((ws.root / "models" / f"iteration={iteration_label(iteration)}").glob("*")):
        if folder.is_dir() and ws.relative(folder) not in needed:
            yield ws.relative(folder)


def _adapter_bases(ws: Workspace) -> set[str]:
    """Return the folders in the workspace, relative to it, that are the base of an adapter."""
    adapters = [path for path in (ws.root / "models").glob("iteration=*/*") if checkpoint.is_adapter(path)]
    found = (checkpoint.find_local_base(path) for path in adapters)
    bases = {Path(os.path.abspath(base)) for base in found if base}  # noqa: PTH100 - `resolve` would follow a link
    return {ws.relative(base) for base in bases if base.is_relative_to(ws.root)}


def _promoted_models(ws: Workspace, begun: list[int]) -> set[str]:
    """Return the models that were promoted, or the best, after any iteration, by folder or name."""
    found = set()
    for k in (0, *begun):
        try:
            promotion = manifest.read_promotion(ws, k)
        except DataError:
            if dvc_files.is_promotion_decided(ws, k):
                raise
            continue
        found |= {promotion["model"], (promotion.get("best") or promotion)["model"]}
    return found
