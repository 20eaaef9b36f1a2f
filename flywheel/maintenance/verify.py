"""Verify every file of a workspace against its recorded hash, reading all bytes (`flywheel workspace verify`).

The hashes of a partition's files stand in the partition's list and in the manifest; those of all other outputs of a
stage, models included, in dvc.lock. DVC names a folder by the hash of the list of its files, which is computed again
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.policy import checkpoint
from flywheel.store import manifest, partitions
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.utils.errors import DataError, FlywheelError, ModelError
from flywheel.utils.files import sha256_file


def find_faults(ws: Workspace, iterations: Iterable[int] | None = None) -> Iterator[str]:
    """Yield a line for each fault of data, records, promotions and manifests; every byte is read, nothing is changed.

    iterations: those to check; None: all. It is a generator: errors come as it is read. Raises BadInput for an
    iteration that has not been begun; DataError where DVC's own files are lost or damaged, a `pruned.json` is damaged,
    or Git changed line ends; FlywheelError where git refuses or does not answer.
    """
    git_tags.check_line_ends(ws.root)
    bases_told: set[str] = set()
    which = stage_records.list_iterations(ws) if iterations is None else list(iterations)
    stage_records.check_iterations_begun(ws, which)
    for k in which:
        reported: set[str] = set()
        for path, line in _partition_faults(ws, k):
            reported.add(path)
            yield line
        yield from _output_faults(ws, k, reported)
        yield from _promotion_faults(ws, k)
        yield from _adapter_faults(ws, k, bases_told)
        yield from _manifest_faults(ws, k, reported)


def _partition_faults(ws: Workspace, iteration: int) -> Iterator[tuple[str, str]]:
    """Yield (partition's folder, line) for each fault of the iteration's partitions."""
    for folder in sorted(ws.data.glob(f"*/iteration={iteration_label(iteration)}/stage=*")):
        name = ws.relative(folder)
        try:
            listed = partitions.read_part_list(folder)
        except DataError as error:
            yield name, str(error)
            continue
        for one in listed or ():
            try:
                if sha256_file(folder / one.name) != one.sha256:
                    what = "its bytes changed since it was written"
                    yield name, str(partitions.damaged_file_error(folder / one.name, what))
            except FileNotFoundError:
                yield name, str(partitions.missing_part_error(folder / one.name))


def _output_faults(ws: Workspace, iteration: int, told: set[str]) -> Iterator[str]:
    gone = dvc_files.read_pruned(ws, iteration)
    for path in stage_records.find_orphaned_outputs(ws, iteration):
        yield stage_records.orphaned_output_line(ws, iteration, path)
    for stage, entry in dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, iteration)).items():
        for out in entry.get("outs", ()):
            path = ws.root / out["path"]
            if out["path"] in told or (out["path"] in gone and not path.exists()):
                continue
            if not path.exists():
                yield f"{out['path']} is missing; {_repair_hint(out['path'])}"
            elif (dvc_files.folder_md5(path) if path.is_dir() else dvc_files.file_md5(path)) != out["md5"]:
                recorded = f"{stage}@{iteration_label(iteration)}"
                yield f"{out['path']} is not as {recorded} recorded it; {_repair_hint(out['path'])}"


def _promotion_faults(ws: Workspace, iteration: int) -> Iterator[str]:
    if not ws.promotion(iteration).exists():
        return
    try:
        promotion = manifest.read_promotion(ws, iteration)
        folder = ws.resolve(promotion["model"])
        if folder.is_dir() and checkpoint.checkpoint_digest(folder) != promotion["digest"]:
            yield f"{promotion['model']} does not have the weights that iteration {iteration_label(iteration)} promoted"
    except FlywheelError as error:
        yield str(error)


def _adapter_faults(ws: Workspace, iteration: int, told: set[str]) -> Iterator[str]:
    """Yield a line for each changed or missing base of an adapter. told: bases reported so far; new ones are added."""
    for folder in sorted((ws.root / "models" / f"iteration={iteration_label(iteration)}").glob("*")):
        try:
            checkpoint.find_base_checkpoint(folder)
        except ModelError as error:
            if error.what not in told:
                told.add(error.what)
                yield str(error)


def _manifest_faults(ws: Workspace, iteration: int, told: set[str]) -> Iterator[str]:
    if not ws.manifest(iteration).exists():
        return
    try:
        named = manifest.read_manifest(ws, iteration).files
    except DataError as error:
        yield str(error)
        return
    gone = dvc_files.read_pruned(ws, iteration)
    for shard in named:
        folder, _, name = shard.path.rpartition("/")
        if shard.iteration != iteration or folder in told or folder in gone:
            continue
        listed = {part.name: part.sha256 for part in partitions.read_part_list(ws.resolve(folder)) or ()}
        if listed.get(name) != shard.sha256:
            yield f"{shard.path} is not the file that the manifest of iteration {iteration_label(iteration)} names"


def _repair_hint(path: str) -> str:
    if path.startswith("iterations/"):
        return f"type `git checkout HEAD -- {path}`"
    return f"type `dvc checkout --force {path}`, or `dvc pull`"
