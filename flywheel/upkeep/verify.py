"""Hold every file of a workspace against its hash: no date and no size is trusted, all bytes are read.

Of a partition say its own list and the manifest what each file is; of all that a stage recorded, models too, DVC's
lock says it. A folder is named there by the hash of the list of its files, which is made anew here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from flywheel.errors import BadInput, DataError, FlywheelError
from flywheel.policy import checkpoint
from flywheel.store import dvc_lock, manifest, parts, pruned, versioning
from flywheel.workspace import Workspace, label


def faults(ws: Workspace, iterations: Iterable[int] | None = None) -> Iterator[str]:
    """A line for each fault of the iterations, or of all. Raises BadInput for one that has not been begun."""
    begun = versioning.iterations(ws)
    which = begun if iterations is None else list(iterations)
    if unknown := [k for k in which if k not in begun]:
        raise BadInput(f"iteration {unknown[0]} has not been begun", where="ITERATION", fix="see `flywheel status`")
    for k in which:
        told: set[str] = set()
        for path, line in _partitions(ws, k):
            told.add(path)
            yield line
        yield from _recorded(ws, k, told)
        yield from _promoted(ws, k)
        yield from _manifest(ws, k, told)


def _partitions(ws: Workspace, iteration: int) -> Iterator[tuple[str, str]]:
    """(partition, line)."""
    for folder in sorted(ws.data.glob(f"*/iteration={label(iteration)}/stage=*")):
        name = ws.relative(folder)
        try:
            listed = parts.read(folder)
        except DataError as error:
            yield name, str(error)
            continue
        for one in listed or ():
            try:
                if _digest(folder / one.name, "sha256") != one.sha256:
                    yield name, str(parts.damaged(folder / one.name, "its bytes changed since it was written"))
            except FileNotFoundError:
                yield name, str(parts.missing(folder / one.name))


def _recorded(ws: Workspace, iteration: int, told: set[str]) -> Iterator[str]:
    gone = pruned.read(ws, iteration)
    for stage, entry in dvc_lock.read(dvc_lock.path(ws, iteration)).items():
        for out in entry.get("outs", ()):
            path = ws.root / out["path"]
            if out["path"] in told or (out["path"] in gone and not path.exists()):
                continue
            if not path.exists():
                yield f"{out['path']} is missing; {_mend(out['path'])}"
            elif (_dvc_md5(path) if path.is_dir() else _digest(path, "md5")) != out["md5"]:
                yield f"{out['path']} is not as {stage}@{label(iteration)} recorded it; {_mend(out['path'])}"


def _promoted(ws: Workspace, iteration: int) -> Iterator[str]:
    if not ws.promotion(iteration).exists():
        return
    try:
        promotion = manifest.read_promotion(ws, iteration)
        folder = ws.resolve(promotion["model"])
        if folder.is_dir() and checkpoint.digest(folder) != promotion["digest"]:
            yield f"{promotion['model']} does not have the weights that iteration {label(iteration)} promoted"
    except FlywheelError as error:
        yield str(error)


def _manifest(ws: Workspace, iteration: int, told: set[str]) -> Iterator[str]:
    if not ws.manifest(iteration).exists():
        return
    try:
        named = manifest.read(ws, iteration).all()
    except DataError as error:
        yield str(error)
        return
    gone = pruned.read(ws, iteration)
    for shard in named:
        folder, _, name = shard.path.rpartition("/")
        if shard.iteration != iteration or folder in told or folder in gone:
            continue
        listed = {part.name: part.sha256 for part in parts.read(ws.resolve(folder)) or ()}
        if listed.get(name) != shard.sha256:
            yield f"{shard.path} is not the file that the manifest of iteration {label(iteration)} names"


def _dvc_md5(folder: Path) -> str:
    """As DVC names a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = [{"md5": _digest(path, "md5"), "relpath": path.relative_to(folder).as_posix()} for path in files]
    entries.sort(key=lambda one: one["relpath"].split("/"))
    text = json.dumps(entries, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _mend(path: str) -> str:
    return f"type `dvc checkout --force {path}`, or `dvc pull`"
