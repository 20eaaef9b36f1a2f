"""Declare every table of the flywheel as a pyarrow schema (columns: `tables.sql`), and make records, rows and ids.

`Step` and `Trajectory` are rows of their tables, with a field per column: what the rollout records is what scorers
judge and training learns from. `catalog/table_comments.sql` says what each column means, as for all tables. None means
unknown, or without meaning for this kind of step. A new column needs a field, its comment, the line where it is filled,
and a higher `FORMAT` (config/workspace.py), so that commands refuse workspaces without the column until `flywheel
workspace migrate` adds it: that adds every column that files lack, with the default in `renamed_tables.json`, or null.
A new table needs none of that: iterations before it have no rows of it. `scores` has a row for each scorer and version
of a trajectory, of which `verdicts_from_rows` (envs/base.py) gives the deciding one.

Tables are stored as `data/<table>/iteration=NNN/stage=<stage>/part-NNNNN-<hash>.parquet`. `iteration` and `stage` come
from the path (hive partitioning), so they are not columns of the files. Rows are sorted by the columns in `SORT_KEYS`.
Each file has `schema_version` and `table` in its metadata.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa

from flywheel.utils.confidence_intervals import wilson_interval

ALL_DOMAINS = "all"  # domain of a row of `metrics` that covers all domains
# Source of the runs of `flywheel model counterfactual`, and the stage in the name of their partitions. No stage of the
# pipeline writes or reads them: none is routed, trained on or counted.
COUNTERFACTUAL = "counterfactual"
NO_COLUMN = {"column": False}  # metadata of a field that no table holds


@dataclass(frozen=True)
class Step:
    """Hold one step of a trajectory: what was seen (by its hash), thought and done, and what followed.

    step: number within the trajectory, from 0. x, y: the action's point, as fractions of the screen's width and height;
    x2, y2: where a drag ends. token_ids, logprobs: [response], the latter in nats at temperature 1. The comments of
    `steps` in `catalog/table_comments.sql` say what each other field means.
    """

    trajectory_id: str
    step: int
    author: str
    thought: str | None = None
    action_type: str | None = None
    action: str | None = None
    raw_text: str | None = None
    parse_error: str | None = None
    x: float | None = None
    y: float | None = None
    x2: float | None = None
    y2: float | None = None
    prompt_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    weight_version: str | None = None
    image_sha256: str | None = None
    url: str | None = None
    tool_result: str | None = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    memory: str | None = None
    observation: str | None = None
    misclick: bool | None = None
    state_score: float | None = None

    # Fields that no table has: RL reads them from the episode, and drops them with the batch.
    sampled_logprobs: tuple[float, ...] = field(default=(), metadata=NO_COLUMN)
    """Log-probability of each token at the temperature that it was sampled at; () where the policy does not report
    it."""
    version: int | None = field(default=None, metadata=NO_COLUMN)
    """Number of RL steps that the weights that sampled this step had taken in their RL run; None outside of RL."""


@dataclass(frozen=True)
class Trajectory:
    """Hold the record of one episode, or of a person's session: its task, who acted, how it ended.

    steps: their number. reward: sum over them. start_step: number of the first step of its own. The comments of
    `trajectories` in `catalog/table_comments.sql` say what each field means.
    """

    trajectory_id: str
    task_id: str
    domain: str
    world: str | None = None
    level: int | None = None
    instruction: str | None = None
    source: str | None = None
    author: str | None = None
    sample: int | None = None
    policy_version: str | None = None
    status: str | None = None
    error: str | None = None
    steps: int | None = None
    reward: float | None = None
    final_state: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    run_id: str | None = None
    origin: str | None = None
    licence: str | None = None
    annotator: str | None = None
    skill: str | None = None
    parent_id: str | None = None
    start_step: int | None = None
    final_image_sha256: str | None = None


def make_trajectory_id(iteration: int, task_id: str, sample: int, policy_version: str) -> str:
    """Derive a trajectory's id from its origin: `t` and 19 hex digits of a hash of the arguments.

    A resumed run derives the same ids, so it neither loses nor repeats a trajectory. iteration, task_id: what is
    played. sample: number of the attempt at the task. policy_version: digest of the weights.
    """
    text = f"{iteration}|{task_id}|{sample}|{policy_version}"
    return "t" + hashlib.sha256(text.encode()).hexdigest()[:19]


def session_trajectory_id(iteration: int, task_id: str, session: str) -> str:
    """Derive the id of the trajectory made from a person's session, in the form of `make_trajectory_id`.

    iteration: the one that ingests it. task_id: of its task. session: name of its folder.
    """
    return make_trajectory_id(iteration, task_id, 0, f"human-{session}")


SCHEMA_VERSION = 1
T = TypeVar("T")

# Types of columns, by their SQL names.
SQL_TYPES: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}
SQL_TYPES |= {f"{name}[]": pa.list_(SQL_TYPES[name]) for name in ("INTEGER", "UBIGINT", "FLOAT")}
_WORD = {"word": "VARCHAR", "start_s": "DOUBLE", "end_s": "DOUBLE", "confidence": "FLOAT"}
_WORDS = f"STRUCT({', '.join(f'{name} {kind}' for name, kind in _WORD.items())})[]"
SQL_TYPES[_WORDS] = pa.list_(pa.struct([(name, SQL_TYPES[kind]) for name, kind in _WORD.items()]))
# Types of a record's fields.
_FIELD_TYPES: dict[Any, pa.DataType] = {
    str: SQL_TYPES["VARCHAR"],
    int: SQL_TYPES["INTEGER"],
    float: SQL_TYPES["DOUBLE"],
    bool: SQL_TYPES["BOOLEAN"],
    datetime: SQL_TYPES["TIMESTAMP WITH TIME ZONE"],
    tuple[int, ...]: SQL_TYPES["INTEGER[]"],
    tuple[float, ...]: SQL_TYPES["FLOAT[]"],
}
# Columns of these names are never null, in whichever table they stand.
NOT_NULL = {"trajectory_id", "task_id", "sample_id", "sha256", "domain", "destination", "name"}
NOT_NULL |= {"step", "utterance", "event", "candidate"}  # numbers within a trajectory


def _schema(table: str, columns: str | type) -> pa.Schema:
    """Make the schema of a table. columns: SQL declarations, or a record class. Columns are nullable unless in
    `NOT_NULL`."""
    if isinstance(columns, type):
        kinds = record_columns(columns)
    else:
        declared = (column.split(" ", 1) for column in re.split(r",\s+(?![^(]*\))", columns))
        kinds = {name: SQL_TYPES[kind] for name, kind in declared}
    fields = [pa.field(name, kind, nullable=name not in NOT_NULL) for name, kind in kinds.items()]
    return pa.schema(fields, metadata={"table": table, "schema_version": str(SCHEMA_VERSION)})


def record_columns(record: type) -> dict[str, pa.DataType]:
    """Return the table columns that the fields of a record class declare, name -> type, in order.

    record: a dataclass. Raises LookupError for a field whose type no column has.
    """
    hints = get_type_hints(record)
    stored = [field.name for field in dataclasses.fields(record) if field.metadata.get("column", True)]
    return {name: _FIELD_TYPES.get(hints[name]) or _FIELD_TYPES[get_args(hints[name])[0]] for name in stored}


_SQL = resources.files("flywheel.store").joinpath("tables.sql").read_text(encoding="utf-8")
_DECLARED = dict(re.findall(r"CREATE TABLE (\w+) \(\s+(.*?)\s+\);", re.sub(r"--.*", "", _SQL), re.DOTALL))
COLUMNS: dict[str, str | type] = {"tasks": _DECLARED["tasks"], "trajectories": Trajectory, "steps": Step} | _DECLARED
TABLES: dict[str, pa.Schema] = {table: _schema(table, columns) for table, columns in COLUMNS.items()}

# A table is sorted by its first column unless named here.
SORT_KEYS: dict[str, tuple[str, ...]] = {table: (schema.names[0],) for table, schema in TABLES.items()} | {
    "steps": ("trajectory_id", "step"),
    "utterances": ("trajectory_id", "utterance"),
    "events": ("trajectory_id", "event"),
    "metrics": ("name", "domain", "step"),
    "runs": ("started_at",),
    "lineage": ("child", "parent"),
    "reviews": ("at",),
    "scores": ("trajectory_id", "scorer"),
    "candidates": ("trajectory_id", "step", "candidate"),
}


def declaring_file(table: str) -> str:
    """Return the path of the file that declares the columns of `table`. Raises KeyError for an unknown table."""
    return f"flywheel/store/{'schema.py' if isinstance(COLUMNS[table], type) else 'tables.sql'}"


def record_to_row(table: str, record: Any) -> dict[str, Any]:
    """Return the row of `table` for a record such as a `Step`: the fields that are columns, in the columns' order.

    Raises AttributeError where the record lacks a column, KeyError for an unknown table.
    """
    return {name: getattr(record, name) for name in TABLES[table].names}


def record_from_row(table: str, kind: type[T], row: Mapping[str, Any]) -> T:
    """Make a record of class `kind` from a row of `table`.

    kind: a dataclass. row: columns that it lacks become None, lists become tuples; a key that is neither column nor
    field (`iteration`) is left out. Raises TypeError where a column is no field of `kind`, or where a field that is no
    column and has no default is not in `row`; KeyError for an unknown table.
    """
    columns, others = _names(table, kind)
    values = {name: row.get(name) for name in columns} | {name: row[name] for name in others if name in row}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


@cache
def _names(table: str, kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a table's columns, and the record's other fields; cached, since there may be a million rows."""
    columns = tuple(TABLES[table].names)
    return columns, tuple(field.name for field in dataclasses.fields(kind) if field.name not in columns)


def empty_table(table: str) -> pa.Table:
    """Make a table with the columns of `table` and no rows, as an empty partition is stored.

    Raises KeyError for an unknown name.
    """
    return TABLES[table].empty_table()


def metric_row(
    name: str,
    value: float,
    *,
    domain: str = ALL_DOMAINS,
    step: int = 0,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """Build one row of the table `metrics`: a mapping of its columns.

    name: of the metric. value: stored as null where it is not finite, so that SQL can average. domain: default: all.
    step: x of a curve; 0 for a single value. low, high: ends of its confidence interval, n: number of cases behind it;
    None where unknown.
    """
    value = float(value) if math.isfinite(value) else None
    return {"domain": domain, "name": name, "step": step, "value": value, "low": low, "high": high, "n": n}


def fraction_metric_row(
    name: str, successes: float, n: int, *, domain: str = ALL_DOMAINS, step: int = 0
) -> dict[str, Any]:
    """Build a row of `metrics`, as `metric_row`, for the fraction `successes` / `n`, with its 95% Wilson interval.

    name: of the metric. successes: their number, or the sum of `n` values in [0, 1]. n: number of cases; where it is 0,
    value and interval are null. domain: default: all. step: x of a curve; 0 for a single value.
    """
    low, high = wilson_interval(successes, n) if n else (None, None)
    value = successes / n if n else math.nan
    return metric_row(name, value, domain=domain, step=step, low=low, high=high, n=n)
