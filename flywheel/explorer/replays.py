"""One trajectory for its page: its steps with what is drawn on their screens, and all that is known of it."""

from __future__ import annotations

import json
from collections import defaultdict
from operator import itemgetter
from typing import Any

import duckdb

from flywheel.explorer.asking import LISTED, TRAINED, Asking, NotHere, Row
from flywheel.explorer.tokens import Tokens
from flywheel.report import replay
from flywheel.store import catalog

_BESIDE = "trajectory_id, iteration, stage, sample, policy_version, status, steps, v, score, destination"


def load(asking: Asking, tokens: Tokens, trajectory_id: str) -> dict[str, Any]:
    """Raises NotHere where there is no such trajectory."""
    found = asking.ask(lambda connection: _read(connection, trajectory_id))
    if not found:
        raise NotHere(
            f"there is no trajectory {trajectory_id[:80]} here", fix="it may have been discarded, or rolled back"
        )
    for step in found["steps"]:
        step["tokens"] = tokens.texts(found["facts"]["model"], step.pop("token_ids") or ())
    return found


def _read(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, Any] | None:
    def rows(sql: str, **values: Any) -> list[Row]:
        return catalog.rows(connection, sql, values)

    found = rows(f"FROM {LISTED} WHERE trajectory_id = $id", id=name)
    if not found:
        return None
    outcome = max(found, key=itemgetter("iteration"))
    of = {"id": name, "iteration": outcome["iteration"]}
    return {
        "facts": outcome | _lineage(connection, outcome),
        "task": next(iter(rows("FROM tasks WHERE task_id = $task LIMIT 1", task=outcome["task_id"])), None),
        "scores": rows("FROM scores WHERE trajectory_id = $id AND iteration = $iteration ORDER BY scorer", **of),
        "samples": _samples(connection, outcome),
        "twins": rows(
            f"""WITH near AS (
                SELECT twin AS other, similarity, reason AS why, weight FROM duplicates WHERE trajectory_id = $id
                UNION SELECT trajectory_id, similarity, reason, weight FROM duplicates WHERE twin = $id)
            SELECT {_BESIDE}, similarity, why, weight FROM near JOIN {LISTED} ON trajectory_id = other
            ORDER BY similarity DESC, trajectory_id LIMIT 50""",
            id=name,
        ),
        "set_aside": rows(
            "SELECT reason, detail, of_table FROM quarantine WHERE trajectory_id = $id AND iteration = $iteration", **of
        ),
        "steps": _steps(connection, name, of["iteration"]),
    }


def _lineage(connection: duckdb.DuckDBPyConnection, outcome: Row) -> Row:
    """What the view `trajectory_lineage` says beside the outcome, by questions that each look for one row alone: the
    view's own took 46 ms at 200,000 trajectories, these 4."""
    (row,) = catalog.rows(
        connection,
        f"""SELECT (SELECT any_value(name) FROM runs WHERE run_id = $run) AS run,
            (SELECT min(checkpoint) FROM (
                SELECT parent AS checkpoint FROM lineage WHERE relation = 'weights of' AND child = $policy
                UNION ALL SELECT model FROM promotions WHERE digest = $policy)) AS model,
            (SELECT coalesce(list(checkpoint ORDER BY checkpoint), []) FROM {TRAINED} WHERE trajectory_id = $id)
                AS trained_checkpoints""",
        {"run": outcome["run_id"], "policy": outcome["policy_version"], "id": outcome["trajectory_id"]},
    )
    return row


def _samples(connection: duckdb.DuckDBPyConnection, outcome: Row) -> list[Row]:
    """The other episodes of its task in its iteration."""
    return catalog.rows(
        connection,
        f"""SELECT {_BESIDE} FROM {LISTED}
        WHERE task_id = $task AND iteration = $iteration AND trajectory_id <> $id
        ORDER BY stage, policy_version, sample, trajectory_id LIMIT 100""",
        {"task": outcome["task_id"], "iteration": outcome["iteration"], "id": outcome["trajectory_id"]},
    )


def _steps(connection: duckdb.DuckDBPyConnection, name: str, iteration: int) -> list[Row]:
    steps = catalog.rows(connection, "FROM steps_of($id)", {"id": name})
    shas = sorted({row["image_sha256"] for row in steps if row["image_sha256"]})
    sizes = {
        row["sha256"]: row
        for row in catalog.rows(
            connection,
            """SELECT sha256, width, height FROM images
            WHERE sha256 IN (SELECT unnest($names)) AND iteration = $iteration""",
            {"names": shas, "iteration": iteration},
        )
    }
    said: dict[int, list[Row]] = defaultdict(list)
    for row in catalog.rows(
        connection,
        """SELECT step, utterance, start_s, end_s, asr_text, text, confidence, doubtful, alignment_score, refined_by
        FROM thoughts WHERE trajectory_id = $id AND iteration = $iteration ORDER BY utterance""",
        {"id": name, "iteration": iteration},
    ):
        said[row["step"]].append(row)
    return [_step(row, sizes.get(row["image_sha256"]), said[row["step"]]) for row in steps]


def _step(row: Row, size: Row | None, said: list[Row]) -> Row:
    width, height = (size["width"], size["height"]) if size else (224, 224)
    return {
        **{name: value for name, value in row.items() if name not in ("stage", "trajectory_id", "memory")},
        "screen": row["image_sha256"] if size else None,
        "width": width,
        "height": height,
        "overlay": replay.overlay(row, width, height),
        "short": replay.in_short(row),
        "said": said,
        "memory": _memory(row["memory"]),
    }


def _memory(text: str | None) -> Any:
    """What was shown of older steps; as it is where it is no JSON."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return {"text": text}
