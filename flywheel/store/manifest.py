"""Read and write the training manifests: which files an iteration's training may read.

`iterations/NNN/manifest.json` names the files of its own iteration, each with its sha256, and contains the sha256 of
the manifest before it. Read back along this chain, it names the files of the whole history, and a change anywhere in it
is detected. It is small, is kept in git, and is what the training stages depend on: DVC need not list all past
partitions as their inputs, and no stage depends on a folder that grows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import routing_decisions
from flywheel.store.lineage import dataset_name
from flywheel.store.partitions import partition_manifest
from flywheel.utils.errors import DataError
from flywheel.utils.files import cached_sha256, sha256_file, write_json

_FIX = "run the iteration before it, or fetch it with `git checkout`"


@dataclass(frozen=True)
class ManifestFile:
    """Hold one Parquet file that a manifest names.

    iteration, table, stage: of its partition. path: relative to the workspace. rows: their number. sha256: of its
    bytes, in hex.
    """

    iteration: int
    table: str
    stage: str
    path: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class TrainingManifest:
    """Hold which files a training may read: those of an iteration's manifest and of the manifests before it.

    files: of every iteration those of `ct` and of the tables that the stores refer to; those of `sft` only of the
    newest `window` iterations. Oldest iteration first. sessions: recordings ingested so far. previous: sha256 of the
    manifest before. versions: of stores that were routed again, by iteration.
    """

    iteration: int
    previous: str
    files: tuple[ManifestFile, ...] = ()
    sessions: tuple[str, ...] = ()
    versions: Mapping[int, int] = field(default_factory=dict)

    def datasets(self, store: str) -> list[str]:
        """Return the names in lineage of the partitions of `store` (`ct` or `sft`) that may be read, oldest first."""
        which = sorted({shard.iteration for shard in self.shards(store)})
        return [dataset_name(store, k, self.versions.get(k, 0)) for k in which]

    def shards(self, table: str) -> tuple[ManifestFile, ...]:
        """Return the files of a table, oldest iteration first."""
        return tuple(shard for shard in self.files if shard.table == table)

    def paths(self, ws: Workspace, table: str) -> list[Path]:
        """Return the absolute paths of the files of `table`, oldest iteration first."""
        return [ws.resolve(shard.path) for shard in self.shards(table)]


def init_manifests(ws: Workspace, iterations: Iterable[int] = ()) -> None:
    """Write the records of iteration 0 (empty stores, no outcomes, no open levels); existing files stay.

    iterations: begun ones; those of an early version, which recorded no outcomes and open levels, get empty records.
    Raises as `write_json`.
    """
    if not ws.manifest(0).exists():
        write_json(ws.manifest(0), _as_json(0, "", 0, (), ()))
    for k in (0, *iterations):
        if k == 0 or ws.promotion(k).exists():
            for path, nothing in ((ws.held_out(k), {"about": "", "models": {}}), (ws.levels(k), {"open": {}})):
                if not path.exists():
                    write_json(path, nothing)


def init_first_checkpoint(ws: Workspace, digest: str, model: str = "models/base") -> None:
    """Write the records of iteration 0, with the first checkpoint as the promoted model; existing files stay.

    digest: of its weights (`checkpoint_digest`). model: its folder, relative to the workspace or absolute, or a Hugging
    Face name. Raises as `write_json`.
    """
    init_manifests(ws)
    if not ws.promotion(0).exists():
        promotion = {"iteration": 0, "model": model, "digest": digest, "promoted": True, "reason": "first checkpoint"}
        write_json(ws.promotion(0), promotion)


def write_manifest(
    ws: Workspace, iteration: int, *, window: int, sessions: Iterable[str] = (), data: Iterable[tuple[str, str]] = ()
) -> TrainingManifest:
    """Write an iteration's manifest from its partitions on disk; return it, with the files of those before it.

    An earlier manifest of the iteration is replaced. window: number of iterations whose SFT stores are used. sessions:
    ids of the recordings ingested in this iteration; those that an earlier manifest names are left out. data: (table,
    stage) of what training needs besides the stores; one without a partition adds no files. Raises DataError where an
    earlier manifest is missing, changed or not readable, and for a damaged list of a partition or of decisions;
    DiskFull.
    """
    before = read_manifest(ws, iteration - 1)
    own = [shard for table in ("ct", "sft") for shard in _manifest_files(ws, table, iteration, "route")]
    own += [shard for table, stage in data for shard in _manifest_files(ws, table, iteration, stage)]
    fresh = sorted(set(sessions) - set(before.sessions))
    raw = _as_json(iteration, sha256_file(ws.manifest(iteration - 1)), window, own, fresh)
    if version := routing_decisions.store_version(ws, iteration):
        raw["version"] = version
    write_json(ws.manifest(iteration), raw)
    return read_manifest(ws, iteration)


def rewrite_manifest(ws: Workspace, iteration: int) -> None:
    """Write an iteration's manifest again after its trajectories were routed again; window and sessions stay.

    The next manifest must then be chained to it again (`relink_manifest`). Raises DataError where it is missing,
    damaged or of an earlier version, and for a damaged list of a partition or of decisions; FileNotFoundError where the
    manifest before it is missing; DiskFull.
    """
    raw = read_own_manifest(ws, iteration)
    named = dict.fromkeys((shard["table"], shard["stage"]) for shard in raw["shards"])
    shards = [shard for table, stage in named for shard in _manifest_files(ws, table, iteration, stage)]
    again = _as_json(iteration, sha256_file(ws.manifest(iteration - 1)), raw["window"], shards, raw["sessions"])
    write_json(ws.manifest(iteration), {**again, "version": routing_decisions.store_version(ws, iteration)})


def relink_manifest(ws: Workspace, iteration: int) -> bool:
    """Chain an iteration's manifest to the present state of the one before it; return whether that changed it.

    Raises DataError where it is missing, damaged or of an earlier version, FileNotFoundError where the one before it is
    missing, DiskFull.
    """
    raw, previous = read_own_manifest(ws, iteration), sha256_file(ws.manifest(iteration - 1))
    if raw["previous"] == previous:
        return False
    write_json(ws.manifest(iteration), {**raw, "previous": previous})
    return True


def read_own_manifest(ws: Workspace, iteration: int) -> dict[str, Any]:
    """Read an iteration's own manifest, without those before it, as a JSON object.

    Keys: `iteration`, `previous` (sha256 of the manifest before), `window` (number of newest iterations whose SFT
    stores are used), `shards` (mappings with `table`, `stage`, `path`, `rows`, `sha256`, as of `ManifestFile`),
    `sessions` (ids of recordings), and `version` of the stores where they were routed again. Raises DataError where it
    is missing, damaged or of an earlier version.
    """
    raw, _ = _read_json_object(ws, ws.manifest(iteration), fix=_FIX)
    if "shards" not in raw:
        where = ws.relative(ws.manifest(iteration))
        raise DataError("a manifest of an earlier version names all files before it", where=where, fix="it is final")
    try:
        for shard in raw["shards"]:
            ManifestFile(**{"iteration": iteration, **shard})
        if lacking := {"previous", "window", "sessions"} - raw.keys():
            raise KeyError(min(lacking))
    except (KeyError, TypeError) as error:
        where = ws.relative(ws.manifest(iteration))
        raise DataError(f"not a manifest: {error!r}", where=where, fix="restore it from git") from None
    return raw


def read_manifest(ws: Workspace, iteration: int) -> TrainingManifest:
    """Read an iteration's manifest with the files of those before it, along the chain.

    Raises DataError where one is missing, changed or damaged.
    """
    named: list[ManifestFile] = []
    sessions: list[str] = []
    versions: dict[int, int] = {}
    k, expected, newest = iteration, "", {}
    while True:
        raw, sha256 = _read_json_object(ws, ws.manifest(k), fix=_FIX)
        if expected and sha256 != expected:
            raise DataError(
                f"the manifest changed after iteration {iteration_label(k + 1)} was built on it",
                where=ws.relative(ws.manifest(k)),
                fix="restore it with `git checkout`",
            )
        try:
            newest = newest or raw
            since = iteration - newest.get("window", iteration)
            # A manifest of an earlier version also names all files of those before it.
            found = raw["shards"] if "shards" in raw else [*raw["ct"], *raw["sft"], *raw["data"]]
            named[:0] = [ManifestFile(**{"iteration": k, **shard}) for shard in found]
            sessions[:0] = raw["sessions"]
            expected = raw["previous"]
            versions |= {k: raw["version"]} if "version" in raw else {}
        except (KeyError, TypeError) as error:
            where = ws.relative(ws.manifest(k))
            raise DataError(f"not a manifest: {error!r}", where=where, fix="restore it from git") from None
        if k == 0 or "shards" not in raw:
            break
        k -= 1
    files = tuple(shard for shard in named if shard.table != "sft" or shard.iteration > since)
    return TrainingManifest(iteration, newest["previous"], files, tuple(sessions), versions)


def read_promotion(ws: Workspace, iteration: int) -> dict[str, Any]:
    """Read an iteration's `promotion.json`, which names the model that acts from the next iteration on.

    Returns a mapping with at least `model`, its folder, relative to the workspace or absolute, or a Hugging Face name,
    and `digest` of its weights (`checkpoint_digest`); the stage `promote` also writes `promoted` (whether this
    iteration's model was), `reason`, and `best`: `model` and `digest` of the best model so far. Raises DataError where
    the file is missing or damaged, it or its `best` lacks `model` or `digest`, or `promoted` is neither true nor false.
    """
    path = ws.promotion(iteration)
    fix = f"run the iteration {iteration_label(iteration)} to its end first"
    if iteration == 0:
        fix = "`flywheel run` records there the model that the workspace begins from"
    raw, _ = _read_json_object(ws, path, fix=fix)
    for key in ("model", "digest"):
        if not isinstance(raw.get(key), str):
            raise DataError(f"promotion has no {key}", where=ws.relative(path), fix="restore it from git")
    if not isinstance(raw.get("promoted", True), bool):
        what = "`promoted` of promotion is neither true nor false"
        raise DataError(what, where=ws.relative(path), fix="restore it from git")
    best = raw.get("best") or raw
    if not isinstance(best, dict) or not all(isinstance(best.get(key), str) for key in ("model", "digest")):
        raise DataError("`best` of promotion is no model", where=ws.relative(path), fix="restore it from git")
    return raw


def is_model_promoted(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration's model was promoted.

    Raises DataError as `read_promotion`, and where its file does not say.
    """
    found = read_promotion(ws, iteration)
    if "promoted" not in found:
        where = ws.relative(ws.promotion(iteration))
        raise DataError("promotion has no promoted", where=where, fix="restore it from git")
    return found["promoted"]


def verify_manifest(ws: Workspace, iteration: int) -> None:
    """Check the chain of manifests back to iteration 0, and every file that training may read.

    SFT stores that have left the window of `iteration` are not looked at. Raises DataError naming the first file that
    is missing or differs, or a manifest that `read_manifest` refuses.
    """
    for shard in read_manifest(ws, iteration).files:
        path = ws.resolve(shard.path)
        if not path.is_file():
            raise DataError("a file of the manifest is missing", where=shard.path, fix="type `dvc checkout`")
        if cached_sha256(path) != shard.sha256:
            raise DataError("a file differs from the manifest", where=shard.path, fix="type `dvc checkout --force`")


def _as_json(
    iteration: int, previous: str, window: int, shards: Iterable[ManifestFile], sessions: Iterable[str]
) -> dict[str, Any]:
    """Return the content of a manifest's file: what its own iteration added."""
    own = [{name: value for name, value in vars(shard).items() if name != "iteration"} for shard in shards]
    return {"iteration": iteration, "previous": previous, "window": window, "shards": own, "sessions": list(sessions)}


def _manifest_files(ws: Workspace, table: str, iteration: int, stage: str) -> tuple[ManifestFile, ...]:
    found = partition_manifest(ws, table, iteration, stage)
    parts = ((f"{found.folder}/{part.name}", part.rows, part.sha256) for part in found.parts)
    return tuple(ManifestFile(iteration, table, stage, *part) for part in parts)


def _read_json_object(ws: Workspace, path: Path, *, fix: str) -> tuple[dict[str, Any], str]:
    """Return the JSON object in the file, and the file's sha256."""
    try:
        content = path.read_bytes()
        raw = json.loads(content)
    except FileNotFoundError:
        raise DataError("no such file", where=ws.relative(path), fix=fix) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid JSON: {error}", where=ws.relative(path), fix="restore it from git") from None
    if not isinstance(raw, dict):
        raise DataError("not a JSON object", where=ws.relative(path), fix="restore it from git")
    return raw, hashlib.sha256(content).hexdigest()
