"""Define a stage: what it reads and writes, its plan of shards, the work of one shard, and its finish.

The declaration of reads, writes and settings is the only one: the order of the stages, DVC's stages, the key under
which finished shards are kept and the manifest's sources are made from it (`flywheel/pipeline/dag.py`).

The same stage is run by Prefect (one task a shard, `tasks/shards.py`) and by DVC (`flywheel stage NAME`, through
`run_stage` below), here or on other machines (`flywheel/cluster`). Resuming lives here, once, for all: the result of a
finished shard lies in the workspace's staging area under a key made from the stage's inputs, so a killed run goes on
from it and changed inputs do not meet old results.
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
from flywheel.utils.errors import FlywheelError, ShardBusy
from flywheel.utils.files import atomic_file, disk_full_errors, file_lock, sha256_file, write_json

# What passes from stage to stage: partitions of tables, checkpoints, small records. A stage declares which of these it
# reads and writes. A name may hold `{domain}`: there is one for each domain of the iteration.

DOMAIN_PLACEHOLDER = "{domain}"


@dataclass(frozen=True)
class Partition:
    """Name the rows of a table that one stage wrote in this iteration."""

    table: str
    stage: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the partition's folder in `iteration`."""
        return ws.partition(self.table, iteration, self.stage)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of each of its files in `iteration`."""
        return [part.sha256 for part in partitions.partition_manifest(ws, self.table, iteration, self.stage).parts]


@dataclass(frozen=True)
class Checkpoint:
    """Name a model of this iteration: its folder is named as the stage that made it, or as what it is."""

    name: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the checkpoint's folder in `iteration`."""
        return ws.model(iteration, self.name)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the digest of its weights in `iteration`."""
        return checkpoint.checkpoint_digest(self.path(ws, iteration))


@dataclass(frozen=True)
class Record:
    """Name a small JSON file of an iteration, which git keeps. previous: that of the iteration before.

    What a record names by hash (the files of a manifest, the model of a promotion) is read with it.
    """

    name: str
    previous: bool = False

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the file's path. iteration: of the record itself."""
        return ws.iteration(iteration) / f"{self.name}.json"

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of the file; "" where it is not there (iterations of earlier versions have no `decisions`).

        iteration: the one that reads it.
        """
        path = self.path(ws, iteration - 1 if self.previous else iteration)
        return sha256_file(path) if path.exists() else ""


Artifact = Partition | Checkpoint | Record


def expand_domains(artifact: Artifact, domains: Iterable[str]) -> list[Artifact]:
    """List the artifact of each domain where there is one for each, else itself."""
    field = "stage" if isinstance(artifact, Partition) else "name"
    if DOMAIN_PLACEHOLDER not in (name := getattr(artifact, field)):
        return [artifact]
    return [replace(artifact, **{field: name.replace(DOMAIN_PLACEHOLDER, domain)}) for domain in domains]


# How long to wait for another worker that does the same shard: one that was believed dead. A dead one holds no lock.
_BUSY_S = 600.0
ShardResults = Mapping[str, tuple[Path, Any]]  # shard -> its folder, and what `work` returned


@dataclass(frozen=True)
class StageContext:
    """Hold one stage of one iteration in a workspace, with the iteration's own frozen settings.

    stage: its name, with the domain in it where it has one. run_id: the flow run that pays for this; empty outside
    Prefect. shared: what the stage's `shares` has opened in this process, while it does shards.
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
        """Open the context of a stage of an iteration that has begun, and load the suites that its settings name by
        manifests.

        run_id: of the Prefect run; "" outside of one. Raises BadInput where it has not been begun, or a manifest cannot
        be used.
        """
        settings = stage_records.load_iteration_params(ws, iteration)
        registry.load_external_suites(settings, ws.root)
        return cls(ws, settings, iteration, stage, run_id)

    def report(self, line: str) -> None:
        """Report how far the stage is, in a short line."""
        progress.report_progress(self.stage, line)

    def report_part(self, line: str, done: int, total: int, shard: str = "") -> None:
        """Report how far a shard is that is done in parts.

        line: short. done, total: parts. shard: its name; "" for the only one of its stage.
        """
        progress.report_shard_progress(self.stage, line, shard or self.stage, done / max(1, total))

    def write(self, table: str, rows: Any) -> PartitionManifest:
        """Write the partition of `table` that this stage owns, over an earlier one; returns its manifest.

        rows: mappings, or a table of the schema. Raises DataError where they do not fit the schema, DiskFull.
        """
        return partitions.write_partition(self.ws, table, self.iteration, self.stage, rows)

    def read_rows(self, table: str, *stages: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Read the rows of a table that the named stages of this iteration wrote, in that order; a dict a row.

        columns: to read; default: all. Raises DataError where a partition is missing or damaged.
        """
        parts = (partitions.read_partition(self.ws, table, self.iteration, stage, columns) for stage in stages)
        return [row for part in parts for row in part.to_pylist()]

    def read_tasks(self, stage: str, split: str | None = None) -> dict[str, Task]:
        """Read the tasks that `stage` wrote, by id, in the order of the table.

        split: train or eval alone; default: both. Raises DataError where the partition is missing or damaged.
        """
        found = map(task_from_row, self.read_rows("tasks", stage))
        return {task.task_id: task for task in found if split in (None, task.split)}

    def newest_model(self) -> dict[str, Any]:
        """Read what the iteration before this one promoted: `model` (folder or name), its `digest`, and more.

        Raises DataError where its promotion is missing or damaged.
        """
        return manifest.read_promotion(self.ws, self.iteration - 1)

    def newest_model_folder(self) -> Path:
        """Return the folder of the newest promoted model; a Hugging Face name is fetched where it must be.

        Raises ModelError where it is not there, and what `newest_model` does.
        """
        return checkpoint.resolve_checkpoint(self.newest_model()["model"], self.ws.root)

    def model_name(self, folder: Path) -> str:
        """Name a model as lineage does: by its folder relative to the workspace, or, where it lies elsewhere, as it was
        promoted (`policy.base`). Raises what `newest_model` does."""
        inside = folder.resolve().is_relative_to(self.ws.root)
        return self.ws.relative(folder) if inside else self.newest_model()["model"]

    def write_lineage(self, model: Path, parents: Iterable[str], **links: Any) -> PartitionManifest:
        """Write where a checkpoint that this stage made comes from; returns the manifest of what was written.

        model: its folder, in the workspace. parents: names (`model_name`) of those that it began from or merges. links:
        more arguments of `lineage.checkpoint_links`. Raises ModelError where it has no weights, DataError, DiskFull.
        """
        name, digest = self.ws.relative(model), checkpoint.checkpoint_digest(model)
        rows = lineage.checkpoint_links(name, digest, parents=parents, run_id=self.run_id, **links)
        return self.write("lineage", rows)

    def count_episodes(self, shard: str, total: int, what: str) -> Callable[[object], None]:
        """Make a callback that reports how many of `total` episodes of `shard`, called `what`, have ended; its argument
        is ignored."""
        ended = itertools.count(1)

        def count(_: object) -> None:
            done = next(ended)
            self.report_part(f"{shard}: {done} of {total} {what}", done, total, shard)

        return count

    def gather_shards(self, results: ShardResults, table: str, *key: str) -> PartitionManifest:
        """Write the staged rows of a table of all shards to the stage's partition, one batch in memory at a time.

        results: by shard, its folder and result. key: columns; of rows with the same key the first alone is written.
        Returns the partition's manifest. Raises DataError for rows that do not fit the schema, DiskFull.
        """
        seen: set[tuple] = set()
        with partitions.open_partition_writer(self.ws, table, self.iteration, self.stage) as writer:
            for folder, _ in results.values():
                for batch in pq.ParquetFile(folder / f"{table}.parquet").iter_batches():
                    writer.write(_drop_seen_keys(pa.Table.from_batches([batch]).cast(TABLES[table]), key, seen))
        return partitions.partition_manifest(self.ws, table, self.iteration, self.stage)

    @property
    def domain(self) -> str:
        """Of a stage that is there once a domain; "" of others."""
        return self.stage.partition("-")[2]

    def key(self, stage: Stage) -> str:
        """Return 12 hexadecimal digits that name the inputs of `stage`, hashed once: they stay while it runs.

        Raises DataError or ModelError where a partition or a model that it reads is damaged, and what its `extra` does.
        """
        if stage.name not in self._keys:
            text = json.dumps(stage_inputs(stage, self), sort_keys=True, default=str)
            self._keys[stage.name] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._keys[stage.name]

    def seed(self, *names: object) -> int:
        """Derive the seed of one use, which `names` name, from the settings' seed and the iteration: 0 to 2**31 - 1."""
        text = "|".join(map(str, (self.settings.seed, self.iteration, *names)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


@dataclass(frozen=True)
class StageResult:
    """Hold what a stage has written: `manifests` of its partitions.

    metrics: rows of the table `metrics` (written by the caller of `finish`). summary: a few figures for people, in the
    order to show them. tables: rows by name, to be shown beside it.
    """

    manifests: tuple[PartitionManifest, ...] = ()
    metrics: tuple[Mapping[str, Any], ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


BROWSERS, TRAINING = "browsers", "training"  # what a stage may need of a machine


@dataclass(frozen=True)
class Stage:
    """Declare a stage.

    name: with `{domain}` in it the stage is there once a domain. reads: what it opens. writes: names of tables (the
    partition that it owns; of `metrics` every stage has one), checkpoints and records. settings: the blocks of the
    settings that its result depends on; DVC's parameters. extra: JSON values on which it depends besides. closing: it
    runs once the turn is over.

    plan: names of the shards, in order; each can be done without the others. work: does one shard in its folder (which
    may hold the leavings of a killed try) and returns a small JSON value. finish: turns the shards' results into
    partitions. All of them can be called without Prefect.

    shares: opens what all shards that one process does have in common (`StageContext.shared`), such as a model. needs:
    what a machine must have on which a shard is done: BROWSERS, TRAINING, both, or nothing (); None: it stays on the
    machine of the run.
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

    @property
    def outputs(self) -> tuple[Artifact, ...]:
        """What it writes, as artifacts."""
        return tuple(Partition(one, self.name) if isinstance(one, str) else one for one in (*self.writes, "metrics"))

    def partitions(self, *tables: str) -> list[tuple[str, str]]:
        """List (table, stage) of the partitions that it reads, of these tables or of all."""
        read = (artifact for artifact in self.reads if isinstance(artifact, Partition))
        return [(one.table, one.stage) for one in read if not tables or one.table in tables]


def stage_inputs(stage: Stage, ctx: StageContext) -> dict[str, Any]:
    """Collect all that the stage's result depends on, as JSON values: its shards are keyed by them."""
    domains = list(ctx.settings.synthesis.domains)
    own = [ctx.domain] if DOMAIN_PLACEHOLDER in stage.name else domains
    reads = [one for artifact in stage.reads for one in expand_domains(artifact, own)]
    settings = ctx.settings.model_dump(mode="json", include=set(stage.settings))
    return {
        "reads": [[repr(one), one.fingerprint(ctx.ws, ctx.iteration)] for one in reads],
        "settings": settings,
        "extra": stage.extra(ctx),
    }


def shard_folder(stage: Stage, ctx: StageContext, shard: str) -> Path:
    """Return the folder in which a shard works and leaves its result, named by the stage's inputs."""
    return ctx.ws.staging(ctx.iteration, ctx.stage) / ctx.key(stage) / shard


class InProcessWorker(AbstractContextManager):
    """Do shards of one stage in this process, one after the other. stage, ctx: of which iteration.

    What they share is opened at the first that has to be done, stays open until the end of the block, and is opened
    anew after a shard that failed.
    """

    several = False  # see `flywheel/cluster`

    def __init__(self, stage: Stage, ctx: StageContext) -> None:
        self._stage, self._ctx = stage, ctx
        self._open = ExitStack()
        self._sharing: StageContext | None = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; the next shard opens it anew."""
        self._sharing = None
        self._open.close()

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """Do the shard of that name, or take its result where it was finished before.

        One process is at a shard at a time, on whichever machine: the second waits, and takes what the first finished.
        Returns its folder, its result, and whether it had been done before. Raises ShardBusy where another process is
        still at it after 10 minutes, DiskFull, what `StageContext.key` and the stage's `shares` and `work` raise.
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
        write_json(folder / "result.json", {"result": result, "seconds": round(time.monotonic() - started, 3)})
        return result


def _read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished shard left: `result`, and the `seconds` that it took."""
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def publish_stage_result(stage: Stage, ctx: StageContext, results: ShardResults) -> StageResult:
    """Finish a stage: write its partitions and its metrics, stage seconds included, in place of earlier ones.

    results: by shard, its folder and what `work` returned. What is staged stays (`clear_staging`), and DVC's record is
    left to `stage_records.record_stage`. Returns what `finish` did, with the metrics that were written. Raises what
    `finish` raises, FlywheelError where it wrote other tables than it declares, DataError for wrong metrics, DiskFull.
    """
    outcome = stage.finish(ctx, results)
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
    """Remove all that the stage of `ctx` has staged, if anything; call it once its result is recorded."""
    shutil.rmtree(ctx.ws.staging(ctx.iteration, ctx.stage), ignore_errors=True)


def run_stage(stage: Stage, ctx: StageContext) -> StageResult:
    """Run a whole stage in this process, one shard after the other, and return what `publish_stage_result` wrote.

    Shards that a cut-off run finished are not done again. Raises what `plan`, `InProcessWorker.do_shard` and
    `publish_stage_result` do.
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
    """Declare a stage of one shard, which is named as the stage.

    name: of the stage. work: does the shard in a folder and returns a small JSON value. finish: turns folder and value
    into partitions. declared: the other fields of `Stage`.
    """
    return Stage(
        name,
        plan=lambda ctx: (ctx.stage,),
        work=lambda ctx, shard, folder: work(ctx, folder),
        finish=lambda ctx, results: finish(ctx, *results[ctx.stage]),
        **declared,
    )


def write_shard(folder: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Stage rows of a table, mappings, in the shard's `folder`: they count once its result is written after them.

    Raises DataError for a row that does not fit the table, DiskFull.
    """
    with disk_full_errors(folder), atomic_file(folder / f"{table}.parquet") as path:
        pq.write_table(table_from_rows(table, rows), path, compression="zstd")


def write_episode_shard(folder: Path, episodes: Iterable[Episode]) -> None:
    """Stage episodes in the shard's `folder` as rows of trajectories, steps and images. Raises DiskFull."""
    episodes = list(episodes)
    write_shard(folder, "trajectories", (record_to_row("trajectories", episode.trajectory) for episode in episodes))
    write_shard(folder, "steps", (record_to_row("steps", step) for episode in episodes for step in episode.steps))
    write_shard(folder, "images", image_rows({sha: png for episode in episodes for sha, png in episode.images.items()}))


def read_shards(results: ShardResults, table: str, *key: str) -> pa.Table:
    """Read the staged rows of a table of all shards.

    results: by shard, its folder and result. key: columns; of rows with the same key the first alone is read: what
    shards share, such as screens.
    """
    found = [pq.ParquetFile(folder / f"{table}.parquet").read() for folder, _ in results.values()]
    return _drop_seen_keys(pa.concat_tables([empty_table(table), *found]), key, set())


def _drop_seen_keys(rows: pa.Table, key: Sequence[str], seen: set[tuple]) -> pa.Table:
    """Rows whose key was not seen before; they are from now on."""
    if not key:
        return rows
    names = zip(*(rows[column].to_pylist() for column in key), strict=True)
    return rows.filter(pa.array([name not in seen and not seen.add(name) for name in names], pa.bool_()))
