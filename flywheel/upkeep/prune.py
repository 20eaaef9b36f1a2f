"""Remove what past iterations do not need any more, by a rule of retention.

Never what a promoted model needs: the weights of each that was promoted, or is the best so far, and all files that the
chain of manifests names (unless these are asked for by name); nor anything of an iteration that is open, or of the one
that it stands on. What is small and tells the history stays: metrics, runs, routes, scores, lineage.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flywheel.errors import BadInput, DataError
from flywheel.store import catalog, dvc_lock, manifest, pruned, versioning
from flywheel.workspace import Workspace, label

_BULKY = ("steps", "images", "events")
_TRAINED = ("steps", "images", "thoughts", "general")


@dataclass(frozen=True)
class Prunable:
    """path: an output of a stage, relative to the workspace."""

    iteration: int
    path: str
    bytes: int


def plan(
    ws: Workspace, *, keep: int | None = None, older: timedelta | None = None, training_data: bool = False
) -> list[Prunable]:
    """What goes of the iterations that are complete and neither among the newest `keep` nor younger than `older`.

    training_data: also what training reads of them; a run that reads it fetches it from DVC's cache or remote. Raises
    BadInput where neither is given, or training data are asked for while an iteration that reads them is open.
    """
    if keep is None and older is None:
        raise BadInput("no rule", where="flywheel prune", fix="give --keep N, or --older-than DAYS, or both")
    begun = versioning.iterations(ws)
    complete = [k for k in begun if dvc_lock.complete(ws, k)]
    is_open = len(complete) < len(begun)
    if training_data and is_open:
        what = f"iteration {label(begun[-1])} is open, and trains on them"
        raise BadInput(what, where="--training-data", fix="bring it to its end, or discard it, first")
    ended = _ended(ws) if older is not None else {}
    spared = set(complete[-keep:] if keep else ()) | set(versioning.at_work(ws) if is_open else begun[-1:])
    if older is not None:
        since = datetime.now(UTC) - older
        spared |= {k for k in complete if ended.get(k, datetime.now(UTC)) > since}
    needed = _models(ws, begun)
    found = []
    for k in complete:
        if k not in spared:
            gone = pruned.read(ws, k)
            paths = (path for path in _of(ws, k, needed, training_data) if path not in gone)
            found += [Prunable(k, path, _bytes(ws.root / path)) for path in paths]
    return found


def carry_out(ws: Workspace, chosen: list[Prunable]) -> None:
    """Remove it, under the workspace's lock. It is noted first, so a removal that was interrupted is not damage."""
    for k in sorted({one.iteration for one in chosen}):
        pruned.add(ws, k, [one.path for one in chosen if one.iteration == k])
    for one in chosen:
        shutil.rmtree(ws.root / one.path)


def garbage(ws: Workspace, spared: Collection[str] = ()) -> list[tuple[Path, int]]:
    """Files of DVC's cache, with their bytes, that no iteration names which is here or set aside; what was pruned of
    them does not count, nor do the paths in `spared`. Versions that git's history alone names are garbage too."""
    cache = ws.root / ".dvc" / "cache" / "files" / "md5"
    used: set[str] = set()
    for place in (ws, *(Workspace(path) for path in (ws.state / "aside").glob("after-*"))):
        for path in place.root.glob("iterations/[0-9]*/dvc.lock"):
            gone = {*pruned.read(place, int(path.parent.name)), *spared}
            for entry in dvc_lock.read(path).values():
                used |= {one["md5"] for one in entry.get("outs", ()) if one["path"] not in gone and "md5" in one}
    for name in [name for name in used if name.endswith(".dir")]:
        used |= _listed(cache / name[:2] / name[2:])
    files = (path for path in cache.glob("??/*") if path.is_file())
    return [(path, path.stat().st_size) for path in files if path.parent.name + path.name not in used]


def _listed(path: Path) -> set[str]:
    import json

    try:
        return {one["md5"] for one in json.loads(path.read_text(encoding="utf-8"))}
    except FileNotFoundError:
        return set()


def _of(ws: Workspace, iteration: int, needed: set[str], training_data: bool) -> Iterator[str]:
    trained = {path.rpartition("/")[0] for path in _named(ws, iteration)}
    for table in dict.fromkeys((*_BULKY, *_TRAINED)):
        for folder in sorted((ws.data / table / f"iteration={label(iteration)}").glob("stage=*")):
            name = ws.relative(folder)
            if name in trained:
                if training_data and table in _TRAINED:
                    yield name
            elif table in _BULKY:
                yield name
    for folder in sorted((ws.root / "models" / f"iteration={label(iteration)}").glob("*")):
        if folder.is_dir() and ws.relative(folder) not in needed:
            yield ws.relative(folder)


def _named(ws: Workspace, iteration: int) -> list[str]:
    """Files of the iteration that any manifest names: all that follow name those of its own too."""
    return [shard.path for shard in manifest.read(ws, iteration).all() if shard.iteration == iteration]


def _models(ws: Workspace, begun: list[int]) -> set[str]:
    """Folders of the models that were promoted, or the best, after any iteration."""
    found = set()
    for k in (0, *begun):
        try:
            promotion = manifest.read_promotion(ws, k)
        except DataError:
            if dvc_lock.decided(ws, k):
                raise
            continue
        found |= {promotion["model"], (promotion.get("best") or promotion)["model"]}
    return found


def _ended(ws: Workspace) -> dict[int, datetime]:
    """When each iteration's last run ended, or its DVC file was written where no run is known."""
    locks = {k: dvc_lock.path(ws, k) for k in versioning.iterations(ws)}
    found = {k: datetime.fromtimestamp(path.stat().st_mtime, UTC) for k, path in locks.items() if path.exists()}
    rows = catalog.query(ws, "SELECT iteration, max(ended_at) AS at FROM runs GROUP BY ALL").to_pylist()
    return found | {row["iteration"]: row["at"] for row in rows if row["at"]}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
