"""Define what a stage is (what it reads and writes, its shards, its result), and run one so that it can be resumed.

Reads, writes and settings are declared once. The order of the stages, DVC's stages, the key of finished shards and the
manifest's sources all follow from this declaration (`flywheel/pipeline/dag.py`).

The same stage is run by Prefect (one task per shard, `tasks/shards.py`) and by DVC (`flywheel stage NAME`, through
`run_stage` below), here or on other machines (`flywheel/cluster`). Resuming is implemented here for all of them: the
result of a finished shard lies in the workspace's staging area under a key made from the stage's inputs, so a killed
run goes on from it, and results of other inputs are never used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import task_from_row
from flywheel.policy import checkpoint
from flywheel.rollout.episode import Episode
from flywheel.store import lineage, manifest, partitions
from flywheel.store.images import image_rows
from flywheel.store.partitions import PartitionManifest, table_from_rows
from flywheel.store.schema import TABLES, empty_table, record_to_row
from flywheel.store.versioning import stage_records
from flywheel.utils import processes, progress
from flywheel.utils.errors import DataError, FlywheelError, ShardBusy
from flywheel.utils.files import atomic_file, disk_full_errors, file_lock, sha256_file, write_json

# Stages pass on partitions of tables, checkpoints and small records. A stage declares which of these it reads and
# writes. A name may contain `{domain}`: then there is one artifact for each domain of the iteration.

DOMAIN_PLACEHOLDER = "{domain}"


@dataclass(frozen=True)
class Partition:
    """Identify the rows of a table that one stage wrote in an iteration."""

    table: str
    stage: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the partition's folder in `iteration`."""
        return ws.partition(self.table, iteration, self.stage)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of each of the partition's files in `iteration`, as its list records them.

        Raises DataError for a damaged list.
        """
        return [part.sha256 for part in partitions.partition_manifest(ws, self.table, iteration, self.stage).parts]


@dataclass(frozen=True)
class Checkpoint:
    """Identify a model of an iteration by its folder's name: `ct`, `sft`, `rl-<domain>` or `merged`."""

    name: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the checkpoint's folder in `iteration`."""
        return ws.model(iteration, self.name)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the digest of the checkpoint's weights in `iteration`. Raises ModelError as `checkpoint_digest`."""
        return checkpoint.checkpoint_digest(self.path(ws, iteration))


@dataclass(frozen=True)
class Record:
    """Identify a small JSON file of an iteration, which git keeps. name: without `.json`.

    previous: whether it is that of the iteration before. A stage that reads a record may also read what the record
    names by hash (a manifest's files, a promotion's model).
    """

    name: str
    previous: bool = False

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the file's path. iteration: the one that the record belongs to."""
        return ws.iteration(iteration) / f"{self.name}.json"

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of the file; "" where there is none (iterations of earlier versions have no `decisions`).

        iteration: the one that reads it.
        """
        path = self.path(ws, iteration - 1 if self.previous else iteration)
        return sha256_file(path) if path.exists() else ""


Artifact = Partition | Checkpoint | Record


def expand_domains(artifact: Artifact, domains: Iterable[str]) -> list[Artifact]:
    """Return `artifact` once for each of `domains` where its name contains `{domain}`, else it alone, in a list."""
    field = "stage" if isinstance(artifact, Partition) else "name"
    if DOMAIN_PLACEHOLDER not in (name := getattr(artifact, field)):
        return [artifact]
    return [replace(artifact, **{field: name.replace(DOMAIN_PLACEHOLDER, domain)}) for domain in domains]


# Seconds to wait for another worker at the same shard, wrongly believed dead; one that is dead holds no lock.
_BUSY_S = 600.0
ShardResults = Mapping[str, tuple[Path, Any]]  # shard -> its folder, and what `work` returned


@dataclass(frozen=True)
class StageContext:
    """Hold one stage of one iteration in a workspace, with the iteration's own frozen settings.

    stage: its name, including the domain if it has one. run_id: of the Prefect flow run; "" outside Prefect. shared:
    what the stage's `shares` has opened in this process, while shards are done.
    """

    ws: Workspace
    settings: Settings
    iteration: int
    stage: str
    run_id: str = ""
    shared: Any = field(default=None, compare=False, repr=False)
    _keys: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def open(cls, ws: Workspace, iteration: int, stage: str, run_id: str = "") -> StageContext:
        """Open the context of a stage, and load the task suites that the iteration's settings name by manifests.

        run_id: of the Prefect flow run; "" outside Prefect. Raises BadInput where the iteration has not been begun, its
        parameters are lost or wrong, or a manifest cannot be used.
        """
        settings = stage_records.load_iteration_params(ws, iteration)
        registry.load_external_suites(settings, ws.root)
        return cls(ws, settings, iteration, stage, run_id)

    def report(self, line: str) -> None:
        """Report the stage's progress in a short line."""
        progress.report_progress(self.stage, line)

    def report_part(self, line: str, done: int, total: int, shard: str = "") -> None:
        """Report the progress of a shard that consists of parts.

        line: short text. done, total: numbers of parts, of which a total of 0 counts as 1. shard: its name; "" for the
        only one of its stage.
        """
        progress.report_shard_progress(self.stage, line, shard or self.stage, done / max(1, total))

    def write(self, table: str, rows: Any) -> PartitionManifest:
        """Replace the partition of `table` that this stage owns by `rows`; return its manifest.

        rows: mappings, or a table of the schema. Raises as `write_partition`.
        """
        return partitions.write_partition(self.ws, table, self.iteration, self.stage, rows)

    def read_rows(self, table: str, *stages: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Read the rows of a table that the named stages of this iteration wrote, in that order, as dicts.

        columns: those to read; None: all. Raises as `read_partition`.
        """
        parts = (partitions.read_partition(self.ws, table, self.iteration, stage, columns) for stage in stages)
        return [row for part in parts for row in part.to_pylist()]

    def read_tasks(self, stage: str, split: str | None = None) -> dict[str, Task]:
        """Read the tasks that `stage` wrote, by id, in the order of the table.

        split: `train` or `eval` only; None: both. Raises as `read_partition`.
        """
        found = map(task_from_row, self.read_rows("tasks", stage))
        return {task.task_id: task for task in found if split in (None, task.split)}

    def newest_model(self) -> dict[str, Any]:
        """Read the promotion of the iteration before this one: `model` (folder or name), its `digest`, and more.

        Raises DataError where that is missing or damaged.
        """
        return manifest.read_promotion(self.ws, self.iteration - 1)

    def newest_model_folder(self) -> Path:
        """Return the folder of the newest promoted model; a model of the Hugging Face hub is fetched if needed.

        Raises ModelError where it does not exist, and what `newest_model` does.
        """
        return checkpoint.resolve_checkpoint(self.newest_model()["model"], self.ws.root)

    def model_name(self, folder: Path) -> str:
        """Return the name of the model in `folder` for lineage: the folder relative to the workspace.

        For a folder outside of it, the name of the newest model, which is then `policy.base`. Raises as `newest_model`.
        """
        inside = folder.resolve().is_relative_to(self.ws.root)
        return self.ws.relative(folder) if inside else self.newest_model()["model"]

    def write_lineage(self, model: Path, parents: Iterable[str], **links: Any) -> PartitionManifest:
        """Write the lineage of a checkpoint that this stage made; return the manifest of the partition.

        model: its folder, in the workspace. parents: names (`model_name`) of the models that it began from or merges.
        links: more arguments of `lineage.checkpoint_links`. Raises ModelError as `checkpoint_digest`, ValueError for a
        folder outside of the workspace, DataError where another process has been writing the partition for ten minutes,
        DiskFull.
        """
        name, digest = self.ws.relative(model), checkpoint.checkpoint_digest(model)
        rows = lineage.checkpoint_links(name, digest, parents=parents, run_id=self.run_id, **links)
        return self.write("lineage", rows)

    def count_episodes(self, shard: str, total: int, what: str) -> Callable[[object], None]:
        """Return a callback to be called for each ended episode of `shard`, which counts and reports them as progress.

        total: number of the shard's episodes. what: the word for episodes in the report. The callback ignores its
        argument, and may be called from several threads.
        """
        ended = itertools.count(1)

        def count(_: object) -> None:
            done = next(ended)
            self.report_part(f"{shard}: {done} of {total} {what}", done, total, shard)

        return count

    def gather_shards(self, results: ShardResults, table: str, *key: str) -> PartitionManifest:
        """Write the rows of a table that all shards staged to the stage's partition, one batch in memory at a time.

        results: by shard, its folder and result. key: columns; of rows with the same key only the first is written.
        Returns the partition's manifest. Raises DataError for rows that do not fit the schema, where a shard staged no
        file of that table (`write_shard`), and where another process has been writing the partition for ten minutes;
        DiskFull.
        """
        seen: set[tuple] = set()
        with partitions.open_partition_writer(self.ws, table, self.iteration, self.stage) as writer:
            for shard, (folder, _) in results.items():
                for batch in _open_staged(shard, folder, table).iter_batches():
                    writer.write(_drop_seen_keys(pa.Table.from_batches([batch]).cast(TABLES[table]), key, seen))
        return partitions.partition_manifest(self.ws, table, self.iteration, self.stage)

    @property
    def domain(self) -> str:
        """Return the domain in the stage's name, such as `games` of `rl-games`; "" for other stages."""
        return self.stage.partition("-")[2]

    def key(self, stage: Stage) -> str:
        """Hash the inputs of `stage` to 12 hex digits, once per context: the key does not change while the stage runs.

        Raises as `stage_inputs`.
        """
        if stage.name not in self._keys:
            text = json.dumps(stage_inputs(stage, self), sort_keys=True, default=str)
            self._keys[stage.name] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._keys[stage.name]

    def seed(self, *names: object) -> int:
        """Derive a seed, 0 to 2**31 - 1, from the settings' seed, the iteration, and `names`, which tell its use."""
        text = "|".join(map(str, (self.settings.seed, self.iteration, *names)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


@dataclass(frozen=True)
class StageResult:
    """Hold what a stage has written and measured.

    manifests: of its partitions. metrics: rows of the table `metrics`, which `publish_stage_result` writes. summary: a
    few figures for people, in the order to show them. tables: rows by name, to be shown with the summary.
    """

    manifests: tuple[PartitionManifest, ...] = ()
    metrics: tuple[Mapping[str, Any], ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


BROWSERS, TRAINING = "browsers", "training"  # what a stage may need on its machine


@dataclass(frozen=True)
class Stage:
    """Hold the declaration of a stage: what it reads and writes, and the functions that do its work.

    name: with `{domain}` in it the stage is repeated for each domain. reads: artifacts that it opens. writes: names of
    tables (of each it writes its own partition; `metrics` is implied), checkpoints and records. settings: blocks of the
    settings that its result depends on; they become DVC's parameters. extra: returns further JSON values that its
    result depends on. closing: whether it runs after the iteration's end.

    It runs after the stages that write what it reads; of several that are ready the first by name goes first. So one
    that nobody reads may come last, and the iteration is complete only after it.

    plan: returns the names of the shards, in order; each can be done without the others. work: does one shard in its
    folder (which may hold files of a killed attempt) and returns a small JSON value. finish: turns the shards' results
    into partitions, and returns a `StageResult`. All of them can be called without Prefect.

    shares: opens what all shards of one process use in common (`StageContext.shared`), such as a model. needs: what a
    machine must have to do a shard: BROWSERS, TRAINING, both, or nothing (); None: shards stay on the run's own
    machine.

    source: path of the module that declares it, which `dag` fills in: shards that other code did are done again.
    """

    name: str
    reads: tuple[Artifact, ...]
    writes: tuple[str | Checkpoint | Record, ...]
    settings: tuple[str, ...]
    plan: Callable[[StageContext], Sequence[str]]
    work: Callable[[StageContext, str, Path], Any]
    finish: Callable[[StageContext, ShardResults], StageResult]
    extra: Callable[[StageContext], Any] = lambda ctx: None
    closing: bool = False
    shares: Callable[[StageContext], AbstractContextManager[Any]] = lambda ctx: nullcontext()
    needs: tuple[str, ...] | None = None
    source: str = ""

    @property
    def outputs(self) -> tuple[Artifact, ...]:
        """Return all artifacts that the stage writes, its partition of `metrics` last."""
        return tuple(Partition(one, self.name) if isinstance(one, str) else one for one in (*self.writes, "metrics"))

    def partitions(self, *tables: str) -> list[tuple[str, str]]:
        """List (table, writing stage) of the partitions that the stage reads, of `tables` or, without any, of all."""
        read = (artifact for artifact in self.reads if isinstance(artifact, Partition))
        return [(one.table, one.stage) for one in read if not tables or one.table in tables]


def stage_inputs(stage: Stage, ctx: StageContext) -> dict[str, Any]:
    """Collect everything that the stage's result depends on, as JSON values: the key of its shards is their hash.

    ctx: of `stage`. Raises as the artifacts' `fingerprint` (DataError for a damaged list of a partition, ModelError for
    a model without weights) and the stage's `extra`.
    """
    domains = list(ctx.settings.synthesis.domains)
    own = [ctx.domain] if DOMAIN_PLACEHOLDER in stage.name else domains
    reads = [one for artifact in stage.reads for one in expand_domains(artifact, own)]
    settings = ctx.settings.model_dump(mode="json", include=set(stage.settings))
    return {
        "reads": [[repr(one), one.fingerprint(ctx.ws, ctx.iteration)] for one in reads],
        "settings": settings,
        "extra": stage.extra(ctx),
        "source": sha256_file(Path(stage.source)) if stage.source else "",
    }


def shard_folder(stage: Stage, ctx: StageContext, shard: str) -> Path:
    """Return the folder in which a shard works and leaves its result; its path contains the stage's key.

    ctx: of `stage`. shard: its name. Raises as `StageContext.key`.
    """
    return ctx.ws.staging(ctx.iteration, ctx.stage) / ctx.key(stage) / shard


class InProcessWorker(AbstractContextManager):
    """Run shards of one stage in this process, one after the other. ctx: the context of `stage`.

    What the shards share is opened for the first shard that has to be done, stays open until the end of the block, and
    is opened again after a shard that failed.
    """

    runs_concurrently = False  # whether it takes several shards at once, as `flywheel/cluster` does

    def __init__(self, stage: Stage, ctx: StageContext) -> None:
        self._stage, self._ctx = stage, ctx
        self._open = ExitStack()
        self._sharing: StageContext | None = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what the shards share; the next shard opens it again."""
        self._sharing = None
        self._open.close()

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """Run the shard named `shard`, or take its result where it was finished before.

        A lock keeps two processes, on whichever machine, from doing the same shard: the second waits, and takes the
        first one's result. Returns the shard's folder, its result, and whether it had been done before. Raises
        ShardBusy where another process is still at it after 10 minutes, ValueError where a finished shard's
        `result.json` is damaged, FlywheelError where `work` returns what is no JSON value, DiskFull, and what
        `StageContext.key` and the stage's `shares` and `work` raise.
        """
        folder = shard_folder(self._stage, self._ctx, shard)
        lock = folder.with_name(f"{shard}.lock")
        with disk_full_errors(folder), file_lock(lock, _BUSY_S, f"at {shard}", ShardBusy):
            if (done := _read_result(folder)) is not None:
                return folder, done["result"], True
            return folder, self._do(shard, folder), False

    def _do(self, shard: str, folder: Path) -> Any:
        started = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if self._sharing is None:
                self._sharing = replace(self._ctx, shared=self._open.enter_context(self._stage.shares(self._ctx)))
            result = self._stage.work(self._sharing, shard, folder)
        except BaseException:
            self.close()
            raise
        processes.trim_heap()
        try:
            write_json(folder / "result.json", {"result": result, "seconds": round(time.monotonic() - started, 3)})
        except TypeError as error:
            what, where = f"its `work` returned what is no JSON value: {error}", f"stage {self._ctx.stage}"
            fix = "return numbers, texts, lists and dicts alone; rows are staged with write_shard"
            raise FlywheelError(what, where=where, fix=fix) from None
        return result


def _read_result(folder: Path) -> dict[str, Any] | None:
    """Read what a finished shard left: `result`, and the `seconds` that it took; None for an unfinished one."""
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def publish_stage_result(stage: Stage, ctx: StageContext, results: ShardResults) -> StageResult:
    """Finish a stage: replace its partitions and its metrics, which include the seconds that it took.

    ctx: of `stage`. results: by shard, its folder and what `work` returned. Staged files stay (`clear_staging` removes
    them), and DVC's record is left to `stage_records.record_stage`. Returns what `finish` did, with all metrics
    written. Raises what `finish` raises, FlywheelError where it returns no `StageResult` or wrote other tables than
    declared, DataError for wrong metrics, or where another process has been writing them for ten minutes, DiskFull.
    """
    outcome = stage.finish(ctx, results)
    if not isinstance(outcome, StageResult):
        what, fix = f"its `finish` returned {outcome!r:.100}", "end it with `return StageResult(...)`"
        raise FlywheelError(what, where=f"stage {ctx.stage}", fix=fix)
    wrote = sorted(one.table for one in outcome.manifests)
    declared = sorted(one for one in stage.writes if isinstance(one, str))
    if wrote != declared:
        raise FlywheelError(f"it wrote the tables {wrote} and declares {declared}", where=f"stage {stage.name}")
    seconds = sum(_read_result(folder)["seconds"] for folder, _ in results.values())
    rows = [{"domain": "all", "step": 0, **row} for row in outcome.metrics]
    rows.append({"domain": "all", "name": "seconds", "step": 0, "value": seconds, "n": len(results)})
    metrics = ctx.write("metrics", rows)
    return StageResult((*outcome.manifests, metrics), tuple(rows), outcome.summary, outcome.tables)


def clear_staging(ctx: StageContext) -> None:
    """Remove all files that the stage of `ctx` has staged, under any key; call it once its result is recorded.

    What cannot be removed stays, without an error.
    """
    shutil.rmtree(ctx.ws.staging(ctx.iteration, ctx.stage), ignore_errors=True)


def run_stage(stage: Stage, ctx: StageContext) -> StageResult:
    """Run a whole stage in this process, one shard after the other; return what it wrote (`publish_stage_result`).

    ctx: of `stage`. The result is not recorded in DVC, and staged files stay. Shards that an interrupted run finished
    are not done again. Raises as the stage's `plan`, `InProcessWorker.do_shard` and `publish_stage_result`: DataError,
    ModelError, DiskFull and others.
    """
    results = {}
    shards = stage.plan(ctx)
    with InProcessWorker(stage, ctx) as worker:
        for number, shard in enumerate(shards, 1):
            folder, result, before = worker.do_shard(shard)
            results[shard] = (folder, result)
            ctx.report(f"{shard} {'was done before' if before else 'done'} ({number} of {len(shards)})")
    return publish_stage_result(stage, ctx, results)


def single_shard_stage(
    name: str,
    *,
    work: Callable[[StageContext, Path], Any],
    finish: Callable[[StageContext, Path, Any], StageResult],
    **declared: Any,
) -> Stage:
    """Make the declaration of a stage that has one shard, which has the stage's name.

    work: does the shard in a folder and returns a small JSON value. finish: turns folder and value into partitions.
    declared: the other fields of `Stage`.
    """
    return Stage(
        name,
        plan=lambda ctx: (ctx.stage,),
        work=lambda ctx, shard, folder: work(ctx, folder),
        finish=lambda ctx, results: finish(ctx, *results[ctx.stage]),
        **declared,
    )


def write_shard(folder: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of a table, mappings, into the shard's `folder`; they count once the shard's result is written.

    Raises DataError for a row that does not fit the table, DiskFull.
    """
    with disk_full_errors(folder), atomic_file(folder / f"{table}.parquet") as path:
        pq.write_table(table_from_rows(table, rows), path, compression="zstd")


def write_episode_shard(folder: Path, episodes: Iterable[Episode]) -> None:
    """Write episodes into the shard's `folder`, as rows of trajectories, steps and images.

    Raises DataError and DiskFull as `write_shard`, OSError for a screen that is no picture.
    """
    episodes = list(episodes)
    write_shard(folder, "trajectories", (record_to_row("trajectories", episode.trajectory) for episode in episodes))
    write_shard(folder, "steps", (record_to_row("steps", step) for episode in episodes for step in episode.steps))
    write_shard(folder, "images", image_rows({sha: png for episode in episodes for sha, png in episode.images.items()}))


def read_shards(results: ShardResults, table: str, *key: str) -> pa.Table:
    """Read the rows of a table that all shards staged (`write_shard`).

    results: by shard, its folder and result. key: columns; of rows with the same key only the first is kept, since
    shards may share rows such as screens. Raises DataError where a shard staged no file of that table.
    """
    found = [_open_staged(shard, folder, table).read() for shard, (folder, _) in results.items()]
    return _drop_seen_keys(pa.concat_tables([empty_table(table), *found]), key, set())


def _open_staged(shard: str, folder: Path, table: str) -> pq.ParquetFile:
    """Open the file of `table` that a shard staged in `folder`. Raises DataError naming the shard where it has none."""
    try:
        return pq.ParquetFile(folder / f"{table}.parquet")
    except FileNotFoundError:
        fix = f'let `work` call write_shard(folder, "{table}", rows), with [] where it has no rows'
        raise DataError(f"the shard {shard} staged no rows of the table {table}", where=folder, fix=fix) from None


def _drop_seen_keys(rows: pa.Table, key: Sequence[str], seen: set[tuple]) -> pa.Table:
    """Return the rows whose key is not in `seen`, and add their keys to it."""
    if not key:
        return rows
    names = zip(*(rows[column].to_pylist() for column in key), strict=True)
    return rows.filter(pa.array([name not in seen and not seen.add(name) for name in names], pa.bool_()))
