"""Weigh down near-duplicate trajectories of an iteration, and find training tasks that are near evaluation tasks."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from flywheel.config import RoutingSettings
from flywheel.config.workspace import Workspace
from flywheel.store import images, manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.dedup import episode_similarity
from flywheel.store.dedup.episode_similarity import BITS_PER_AXIS, StepSequences, splitmix64
from flywheel.store.manifest import TrainingManifest

# Tasks: which have the same content, and which training tasks are near an evaluation task.

Row = Mapping[str, Any]
_TASK_COLUMNS = ("task_id", "world", "template", "level", "params", "instruction", "seed", "split")
# Letters of scripts that put spaces between words: between two of them a single quote is an apostrophe, after one it
# opens nothing. Beside those of other scripts it opens and closes.
_LETTER = r"[0-9A-Za-z\u00c0-\u052f\u1e00-\u1fff]"
_ARGUMENT = re.compile(
    r"""\d+(?:[.,:/-]\d+)*|"[^"]*"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|「[^」]*」"""
    rf"""|(?<!{_LETTER})'(?:[^']|(?<={_LETTER})'(?={_LETTER}))*'(?!{_LETTER})"""
    rf"""|‘(?:[^‘’]|(?<={_LETTER})’(?={_LETTER}))*’"""
)
_QUOTES = "\"'“”„«»「」‘’"


def task_content_hash(task: Row) -> str:
    """Hash a task's content: suite, template, level and parameters; without parameters, its instruction and seed.

    task: row of `tasks`. Returns 32 hex digits.
    """
    params = _params(task.get("params"))
    content = params or [_words(task.get("instruction")), task.get("seed")]
    text = json.dumps([task.get("world"), task.get("template"), task.get("level"), content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def instruction_arguments(instruction: str | None) -> tuple[str, ...]:
    """List the numbers and quoted texts of an instruction, sorted, in lower case: paraphrases share them."""
    return tuple(sorted(found.strip(_QUOTES).casefold() for found in _ARGUMENT.findall(instruction or "")))


def find_tasks_near_evaluation(tasks: Iterable[Row], held_out: Iterable[Row]) -> dict[str, str]:
    """Return task_id -> reason for those of `tasks` that are near one of `held_out` and must not be trained on.

    Both are rows of the table `tasks`. Near means: the same content under another task_id, whatever the case and
    spacing of its texts; or the same instruction and seed. A task without a seed, from another data set, is near by its
    instruction alone.
    """
    contents, asked, said = {}, {}, {}
    for task in sorted(held_out, key=lambda row: row["task_id"], reverse=True):
        contents[task_content_hash(task)] = task["task_id"]
        said[_words(task.get("instruction"))] = task["task_id"]
        if task.get("seed") is not None:
            asked[_asked(task)] = task["task_id"]
    near = {}
    for task in tasks if contents else ():
        if twin := contents.get(task_content_hash(task)):
            near[task["task_id"]] = f"the content of {twin}"
        elif twin := asked.get(_asked(task)):
            near[task["task_id"]] = f"instruction and seed of {twin}"
        elif task.get("seed") is None and (twin := said.get(_words(task.get("instruction")))):
            near[task["task_id"]] = f"the instruction of {twin}"
    return near


def _asked(task: Row) -> tuple[str, int | None]:
    return _words(task.get("instruction")), task.get("seed")


def _words(text: str | None) -> str:
    return " ".join(re.findall(r"\w+", (text or "").casefold()))


def _params(text: str | None) -> Any:
    """Parse the parameters, with case and spacing of texts normalised; other text than JSON is normalised whole."""
    try:
        return _plain(json.loads(text)) if text else None
    except ValueError:
        return _words(text)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


# The difference hash of a screen (Krawetz 2013): 64 bits, each tells whether a cell of a 9 x 8 grid is darker than the
# next. A moved pointer or a blinking caret changes no bit or a few.

MAX_DIFFERING_BITS = 4  # of 64, in which the hashes of similar screens may differ


def difference_hash(encoded: bytes) -> int:
    """Hash a screen by its brightness to 64 bits, a number in [0, 2**64); similar screens differ in few bits.

    encoded: a PNG, JPEG or WebP file, or another that Pillow reads. Raises OSError for one that is no picture,
    Image.DecompressionBombError for one of too many pixels for Pillow.
    """
    with Image.open(io.BytesIO(encoded)) as picture:
        cells = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BILINEAR))
    return int.from_bytes(np.packbits(cells[:, 1:] > cells[:, :-1]).tobytes(), "big")


def hashes_alike(left: int, right: int) -> bool:
    """Tell whether the difference hashes `left` and `right` differ in at most `MAX_DIFFERING_BITS` bits."""
    return (left ^ right).bit_count() <= MAX_DIFFERING_BITS


def insert_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Insert `rows` into the table `table` of `connection`, by the names of the columns.

    Raises duckdb.Error where they do not fit.
    """
    connection.register("inserted", rows)
    connection.execute(f"INSERT INTO {table} BY NAME FROM inserted")
    connection.unregister("inserted")


# Two episodes of the model are near one another where they are in the same store (sft or ct) and, with
#
#     the same task content    the share of steps that agree is at least `least`
#     different contents       all steps but idle ones agree, the instructions' numbers and quoted texts are the same,
#                              and the first and the last screen look alike: one task under two names or wordings
#
# An episode weighs 1 / (episodes near it, itself included): repeats together weigh about as much as one, and none is
# thrown away (samples with the same actions may have different thoughts). The weight depends on the set of episodes
# alone, never on their order. People's demonstrations are never weighed down. Memory grows only with the largest group
# of one content or sequence of actions: DuckDB sorts by these, and a few groups at a time are compared.

REASON_SAME_TASK, REASON_OTHER_TASK = "a repeat of its task", "another task's steps on the same screens"
FirstLastScreens = tuple[str | None, str | None]  # sha256 of an episode's first and last screen
CompareScreens = Callable[[Sequence[tuple[FirstLastScreens, FirstLastScreens]]], Sequence[bool]]
_EPISODES_PER_BATCH = 20_000
_SQL = database.read_queries("flywheel.store.dedup")


def find_near_duplicates(
    connection: duckdb.DuckDBPyConnection, episodes: str, least: float, alike: CompareScreens
) -> None:
    """Create the table `near_duplicates`, with a row for each new episode that is near another one.

    Its columns: trajectory_id; duplicate_of, the nearest neighbour; similarity, the share of steps that agree with that
    one's; reason; weight, in training. connection: the table is created there. episodes: SQL of a relation of
    trajectory_id, content, arguments, store, step_codes, first_image_sha256, last_image_sha256 and new, each trajectory
    once, visible to other cursors of the database; those that are not new belong to earlier iterations and get no row.
    least: share of steps that must agree, in (0, 1]. alike: tells for pairs of episodes' screens whether the first and
    the last look alike; called for few pairs.
    """
    connection.execute(_SQL["tables"])
    number = 0
    for rows in _iter_unsplit_batches(connection, _SQL["by_content"].format(episodes=episodes), "content"):
        number += _find_near_within_content(connection, rows, number, least)
    for rows in _iter_unsplit_batches(connection, _SQL["by_key"], "key"):
        _find_near_across_contents(connection, rows, alike)
    reasons = {"same_task": REASON_SAME_TASK, "other_task": REASON_OTHER_TASK.replace("'", "''")}
    connection.execute(_SQL["near_duplicates"].format(**reasons))
    connection.execute("DROP TABLE dedup_ones; DROP TABLE dedup_members; DROP TABLE dedup_near")


def _iter_unsplit_batches(connection: duckdb.DuckDBPyConnection, sql: str, by: str) -> Iterator[pa.Table]:
    """Yield the rows in batches, ordered by the column `by`; rows of equal values are never in two batches."""
    with connection.cursor() as cursor:
        held: list[pa.Table] = []
        for batch in cursor.execute(sql).to_arrow_reader(_EPISODES_PER_BATCH):
            rows = pa.Table.from_batches([batch])
            if not len(rows):
                continue
            # All rows are yielded but those equal to the last one, of which the next batch may have more.
            last = pc.index(rows[by], rows[by][-1]).as_py()
            if last or (held and held[-1][by][-1] != rows[by][0]):
                before = pa.concat_tables([*held, rows.slice(0, last)])
                held = [rows.slice(last)]
                yield before.combine_chunks()
            else:
                held.append(rows)
        if held:
            yield pa.concat_tables(held).combine_chunks()


def _find_near_within_content(connection: duckdb.DuckDBPyConnection, rows: pa.Table, number: int, least: float) -> int:
    """Collapse rows of equal content, store, arguments and steps to one, and insert the pairs of these that are near.

    rows: by content, store and arguments. number: of the first collapsed row. Returns how many there are.
    """
    sequences = StepSequences.from_lists(rows["step_codes"])
    content, told = _codes(rows["content"]), rows["told"].to_numpy()
    first, second, count, member = _collapsed(content, told, sequences)
    ones, some = rows.take(pa.array(first)), sequences.take(first)
    numbers = np.arange(number, number + len(first))
    names = rows["trajectory_id"]
    insert_rows(connection, "dedup_ones", pa.table({
        "number": numbers, "key": _keys(told[first], some), "told": ones["told"], "content": ones["content"],
        "count": count, "new": ones["new"], "first": ones["trajectory_id"],
        "second": names.take(pa.array(second, mask=second < 0)), "step_codes": ones["step_codes"],
        "first_image_sha256": ones["first_image_sha256"], "last_image_sha256": ones["last_image_sha256"],
    }))  # fmt: skip
    new = rows["new"].to_numpy()
    mine = {"number": numbers[member[new]], "trajectory_id": names.filter(rows["new"])}
    insert_rows(connection, "dedup_members", pa.table(mine))
    store = _codes(ones["store"])
    found = episode_similarity.candidate_pairs(content[first] * (store.max(initial=0) + 1) + store, some)
    similar = episode_similarity.sequence_similarity(some, found)
    near = similar >= least
    _insert_near(connection, numbers[found[near]], similar[near], renamed=False)
    return len(first)


def _find_near_across_contents(connection: duckdb.DuckDBPyConnection, rows: pa.Table, alike: CompareScreens) -> None:
    """Insert the pairs of collapsed rows that are near one another though their contents differ. rows: by key."""
    sequences = StepSequences.from_lists(rows["step_codes"])
    pairs = episode_similarity.candidate_pairs(rows["key"].to_numpy(), sequences)
    content, told = _codes(rows["content"]), rows["told"].to_numpy()
    pairs = pairs[(content[pairs[:, 0]] != content[pairs[:, 1]]) & (told[pairs[:, 0]] == told[pairs[:, 1]])]
    pairs = pairs[episode_similarity.sequences_equal(sequences.without_idle(), pairs)]
    screens = list(zip(rows["first_image_sha256"].to_pylist(), rows["last_image_sha256"].to_pylist(), strict=True))
    seen = alike([(screens[i], screens[j]) for i, j in pairs.tolist()])
    pairs = pairs[np.array(seen, bool)] if len(pairs) else pairs
    similarity = episode_similarity.sequence_similarity(sequences, pairs)
    _insert_near(connection, rows["number"].to_numpy()[pairs], similarity, renamed=True)


def _collapsed(
    content: np.ndarray, told: np.ndarray, sequences: StepSequences
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each set of equal rows, the first, the second (-1: none) and the count; and for each row its set's
    number."""
    length = splitmix64(sequences.lengths.astype(np.uint64))
    key = splitmix64(splitmix64(content.astype(np.uint64)) ^ told ^ length) ^ _digests(sequences)
    by_key = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[by_key], prepend=~key[by_key[:1]]))
    count = np.diff(begins, append=len(key))
    first, second = by_key[begins], np.where(count > 1, by_key[np.minimum(begins + 1, len(key) - 1)], -1)
    order = np.argsort(first)  # the order of the rows
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    member = np.empty(len(key), np.int64)
    member[by_key] = np.repeat(place, count)
    return first[order], second[order], count[order], member


def _keys(told: np.ndarray, sequences: StepSequences) -> pa.Array:
    """Return keys that are equal for rows that can be near under two contents; null for rows of idle steps alone."""
    essential = sequences.without_idle()
    done = StepSequences(essential.codes >> np.uint64(2 * BITS_PER_AXIS), essential.offsets)
    lengths = essential.lengths
    return pa.array(splitmix64(told ^ lengths.astype(np.uint64)) ^ _digests(done), mask=lengths == 0)


def _digests(sequences: StepSequences) -> np.ndarray:
    """Return one number per episode, a hash of its codes and their order."""
    places = np.arange(len(sequences.codes)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
    with np.errstate(over="ignore"):
        mixed = splitmix64(sequences.codes + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        summed = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        return summed[sequences.offsets[1:]] - summed[sequences.offsets[:-1]]


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Encode equal values as equal numbers: int64 [rows]."""
    return column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)


def _insert_near(
    connection: duckdb.DuckDBPyConnection, pairs: np.ndarray, similarity: np.ndarray, *, renamed: bool
) -> None:
    """Insert each pair in both directions. renamed: whether the contents differ."""
    if not len(pairs):
        return
    both = np.concatenate([pairs, pairs[:, ::-1]])
    columns = {"number": both[:, 0], "other": both[:, 1], "similarity": np.tile(similarity, 2)}
    insert_rows(connection, "dedup_near", pa.table({**columns, "renamed": np.full(len(both), renamed)}))


# The signatures are stored for later iterations: `trajectory_hashes` (a trajectory's steps as numbers) and
# `screen_hashes` (of the screens that were compared), so that of earlier iterations only these and the stores are read,
# and a few screens. `duplicates` has each trajectory that was weighed down, what it is near, and why.

ROUTE_STAGE = "route"  # the stage that routes, looks for duplicates and builds the stores
SIGNATURE_TABLES = ("trajectory_hashes", "screen_hashes")
_TASKS_PER_BATCH = 5_000  # rows that Python processes at a time


def create_task_contents(connection: duckdb.DuckDBPyConnection, iteration: int, stages: Sequence[str]) -> None:
    """Create the table `contents` of an iteration's tasks: task_id, content, near.

    content: hash of the task's content. near: why it is near an evaluation task; NULL where it is not. connection: to
    the catalogue; the table is created there. stages: whose rows of `tasks` are taken. Raises duckdb.Error for a
    damaged file.
    """
    own = f"SELECT {', '.join(_TASK_COLUMNS)} FROM tasks WHERE iteration = {int(iteration)}"
    own += f" AND stage IN ({_quote_texts(stages)})"
    connection.execute("CREATE OR REPLACE TABLE contents (task_id VARCHAR, content VARCHAR, near VARCHAR)")
    with connection.cursor() as cursor:
        held_out = cursor.execute(f"{own} AND split = 'eval'").to_arrow_table().to_pylist()
        for batch in cursor.execute(own).to_arrow_reader(_TASKS_PER_BATCH):
            asked = batch.to_pylist()
            near = find_tasks_near_evaluation((task for task in asked if task["split"] != "eval"), held_out)
            names = [task["task_id"] for task in asked]
            told = {"content": map(task_content_hash, asked), "near": map(near.get, names)}
            insert_rows(connection, "contents", _text_table({"task_id": names, **told}))


def quarantine_near_evaluation(connection: duckdb.DuckDBPyConnection) -> None:
    """Quarantine the trajectories of training tasks that are near an evaluation task: add them to the table `broken`.

    connection: with the tables that `check_row_contracts` and `create_task_contents` create.
    """
    connection.execute(_SQL["insert_near_evaluation"])


def weigh_duplicates(
    ws: Workspace,
    iteration: int,
    read: Sequence[tuple[str, str]],
    connection: duckdb.DuckDBPyConnection,
    settings: RoutingSettings,
    staged: Workspace,
    *,
    again: bool = False,
) -> None:
    """Find near-duplicates among the model's stored trajectories, and give those of an iteration a weight in training.

    They are compared with one another and with those of the `dedup_window` iterations before. iteration: whose
    trajectories are weighed. read: (table, stage) of the incoming partitions. connection: to the catalogue, with the
    tables or views `incoming` and `decided`, and `contents` (`create_task_contents`); gets the view `weights`
    (trajectory_id, weight) of those that have a near-duplicate. settings: block `routing`. staged: `duplicates` and
    `SIGNATURE_TABLES` are written there. again: reuse the workspace's signatures; tasks and steps are read only where a
    trajectory has none. People's demonstrations are left out. The cost is that of this iteration and the window. Raises
    DataError for a manifest, partition or screen that is missing or damaged, or where another process has been writing
    a partition of `staged` for ten minutes; duckdb.Error for a damaged file that `connection` reads; what `run_query`
    does; DiskFull.
    """
    _write_signatures(ws, iteration, read, connection, staged, again=again)
    before, since = manifest.read_manifest(ws, iteration - 1), iteration - settings.dedup_window
    signed = partitions.partition_files(staged, "trajectory_hashes", iteration, ROUTE_STAGE)
    known = [ws.resolve(one.path) for one in before.shards("trajectory_hashes") if one.iteration >= since]
    for path in known:  # raises for a damaged one
        partitions.open_partition_file("trajectory_hashes", path, wholly=True).close()
    _create_episodes_view(connection, iteration, since, signed, known)
    looked = _ScreenComparer(ws, iteration, read, before, since)
    find_near_duplicates(connection, "FROM episodes", settings.dedup_min_similarity, looked.compare)
    if settings.dedup_weighting == "each":
        connection.execute("UPDATE near_duplicates SET weight = 1")
    connection.execute("CREATE OR REPLACE VIEW weights AS SELECT trajectory_id, weight FROM near_duplicates")
    with partitions.open_partition_writer(staged, "duplicates", iteration, ROUTE_STAGE) as writer:
        writer.write_query(connection, "FROM near_duplicates ORDER BY trajectory_id")
    partitions.write_partition(staged, "screen_hashes", iteration, ROUTE_STAGE, looked.rows())
    connection.execute("DROP VIEW episodes; DROP TABLE stores_now")


def _write_signatures(
    ws: Workspace,
    iteration: int,
    read: Sequence[tuple[str, str]],
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    *,
    again: bool,
) -> None:
    """Write the signatures of the trajectories that join a store; with `again`, link existing ones and add missing
    ones.

    A later decision changes nothing in a signature but the store, which is read from the stores.
    """
    signed = partitions.partition_files(ws, "trajectory_hashes", iteration, ROUTE_STAGE) if again else []
    stages = {table: [stage for name, stage in read if name == table] for table in ("steps", "tasks")}
    wanted = f"FROM steps WHERE iteration = {int(iteration)} AND stage IN ({_quote_texts(stages['steps'])})"
    connection.execute(_SQL["unsigned"])
    if signed:
        connection.execute(
            f"DELETE FROM unsigned WHERE trajectory_id IN (SELECT trajectory_id FROM {_read_parquet_sql(signed)})"
        )
        wanted += " AND trajectory_id IN (SELECT trajectory_id FROM unsigned)"
    with partitions.open_partition_writer(staged, "trajectory_hashes", iteration, ROUTE_STAGE) as writer:
        if signed:
            partitions.link_partition_files(ws, writer, "trajectory_hashes", iteration, ROUTE_STAGE)
        if connection.execute("SELECT count(*) FROM unsigned").fetchall()[0][0]:
            if again:
                create_task_contents(connection, iteration, stages["tasks"])
            with connection.cursor() as cursor:
                instructions = cursor.execute("SELECT DISTINCT instruction FROM unsigned")
                for batch in instructions.to_arrow_reader(_TASKS_PER_BATCH):
                    said = batch.column(0).to_pylist()
                    words = [" ".join(instruction_arguments(text)) for text in said]
                    insert_rows(connection, "words", _text_table({"instruction": said, "arguments": words}))
                for coded in episode_similarity.encode_steps(cursor, wanted):
                    insert_rows(connection, "coded", coded)
            connection.execute(_SQL["signatures"].format(wanted=wanted))
            writer.write_query(connection, "FROM signed ORDER BY trajectory_id")
    connection.execute("DROP TABLE unsigned; DROP TABLE words; DROP TABLE coded; DROP TABLE IF EXISTS signed")


def _create_episodes_view(
    connection: duckdb.DuckDBPyConnection, iteration: int, since: int, own: Sequence[Path], known: Sequence[Path]
) -> None:
    """Create the view `episodes` for `find_near_duplicates`: trajectories that have a signature and are in a store."""
    earlier = f"iteration >= {since} AND iteration < {iteration}"
    database.run_query(connection, _SQL["stores_now"].format(earlier=earlier))
    signed = [f"SELECT * EXCLUDE (store), true AS new FROM {_read_parquet_sql(own)}"]
    signed += [f"SELECT * EXCLUDE (store), false AS new FROM {_read_parquet_sql(known)}"] if known else []
    connection.execute(
        f"""CREATE OR REPLACE VIEW episodes AS FROM ({" UNION ALL ".join(signed)})
        JOIN stores_now USING (trajectory_id, new)"""
    )


def _read_parquet_sql(files: Sequence[Path]) -> str:
    return f"read_parquet([{_quote_texts(map(str, files))}], hive_partitioning = false)"


def _quote_texts(values: Iterable[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _text_table(columns: Mapping[str, Iterable[str | None]]) -> pa.Table:
    return pa.table({name: pa.array(list(values), pa.string()) for name, values in columns.items()})


class _ScreenComparer:
    """Compare first and last screens by difference hash, only where their bytes differ; each screen is hashed once."""

    def __init__(
        self, ws: Workspace, iteration: int, read: Sequence[tuple[str, str]], before: TrainingManifest, since: int
    ) -> None:
        self._ws, self._before, self._since = ws, before, since
        stages = [stage for table, stage in read if table == "images"]
        self._own = [path for stage in stages for path in partitions.partition_files(ws, "images", iteration, stage)]
        self._new: dict[str, int] = {}

    def compare(self, pairs: Sequence[tuple[FirstLastScreens, FirstLastScreens]]) -> list[bool]:
        wanted = {
            sha for ours, others in pairs for two in zip(ours, others, strict=True) if two[0] != two[1] for sha in two
        }
        known = self._hashes(wanted - {None})

        def like(left: str | None, right: str | None) -> bool:
            if left is None or right is None:  # a step with a text only
                return False
            both = left in known and right in known
            return left == right or (both and hashes_alike(known[left], known[right]))

        return [all(like(*two) for two in zip(ours, others, strict=True)) for ours, others in pairs]

    def _hashes(self, wanted: set[str]) -> dict[str, int]:
        if not wanted:
            return {}
        known = {}
        for path in self._earlier("screen_hashes"):
            rows = partitions.read_partition_file(self._ws, "screen_hashes", path)
            rows = rows.filter(pc.is_in(rows["sha256"], value_set=pa.array(wanted, pa.string())))
            known |= dict(zip(rows["sha256"].to_pylist(), rows["dhash"].to_pylist(), strict=True))
        files = [*self._own, *self._earlier("images")]
        for sha, encoded in images.load_images(self._ws, files, wanted - known.keys()).items():
            try:
                self._new[sha] = difference_hash(encoded)
            except OSError:  # no picture: similar to none
                continue
        return known | self._new

    def _earlier(self, table: str) -> list[Path]:
        return [self._ws.resolve(one.path) for one in self._before.shards(table) if one.iteration >= self._since]

    def rows(self) -> list[dict]:
        return [{"sha256": sha, "dhash": value} for sha, value in self._new.items()]
