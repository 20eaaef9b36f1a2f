"""The cumulative manifest of the training stores: which files iteration k's training may read.

`iterations/NNN/manifest.json` chains to its predecessor by the sha256 of that file, so a change anywhere in
the history shows. It is small, lies in git, and is what the training stages depend on: it names every
Parquet file with its sha256, so DVC need not be told of all past partitions (and no stage depends on a
folder that grows).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.files import known_sha256, sha256_file, write_json
from flywheel.store.partitions import manifest_of
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Shard:
    """One Parquet file. path: relative to the workspace."""

    iteration: int
    table: str
    stage: str
    path: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Cumulative:
    """ct: every iteration's, it only grows. sft: of the newest `window` iterations. data: every iteration's
    tables that the stores point into. sessions: recordings taken in so far. previous: sha256 of the manifest
    before."""

    iteration: int
    previous: str
    ct: tuple[Shard, ...] = ()
    sft: tuple[Shard, ...] = ()
    data: tuple[Shard, ...] = ()
    sessions: tuple[str, ...] = ()

    def shards(self, table: str) -> tuple[Shard, ...]:
        """Files of a table, oldest iteration first: `ct` or `sft`, or what they point into."""
        if table in ("ct", "sft"):
            return getattr(self, table)
        return tuple(shard for shard in self.data if shard.table == table)

    def paths(self, ws: Workspace, table: str) -> list[Path]:
        return [ws.resolve(shard.path) for shard in self.shards(table)]


def begin(ws: Workspace, iterations: Iterable[int] = ()) -> None:
    """The empty stores of iteration 0, of which no model is measured. Existing files are kept.

    iterations: those that are there; one made before models' outcomes and open
    levels were kept knows of none.
    """
    if not ws.manifest(0).exists():
        write_json(ws.manifest(0), asdict(Cumulative(iteration=0, previous="")))
    for k in (0, *iterations):
        if k == 0 or ws.promotion(k).exists():
            for path, nothing in ((ws.held_out(k), {"about": "", "models": {}}), (ws.levels(k), {"open": {}})):
                if not path.exists():
                    write_json(path, nothing)


def genesis(ws: Workspace, digest: str, model: str = "models/base") -> None:
    """Iteration 0: empty stores, and the first checkpoint as the promoted model. Existing files are kept."""
    begin(ws)
    if not ws.promotion(0).exists():
        promotion = {"iteration": 0, "model": model, "digest": digest, "promoted": True, "reason": "first checkpoint"}
        write_json(ws.promotion(0), promotion)


def write(
    ws: Workspace, iteration: int, *, window: int, sessions: Iterable[str] = (), data: Iterable[tuple[str, str]] = ()
) -> Cumulative:
    """Write iteration k's manifest from its partitions on disk and its predecessor's manifest.

    window: iterations of the SFT store that are used. sessions: ids of the recordings ingested in this iteration.
    data: (table, stage) of what training needs besides the stores. Raises DataError where the predecessor's manifest
    is missing or not readable.
    """
    before = read(ws, iteration - 1)
    own_sft = _shards(ws, "sft", iteration, "route")
    recent = tuple(shard for shard in before.sft if shard.iteration > iteration - window)
    own_data = [shard for table, stage in data for shard in _shards(ws, table, iteration, stage)]
    result = Cumulative(
        iteration=iteration,
        previous=sha256_file(ws.manifest(iteration - 1)),
        ct=before.ct + _shards(ws, "ct", iteration, "route"),
        sft=recent + own_sft,
        data=before.data + tuple(own_data),
        sessions=before.sessions + tuple(sorted(set(sessions) - set(before.sessions))),
    )
    write_json(ws.manifest(iteration), asdict(result))
    return result


def read(ws: Workspace, iteration: int) -> Cumulative:
    """Raises DataError where the manifest is missing or not one."""
    path = ws.manifest(iteration)
    raw = _json(ws, path, fix="run the iteration before it, or fetch it with `git checkout`")
    try:
        return Cumulative(
            iteration=raw["iteration"],
            previous=raw["previous"],
            ct=tuple(Shard(**shard) for shard in raw["ct"]),
            sft=tuple(Shard(**shard) for shard in raw["sft"]),
            data=tuple(Shard(**shard) for shard in raw["data"]),
            sessions=tuple(raw["sessions"]),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"not a manifest: {error!r}", where=ws.relative(path), fix="restore it from git") from None


def read_promotion(ws: Workspace, iteration: int) -> dict[str, Any]:
    """`promotion.json`: at least `model` (folder relative to the workspace) and `digest`."""
    path = ws.promotion(iteration)
    raw = _json(ws, path, fix=f"run the iteration {label(iteration)} to its end first")
    for key in ("model", "digest"):
        if key not in raw:
            raise DataError(f"promotion has no {key}", where=ws.relative(path), fix="restore it from git")
    return raw


def verify(ws: Workspace, iteration: int) -> None:
    """Check the chain back to iteration 0 and every file that iteration k's manifest names.

    Raises DataError naming the first file that is missing or differs.
    """
    current = read(ws, iteration)
    for shard in (*current.ct, *current.sft, *current.data):
        path = ws.resolve(shard.path)
        if not path.is_file():
            raise DataError("a file of the manifest is missing", where=shard.path, fix="type `dvc checkout`")
        if known_sha256(path) != shard.sha256:
            raise DataError("a file differs from the manifest", where=shard.path, fix="type `dvc checkout --force`")
    while current.iteration > 0:
        before = ws.manifest(current.iteration - 1)
        previous = read(ws, current.iteration - 1)
        if sha256_file(before) != current.previous:
            raise DataError(
                f"the manifest changed after iteration {label(current.iteration)} was built on it",
                where=ws.relative(before),
                fix="restore it with `git checkout`",
            )
        current = previous


def _shards(ws: Workspace, table: str, iteration: int, stage: str) -> tuple[Shard, ...]:
    parts = manifest_of(ws, table, iteration, stage).parts
    return tuple(Shard(iteration, table, stage, part.path, part.rows, part.sha256) for part in parts)


def _json(ws: Workspace, path: Path, *, fix: str) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("no such file", where=ws.relative(path), fix=fix) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid JSON: {error}", where=ws.relative(path), fix="restore it from git") from None
    if not isinstance(raw, dict):
        raise DataError("not a JSON object", where=ws.relative(path), fix="restore it from git")
    return raw
