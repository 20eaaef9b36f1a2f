"""Migrate a workspace that an earlier version of flywheel made to this version (`flywheel workspace migrate`).

Each step makes one kind of change in all files of the workspace, DVC's records included. It changes only what is still
in the old form, so it may run again after a kill. The workspace's format number, by which other commands see that all
steps are done, is written last.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel import config
from flywheel.config import renamed, run_lock
from flywheel.config.workspace import FORMAT, Workspace, iteration_label
from flywheel.store import partitions
from flywheel.store.catalog import compaction
from flywheel.store.renamed_tables import RENAMED_TABLES, is_of_earlier_schema, rename_rows
from flywheel.store.schema import TABLES
from flywheel.store.versioning import dvc_files, git_tags
from flywheel.utils.errors import BadInput, DataError, DiskFull
from flywheel.utils.files import atomic_file, sha256_file, write_json, write_text


def migrate_workspace(ws: Workspace) -> Iterator[str]:
    """Migrate a workspace of an earlier version to this version's format; yield a line of text for each change.

    It is a generator: nothing happens until it is iterated. It holds the workspace's lock, and commits at the end where
    `versioning.git` is set. An interrupted migration is resumed by running it again. Raises BadInput where the
    workspace is of a later version, parameters are wrong or given under both an old and a new name, a partition is
    missing, or a rollback or routing decision is only half applied; WorkspaceBusy where a process holds the lock;
    DataError for a damaged file, or where DVC's file of an iteration is lost; VersioningError where DVC fails;
    FlywheelError where git refuses; DiskFull.
    """
    if (found := ws.read_format()) > FORMAT:
        raise BadInput(
            f"the workspace has format {found}, and this version knows {FORMAT}", where=ws.root, fix="update flywheel"
        )
    with run_lock.hold_workspace(ws):
        changed = False
        for step in STEPS:
            for line in step(ws):
                changed = True
                yield line
        if found != FORMAT:
            changed = True
            dvc_files.write_workspace_dvc_yaml(ws, max(_begun(ws), default=0))
            yield f"{ws.iterations_index.name}: format {found} -> {FORMAT}"
        if changed and config.load_settings(ws.params).versioning.git:
            git_tags.commit_workspace(ws, "flywheel workspace migrate")


def _places(ws: Workspace) -> Iterator[Workspace]:
    """Yield the workspace itself, then each folder that `flywheel iteration rollback` has set aside, as a workspace."""
    yield ws
    yield from (Workspace(path) for path in sorted((ws.state / "aside").glob("after-*")))


def _begun(ws: Workspace) -> list[int]:
    return [k for k in ws.list_iteration_folders() if dvc_files.dvc_yaml_path(ws, k).exists()]


def _rename_settings(ws: Workspace) -> Iterator[str]:
    yield from _rename_in_file(ws, ws.params)
    for place in _places(ws):
        for k in _begun(place):
            yield from _rename_in_file(ws, place.frozen_params(k))
            yield from _rename_in_lock(ws, dvc_files.dvc_lock_path(place, k))


def _rename_in_file(ws: Workspace, path: Path) -> Iterator[str]:
    if not path.exists():
        return
    try:
        before = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8: {error}", where=ws.relative(path), fix="restore it, or mend it") from None
    text, changes = renamed.rename_in_text(before, ws.relative(path))
    if changes:
        write_text(path, text)
        yield f"{ws.relative(path)}: {', '.join(changes)}"


def _rename_in_lock(ws: Workspace, path: Path) -> Iterator[str]:
    entries, count = dvc_files.read_dvc_lock(path), 0
    for entry in entries.values():
        for blocks in entry.get("params", {}).values():
            for block, values in blocks.items():
                now = renamed.rename_block(block, values, ws.relative(path))
                if now != values:
                    blocks[block] = dict(sorted(now.items()))
                    count += 1
    if count:
        write_text(path, dvc_files.dump_dvc_lock(entries))
        yield f"{ws.relative(path)}: {count} blocks of parameters"


def _replace(file: str, old: str, new: str) -> Callable[[Workspace], Iterator[str]]:
    """Return a step that replaces the text `old` by `new` in one file of the workspace."""

    def apply(ws: Workspace) -> Iterator[str]:
        if _rewrite_text(ws.root / file, lambda text: text.replace(old, new)):
            yield f"{file}: {old.removeprefix('cmd: ').strip()} -> {new.removeprefix('cmd: ').strip()}"

    return apply


# The steps run in this order, and each yields a line for each change. Whoever appends a step raises `FORMAT` by one
# (config/workspace.py).
STEPS: tuple[Callable[[Workspace], Iterator[str]], ...] = (
    _rename_settings,
    # The build step of `prefect deploy`.
    _replace("prefect.yaml", "flows.code.fingerprint", "flows.code_version.code_version_build_step"),
    _replace("dvc.yaml", "cmd: flywheel report\n", "cmd: flywheel iteration report\n"),
    lambda ws: update_tables(ws, _places(ws)),
)

# The step that gives tables their present names and columns, one iteration at a time, oldest first. New partitions are
# built in `.flywheel/migrating`, with a copy in DVC's cache; writing `plan.json` there commits them. Then they are put
# in place, and the manifest and DVC's records follow. Each part may be done twice, so a killed run can be resumed.


_STORED_TABLES = {old: new for old, new in RENAMED_TABLES.items() if new in TABLES}
_PARTITION_PATH = re.compile(rf"\bdata/({'|'.join(_STORED_TABLES)})/(?=iteration=)")
_ROW_RECORDS = ("decisions.json", "checkup.json")  # files of an iteration that hold rows of tables
_SPARE_BYTES = 64 * 2**20
_CACHED_MODE = 0o444  # permissions of a file in DVC's cache


@dataclass
class _Journal:
    """Hold the state of the table migration, stored in `plan.json`.

    at: [place, iteration] whose new partitions are all built and have to be put in place; None while they are being
    built. before: MD5 of that iteration's small files before the change, by path; manifest: sha256 of its manifest
    before; gone: its pruned partitions, which are rewritten for DVC's records but stay out of the workspace. done:
    finished iterations, by place. moved: old paths of the rewritten partitions, by place. entries: what DVC records
    from now on, by the path and MD5 recorded before. chain: sha256 of a manifest before the change -> after it. Paths
    are relative to their place.
    """

    at: list[Any] | None = None
    before: dict[str, str] = field(default_factory=dict)
    manifest: str = ""
    gone: list[str] = field(default_factory=list)
    done: dict[str, list[int]] = field(default_factory=dict)
    moved: dict[str, list[str]] = field(default_factory=dict)
    entries: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    chain: dict[str, str] = field(default_factory=dict)


def update_tables(ws: Workspace, places: Iterable[Workspace]) -> Iterator[str]:
    """Rename tables and columns of earlier versions in all partitions, and update the records that name them.

    places: the workspace first, then the folders set aside by rollbacks, in order of their iterations. Yields a line
    for each iteration that was changed; nothing happens until it is iterated. Raises BadInput where a partition is
    missing, or a rollback or routing decision is only half applied; DataError where a partition is damaged;
    VersioningError where DVC fails; DiskFull.
    """
    places = list(places)
    for begun, what in (("again/plan.json", "a decision about routes"), ("rollback.json", "a rollback")):
        if (ws.state / begun).exists():
            fix = "`flywheel run` of the version before ends it"
            raise BadInput(f"{what} is half carried out", where=ws.state / begun, fix=fix)
    _check_space(ws, places)
    plan_path = _folder(ws) / "plan.json"
    try:
        journal = _Journal(**json.loads(plan_path.read_text(encoding="utf-8"))) if plan_path.exists() else _Journal()
    except (ValueError, TypeError) as error:
        raise DataError(f"it is damaged: {error}", where=plan_path, fix="copy the whole workspace again") from error
    cache, changed = dvc_files.find_cache_folder(ws), False
    for place in places:
        for line in _PlaceMigration(ws, place, journal, cache).run():
            changed = True
            yield line
    shutil.rmtree(_folder(ws), ignore_errors=True)
    if changed:
        shutil.rmtree(ws.state / "closed", ignore_errors=True)
        compaction.compact_iterations(ws)


def _folder(ws: Workspace) -> Path:
    return ws.state / "migrating"


class _PlaceMigration:
    def __init__(self, ws: Workspace, place: Workspace, journal: _Journal, cache: Path) -> None:
        self._ws, self._place, self._journal, self._cache = ws, place, journal, cache
        self._name = "." if place.root == ws.root else place.root.name
        self._moved = journal.moved.setdefault(self._name, [])
        self._done = journal.done.setdefault(self._name, [])

    def run(self) -> Iterator[str]:
        for k in self._place.list_iteration_folders():
            if k in self._done:
                continue
            if self._journal.at is None:
                yield from self._build(k)
            if self._journal.at == [self._name, k]:
                yield from self._apply(k)
        if self._place.root != self._ws.root:  # undoing a rollback expects that only empty folders are left
            shutil.rmtree(self._place.state / "locks", ignore_errors=True)
        for path in sorted((self._place.state / "staging").glob("*/**/*.parquet")):
            yield from _update_shard(self._ws, path)

    def _save(self) -> None:
        write_json(_folder(self._ws) / "plan.json", asdict(self._journal))

    def _build(self, iteration: int) -> Iterator[str]:
        place, journal, staged = self._place, self._journal, self._staged(iteration)
        shutil.rmtree(staged.root, ignore_errors=True)
        gone = []
        for folder in _list_partitions(place, iteration):
            self._build_partition(folder, folder, staged)
        for path, md5 in _list_missing(place, iteration) if self._ws.read_format() < FORMAT else ():
            fetched = staged.root / "fetched" / path
            if self._copy_from_cache(md5, fetched):
                self._build_partition(fetched, place.root / path, staged)
                gone.append(path)
            else:
                yield f"{path}: pruned, and not in DVC's cache: its rows keep the columns that they have"
        records = [place.manifest(iteration), *(place.iteration(iteration) / name for name in _ROW_RECORDS)]
        journal.before = {place.relative(path): dvc_files.file_md5(path) for path in records if path.exists()}
        journal.manifest = sha256_file(place.manifest(iteration)) if place.manifest(iteration).exists() else ""
        journal.gone, journal.at = gone, [self._name, iteration]
        self._save()

    def _build_partition(self, source: Path, folder: Path, staged: Workspace) -> None:
        """Rewrite a partition into `staged`. source: folder with its files. folder: the partition's own folder."""
        table, new, iteration, stage = _identify_partition(folder)
        files = [source / part.name for part in partitions.read_part_list(source) or ()]
        if not any(_is_of_earlier_version(table, path) for path in files):
            return
        with partitions.open_partition_writer(staged, new, iteration, stage) as writer:
            for path in files:
                with partitions.open_partition_file(table, path, wholly=True) as file:
                    for batch in file.iter_batches():
                        writer.write(rename_rows(new, pa.Table.from_batches([batch]), self._ws.relative(path)))
        old, built = self._place.relative(folder), staged.partition(new, iteration, stage)
        self._moved.append(old)
        path = self._place.relative(self._place.partition(new, iteration, stage))
        entry = {"path": path, **dvc_files.describe_output(built)}
        self._journal.entries.setdefault(old, {})[dvc_files.folder_md5(source)] = entry
        self._copy_to_cache(built)

    def _apply(self, iteration: int) -> Iterator[str]:
        place, journal = self._place, self._journal
        moved = [old for old in self._moved if _identify_partition(Path(old))[2] == iteration]
        for old in moved:
            if old not in journal.gone:
                self._put_in_place(old, iteration)
        folder = place.iteration(iteration)
        changed = [
            _rewrite_json(place.manifest(iteration), self._rename_in_manifest),
            *(_rewrite_json(folder / name, _rename_in_rows) for name in _ROW_RECORDS),
            *(_rewrite_text(folder / name, _rename_partitions) for name in ("dvc.yaml", "pruned.json")),
        ]
        for path, md5 in journal.before.items():
            journal.entries.setdefault(path, {})[md5] = {"path": path, **dvc_files.describe_output(place.root / path)}
        if journal.manifest:
            journal.chain[journal.manifest] = sha256_file(place.manifest(iteration))
        changed.append(self._update_lock(iteration))
        self._done.append(iteration)
        journal.at = None
        self._save()
        shutil.rmtree(self._staged(iteration).root, ignore_errors=True)
        if moved or any(changed):
            yield f"{self._ws.relative(folder)}: {len(moved)} partitions written anew, and what names them"

    def _put_in_place(self, old: str, iteration: int) -> None:
        earlier, table, _, stage = _identify_partition(Path(old))
        partitions.adopt_partition(self._place, self._staged(iteration), table, iteration, stage)
        if earlier != table:
            folder = self._place.root / old
            shutil.rmtree(folder, ignore_errors=True)
            for above in (folder.parent, folder.parents[1]):
                if above.is_dir() and not any(above.iterdir()):
                    above.rmdir()

    def _rename_in_manifest(self, raw: dict[str, Any]) -> dict[str, Any]:
        lists = {name: list(self._rename_files(raw[name])) for name in ("shards", "ct", "sft", "data") if name in raw}
        return {**raw, **lists, "previous": self._journal.chain.get(raw["previous"], raw["previous"])}

    def _rename_files(self, files: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the entries of a manifest's files under their new names; new files replace those of a rewritten
        partition."""
        done = set()
        for one in files:
            old, _, name = one["path"].rpartition("/")
            new = _rename_path(old)
            renamed = {**one, "table": _STORED_TABLES.get(one["table"], one["table"]), "path": f"{new}/{name}"}
            there = self._read_new_list(old) if old in self._moved else None
            if there is None:
                yield renamed
            elif new not in done:
                done.add(new)
                for part in there:
                    yield {**renamed, "path": f"{new}/{part.name}", "rows": part.rows, "sha256": part.sha256}

    def _read_new_list(self, old: str) -> list[partitions.ListedFile] | None:
        """Read the file list of a partition that was rewritten. old: its path before."""
        _, table, iteration, stage = _identify_partition(Path(old))
        place = self._staged(iteration) if old in self._journal.gone else self._place
        return partitions.read_part_list(place.partition(table, iteration, stage))

    def _update_lock(self, iteration: int) -> bool:
        """Replace old paths and hashes in the iteration's dvc.lock by the new ones; return whether it changed."""
        path = dvc_files.dvc_lock_path(self._place, iteration)
        stages, changed = dvc_files.read_dvc_lock(path), False
        for stage in stages.values():
            for one in (*stage.get("deps", ()), *stage.get("outs", ())):
                known = self._journal.entries.get(one["path"], {}).get(one.get("md5", ""), {})
                now = {"path": _rename_path(one["path"]), **known}
                changed |= one != {**one, **now}
                one |= now
        if changed:
            write_text(path, dvc_files.dump_dvc_lock(stages))
        return changed

    def _copy_to_cache(self, folder: Path) -> None:
        text, files = dvc_files.list_folder(folder)
        contents = {one["md5"]: folder / one["relpath"] for one in files}
        for md5, content in {**contents, dvc_files.folder_md5(folder): text}.items():
            if not (target := self._cache_path(md5)).exists():
                with atomic_file(target) as temporary:
                    if isinstance(content, Path):
                        shutil.copyfile(content, temporary)
                    else:
                        temporary.write_text(content, encoding="utf-8")
                    temporary.chmod(_CACHED_MODE)

    def _copy_from_cache(self, md5: str, folder: Path) -> bool:
        listing = self._cache_path(md5)
        if not listing.is_file():
            return False
        try:
            files = json.loads(listing.read_text(encoding="utf-8"))
            sources = [(self._cache_path(one["md5"]), folder / one["relpath"]) for one in files]
        except (ValueError, KeyError, TypeError):  # a damaged listing counts as missing
            return False
        if not all(source.is_file() for source, _ in sources):
            return False
        folder.mkdir(parents=True)
        for source, target in sources:
            shutil.copyfile(source, target)
        return True

    def _cache_path(self, md5: str) -> Path:
        return self._cache / md5[:2] / md5[2:]

    def _staged(self, iteration: int) -> Workspace:
        return Workspace(_folder(self._ws) / self._name / iteration_label(iteration))


def _identify_partition(folder: Path) -> tuple[str, str, int, str]:
    """Return the table's old and new name, the iteration and the stage of a partition's folder."""
    table, iteration, stage = folder.parts[-3:]
    number = int(iteration.partition("=")[2])
    return table, _STORED_TABLES.get(table, table), number, stage.removeprefix("stage=")


def _list_partitions(place: Workspace, iteration: int) -> Iterator[Path]:
    for folder in sorted(place.data.glob(f"*/iteration={iteration_label(iteration)}/stage=*")):
        if _identify_partition(folder)[1] in TABLES:
            yield folder


def _is_of_earlier_version(table: str, path: Path) -> bool:
    with partitions.open_partition_file(table, path) as file:
        return is_of_earlier_schema(table, file.schema_arrow)


def _list_missing(place: Workspace, iteration: int) -> Iterator[tuple[str, str]]:
    """Yield (path, MD5) of the recorded partitions that were pruned. Raises BadInput where one is lost."""
    gone = dvc_files.read_pruned(place, iteration)
    for path, one in dvc_files.recorded_outputs(place, iteration).items():
        if path.startswith("data/") and "md5" in one and not (place.root / path).is_dir():
            if path not in gone:
                raise BadInput(
                    "a partition that is recorded is not here",
                    where=path,
                    fix="`dvc checkout`, or `dvc pull` where there is a remote; then `flywheel workspace migrate`",
                )
            yield path, one["md5"]


def _check_space(ws: Workspace, places: Iterable[Workspace]) -> None:
    """Raise DiskFull unless the rewritten partitions fit: all in DVC's cache, one iteration's staged besides."""
    sizes = [0]
    for place in places:
        for k in place.list_iteration_folders():
            listed = [
                (path, part) for path in _list_partitions(place, k) for part in partitions.read_part_list(path) or ()
            ]
            old = [part for path, part in listed if _is_of_earlier_version(path.parts[-3], path / part.name)]
            sizes.append(sum(part.bytes for part in old))
    if not (total := sum(sizes)):
        return
    needed, free = total + max(sizes) + _SPARE_BYTES, shutil.disk_usage(ws.root).free
    if needed > free:
        raise DiskFull(
            f"tables of {total / 1e6:.0f} MB are written anew: that takes {needed / 1e6:.0f} MB, and "
            f"{free / 1e6:.0f} MB are free",
            where=ws.root,
            fix="free some space; nothing was changed",
        )


def _rename_path(path: str) -> str:
    """Return a partition's path with the table's present name; any other path is returned as it is."""
    return _rename_partitions(f"{path}/").rstrip("/")


def _rename_partitions(text: str) -> str:
    return _PARTITION_PATH.sub(lambda found: f"data/{_STORED_TABLES[found[1]]}/", text)


def _rewrite_json(path: Path, change: Callable[[Any], Any]) -> bool:
    """Replace a JSON file's value by `change(value)`; return whether it differs. Raises DataError if damaged."""
    if not path.exists():
        return False
    try:
        before = json.loads(path.read_bytes())
        after = change(before)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"not a record of flywheel: {error!r}", where=path, fix="restore it from git") from error
    if after != before:
        write_json(path, after)
    return after != before


def _rewrite_text(path: Path, change: Callable[[str], str]) -> bool:
    """Replace a file's text by `change(text)`; return whether it differs. Raises DataError where it is not UTF-8."""
    if not path.exists():
        return False
    try:
        before = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not text in UTF-8: {error}", where=path, fix="restore it from git") from None
    if (after := change(before)) != before:
        write_text(path, after)
    return after != before


def _rename_in_rows(raw: Any) -> Any:
    """Rename the columns of rows in a JSON value, at any depth, to the present ones."""
    if isinstance(raw, list):
        return [_rename_in_rows(one) for one in raw]
    if isinstance(raw, dict):
        return {"success" if name == "v" else name: _rename_in_rows(one) for name, one in raw.items()}
    return raw


def _update_shard(ws: Workspace, path: Path) -> Iterator[str]:
    """Rewrite the rows that a finished shard of an incomplete stage left; the file is named after its table."""
    table = path.stem
    new = _STORED_TABLES.get(table, table)
    if new not in TABLES:
        return
    try:
        rows = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"not a whole Parquet file: {partitions.exception_first_line(error)}",
            where=ws.relative(path),
            fix="delete the folder that it is in: its shard is done anew",
        ) from None
    if is_of_earlier_schema(table, rows.schema):
        with atomic_file(path.with_name(f"{new}.parquet")) as temporary:
            pq.write_table(rename_rows(new, rows, ws.relative(path)), temporary, compression="zstd")
        if new != table:
            path.unlink()
        yield f"{ws.relative(path)}: -> {new}" if new != table else f"{ws.relative(path)}: columns"
