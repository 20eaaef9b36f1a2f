"""Declare every table of the flywheel as a pyarrow schema.

Tables lie as `data/<table>/iteration=NNN/stage=<stage>/part-NNNNN-<hash>.parquet`. `iteration` and `stage` come from
the path (hive), so they are not columns of the files. Rows are sorted by the columns in `SORT_KEYS`.
Each file carries `schema_version` and `table` in its metadata.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa

from flywheel.store.trajectory import Step, Trajectory

SCHEMA_VERSION = 1
T = TypeVar("T")

_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()


def _schema(table: str, **columns: pa.DataType) -> pa.Schema:
    """Columns are nullable unless named in `_REQUIRED`."""
    fields = [pa.field(name, kind, nullable=name not in _REQUIRED) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"table": table, "schema_version": str(SCHEMA_VERSION)})


_REQUIRED = {
    "trajectory_id",
    "task_id",
    "step",
    "sha256",
    "destination",
    "domain",
    "name",
    "sample_id",
    "event",
    "utterance",
}

_KINDS: dict[Any, pa.DataType] = {
    str: _TEXT,
    int: pa.int32(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: _TIME,
    tuple[int, ...]: pa.list_(pa.int32()),
    tuple[float, ...]: pa.list_(pa.float32()),
}


def record_columns(record: type) -> dict[str, pa.DataType]:
    """List the columns that a record's fields declare."""
    hints = get_type_hints(record)
    return {field.name: _KINDS[_without_none(hints[field.name])] for field in _stored(record)}


def _stored(record: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(record) if field.metadata.get("column", True)]


def _without_none(hint: Any) -> Any:
    return (
        next(kind for kind in get_args(hint) if kind is not type(None)) if isinstance(hint, types.UnionType) else hint
    )


_WORD = pa.struct([("word", _TEXT), ("start_s", pa.float64()), ("end_s", pa.float64()), ("confidence", pa.float32())])

TABLES: dict[str, pa.Schema] = {
    # What was asked. `params` is the template's JSON; `checksum` names the world's sources. `environment`: the kind
    # that it is played in.
    "tasks": _schema(
        "tasks",
        task_id=_TEXT,
        domain=_TEXT,
        world=_TEXT,
        template=_TEXT,
        level=pa.int32(),
        seed=pa.int64(),
        instruction=_TEXT,
        params=_TEXT,
        max_steps=pa.int32(),
        split=_TEXT,
        verifier=_TEXT,
        threshold=pa.float64(),
        checksum=_TEXT,
        environment=_TEXT,
    ),
    # One row an episode, and one a step of it: what their columns mean stands in `trajectory.py`.
    "trajectories": _schema("trajectories", **record_columns(Trajectory)),
    "steps": _schema("steps", **record_columns(Step)),
    # One row an utterance of a think-aloud recording. Times are on the screen's clock, in seconds from its start.
    # `confidence`: the recognizer's, 0 to 1, the mean over the words. `low_confidence`: it is below the least that is
    # trusted, so the step has no thought from this utterance.
    "utterances": _schema(
        "utterances",
        trajectory_id=_TEXT,
        utterance=pa.int32(),
        start_s=pa.float64(),
        end_s=pa.float64(),
        asr_text=_TEXT,
        text=_TEXT,
        words=pa.list_(_WORD),
        step=pa.int32(),
        alignment_score=pa.float64(),
        recognizer=_TEXT,
        refined_by=_TEXT,
        confidence=pa.float64(),
        low_confidence=pa.bool_(),
    ),
    # One row a captured input event of a recording.
    "events": _schema(
        "events",
        trajectory_id=_TEXT,
        event=pa.int32(),
        time_s=pa.float64(),
        kind=_TEXT,
        x=pa.float64(),
        y=pa.float64(),
        key=_TEXT,
        text=_TEXT,
        step=pa.int32(),
    ),
    # One row a trajectory and scorer (`envs.verdict`). `score`: null where the scorer gave none; `detail` says why.
    # `version`: of the scorer.
    "scores": _schema(
        "scores",
        trajectory_id=_TEXT,
        scorer=_TEXT,
        score=pa.float64(),
        threshold=pa.float64(),
        success=pa.bool_(),
        detail=_TEXT,
        version=_TEXT,
    ),
    "routes": _schema(
        "routes", trajectory_id=_TEXT, destination=_TEXT, reason=_TEXT, score=pa.float64(), success=pa.bool_()
    ),
    "reviews": _schema("reviews", subject=_TEXT, kind=_TEXT, reviewer=_TEXT, decision=_TEXT, comment=_TEXT, at=_TIME),
    # Screens, once each. `bytes` is the encoded file.
    "images": _schema("images", sha256=_TEXT, width=pa.int32(), height=pa.int32(), format=_TEXT, bytes=pa.binary()),
    # parent -> child, by name: trajectory, checkpoint, task, run, dataset.
    "lineage": _schema("lineage", child=_TEXT, child_kind=_TEXT, parent=_TEXT, parent_kind=_TEXT, relation=_TEXT),
    # Flow and task runs, exported from Prefect at the end of each iteration (its server forgets). `stage` is the one
    # that wrote the rows, as in every table: which one a run belongs to says the view `run_history`. `message`: of its
    # last state, for a run that failed the reason.
    "runs": _schema(
        "runs",
        run_id=_TEXT,
        parent_id=_TEXT,
        kind=_TEXT,
        name=_TEXT,
        state=_TEXT,
        attempts=pa.int32(),
        started_at=_TIME,
        ended_at=_TIME,
        seconds=pa.float64(),
        parameters=_TEXT,
        message=_TEXT,
    ),
    # A measured figure. `step` counts along a curve (0 for a single figure); `low`, `high`: its 95% interval,
    # `n`: how many cases it rests on; null where they have no meaning.
    "metrics": _schema(
        "metrics",
        domain=_TEXT,
        name=_TEXT,
        step=pa.int32(),
        value=pa.float64(),
        low=pa.float64(),
        high=pa.float64(),
        n=pa.int64(),
    ),
    # What RL's curriculum knew of each task at the end. `successes` of `episodes`: newer ones count more.
    # `sampling_prob`: share of the draws, `relative_prob`: relative to an even share; `reason`: why that is less than 1
    # (empty where it is not).
    "curriculum": _schema(
        "curriculum",
        task_id=_TEXT,
        domain=_TEXT,
        world=_TEXT,
        template=_TEXT,
        level=pa.int32(),
        groups=pa.int32(),
        successes=pa.float64(),
        episodes=pa.float64(),
        sampling_prob=pa.float64(),
        relative_prob=pa.float64(),
        reason=_TEXT,
    ),
    # Training stores, one row a trajectory; the samples are built from its steps. `weight`: of each of them in the mix,
    # less than 1 where the trajectory has near-duplicates.
    "sft": _schema(
        "sft",
        trajectory_id=_TEXT,
        task_id=_TEXT,
        domain=_TEXT,
        source=_TEXT,
        score=pa.float64(),
        steps=pa.int32(),
        policy_version=_TEXT,
        weight=pa.float64(),
    ),
    "ct": _schema(
        "ct",
        trajectory_id=_TEXT,
        task_id=_TEXT,
        domain=_TEXT,
        source=_TEXT,
        score=pa.float64(),
        steps=pa.int32(),
        policy_version=_TEXT,
        weight=pa.float64(),
    ),
    # Near-duplicates among what joined a store (`store/dedup/near_duplicates.py`): the nearest one, the share of steps
    # that agree with it, why it counts as near, and what the trajectory weighs in training, beside 1.
    "duplicates": _schema(
        "duplicates",
        trajectory_id=_TEXT,
        duplicate_of=_TEXT,
        similarity=pa.float64(),
        reason=_TEXT,
        weight=pa.float64(),
    ),
    # What later iterations compare theirs with: the steps as numbers (`store/dedup/episode_similarity.py`), what was
    # asked, and the sha256 of the first and the last screen; difference hashes of screens that were looked at. `store`:
    # the store that the trajectory joined when its steps became numbers; which one it is in since, the stores say.
    "trajectory_hashes": _schema(
        "trajectory_hashes",
        trajectory_id=_TEXT,
        content=_TEXT,
        arguments=_TEXT,
        store=_TEXT,
        step_codes=pa.list_(pa.uint64()),
        first_image_sha256=_TEXT,
        last_image_sha256=_TEXT,
    ),
    "screen_hashes": _schema("screen_hashes", sha256=_TEXT, dhash=pa.uint64()),
    # What is set aside, with the reason. `source_table`: that of the row; `record`: a trajectory's whole row as JSON,
    # to be mended and routed again.
    "quarantine": _schema(
        "quarantine", trajectory_id=_TEXT, reason=_TEXT, detail=_TEXT, record=_TEXT, source_table=_TEXT
    ),
    # General data for the CT and SFT mixes: a screen, a question, the answer text.
    "grounding_examples": _schema(
        "grounding_examples", sample_id=_TEXT, kind=_TEXT, image_sha256=_TEXT, instruction=_TEXT, response=_TEXT
    ),
}

SORT_KEYS: dict[str, tuple[str, ...]] = {
    "tasks": ("task_id",),
    "steps": ("trajectory_id", "step"),
    "utterances": ("trajectory_id", "utterance"),
    "events": ("trajectory_id", "event"),
    "images": ("sha256",),
    "screen_hashes": ("sha256",),
    "grounding_examples": ("sample_id",),
    "metrics": ("name", "domain", "step"),
    "runs": ("started_at",),
    "lineage": ("child", "parent"),
    "reviews": ("at",),
    "curriculum": ("task_id",),
    "scores": ("trajectory_id", "scorer"),
}
for _name in TABLES:
    SORT_KEYS.setdefault(_name, ("trajectory_id",))


def record_to_row(table: str, record: Any) -> dict[str, Any]:
    """Return the row of `table` for a record such as `trajectory.Step`: its fields that are columns, in their order.

    Raises AttributeError where a column is no field of it.
    """
    return {name: getattr(record, name) for name in TABLES[table].names}


def record_from_row(table: str, kind: type[T], row: Mapping[str, Any]) -> T:
    """Make a record of class `kind` from a row of `table`.

    row: columns that it lacks are None, lists become tuples; what is neither a column nor a field is left out
    (`iteration`).
    """
    columns, others = _names(table, kind)
    values = {name: row.get(name) for name in columns} | {name: row[name] for name in others if name in row}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


@cache
def _names(table: str, kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A table's columns, and the record's fields that are none; found out once, not for each of a million rows."""
    columns = tuple(TABLES[table].names)
    return columns, tuple(field.name for field in dataclasses.fields(kind) if field.name not in columns)


def empty_table(table: str) -> pa.Table:
    """Make a table of the schema of `table` without rows, as an empty partition is stored."""
    return TABLES[table].empty_table()
