"""Near-duplicates of an iteration's trajectories: which are set aside, and what the others weigh in training.

What is near what is decided in `flywheel/dedup`. Here its columns are read from the tables, and kept for the
iterations after: `signatures` (a trajectory's steps as numbers) and `screen_hashes` (of the screens that were looked
at), so that nothing of an earlier iteration is read but these. `duplicates` has each trajectory that was weighed down,
its twin, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.dedup import screens as hashes
from flywheel.dedup import steps, tasks
from flywheel.dedup.repeats import near_duplicates
from flywheel.schema import TABLES, empty
from flywheel.settings import Routing
from flywheel.store import catalog, manifest, partitions, screens
from flywheel.store.manifest import Cumulative
from flywheel.workspace import Workspace

Row = Mapping[str, Any]
KEPT = ("signatures", "screen_hashes")
_PROMISE = "no task held out for evaluation, and none near one, is trained on"


@dataclass(frozen=True)
class Found:
    """weights: of the trajectories that do not weigh 1. tables: rows of `duplicates` and of those in `KEPT`."""

    weights: dict[str, float]
    tables: dict[str, list[dict] | pa.Table]


def set_near_evaluation_aside(connection: duckdb.DuckDBPyConnection, asked: Iterable[Row]) -> None:
    """Add to `broken` the trajectories whose task is near one for evaluation, but not one itself: that is a contract.

    connection: as `contracts.judge` leaves it. asked: rows of `tasks`, of all splits.
    """
    asked = list(asked)
    held_out = [task for task in asked if task["split"] == "eval"]
    near = tasks.near_evaluation((task for task in asked if task["split"] != "eval"), held_out)
    why = [f"near_evaluation: {_PROMISE} ({twin})" for twin in near.values()]
    found = {"task_id": pa.array(near, pa.string()), "reason": pa.array(why, pa.string())}
    connection.register("near", pa.table(found))
    connection.execute(
        """INSERT INTO broken SELECT DISTINCT trajectory_id, near.reason FROM judged JOIN near USING (task_id)
        ANTI JOIN broken USING (trajectory_id)"""
    )
    connection.unregister("near")


def find(
    ws: Workspace,
    iteration: int,
    read: Sequence[tuple[str, str]],
    connection: duckdb.DuckDBPyConnection,
    asked: Iterable[Row],
    settings: Routing,
    *,
    staged: Workspace | None = None,
    signed: pa.Table | None = None,
) -> Found:
    """Near-duplicates among the model's trajectories that join a store, and those of `duplicates_window` iterations.

    read: (table, stage) of what came in. connection: with the tables `incoming` and `decided`. asked: rows of `tasks`.
    staged: what it has of the iteration is taken in place of the workspace's. signed: rows of `signatures` that are
    known already: the steps of these are not read. People's demonstrations are not looked at: each is wanted. The cost
    is that of this iteration and the window, whatever lies before it.
    """
    joining = _joining(connection, asked)
    with catalog.connect(ws, staged) as connected:
        own = [stage for table, stage in read if table == "steps"]
        new = _signatures(connected, iteration, own, joining, empty("signatures") if signed is None else signed)
    before = manifest.read(ws, iteration - 1)
    known = _kept(ws, before, "signatures", iteration - settings.duplicates_window)
    looked = _Looked(ws, iteration, read, before, iteration - settings.duplicates_window, [new, known])
    found = list(near_duplicates(new, known, settings.duplicates_least, looked.alike))
    if settings.duplicates_weigh == "each":
        found = [replace(one, weight=1.0) for one in found]
    rows = [asdict(one) for one in found]
    weights = {one.trajectory_id: one.weight for one in found}
    return Found(weights, {"duplicates": rows, "signatures": new, "screen_hashes": looked.rows()})


def _joining(connection: duckdb.DuckDBPyConnection, asked: Iterable[Row]) -> pa.Table:
    """Rows of `signatures` less what their steps tell, of the model's trajectories that join a store."""
    content = {task["task_id"]: tasks.content(task) for task in asked}
    said = [text for (text,) in connection.execute("SELECT DISTINCT instruction FROM incoming").fetchall()]
    words = [" ".join(tasks.arguments(text)) for text in said]
    text = pa.string()
    connection.register("content", pa.table({"task_id": pa.array(content, text), "content": list(content.values())}))
    connection.register("words", pa.table({"instruction": pa.array(said, text), "arguments": pa.array(words, text)}))
    found = connection.execute(
        """SELECT trajectory_id, content.content, words.arguments, destination AS fate
        FROM incoming JOIN decided USING (trajectory_id) JOIN content USING (task_id)
            JOIN words ON words.instruction IS NOT DISTINCT FROM incoming.instruction
        WHERE destination <> 'quarantine' AND author = 'model'"""
    ).to_arrow_table()
    connection.unregister("content")
    connection.unregister("words")
    return found


def _signatures(
    connection: duckdb.DuckDBPyConnection, iteration: int, stages: Sequence[str], joining: pa.Table, signed: pa.Table
) -> pa.Table:
    """Rows of `signatures`, sorted by trajectory_id."""
    connection.register("joining", joining)
    connection.register("signed", signed)
    wanted = f"FROM steps WHERE iteration = {int(iteration)} AND stage IN ({', '.join(map(repr, stages))})"
    if len(signed):
        wanted += " AND trajectory_id IN (SELECT trajectory_id FROM joining ANTI JOIN signed USING (trajectory_id))"
    coded = steps.encode(connection, wanted)
    connection.register("coded", coded)
    return (
        connection.execute(
            f"""SELECT joining.*, known.* EXCLUDE (trajectory_id) FROM joining JOIN (
                SELECT trajectory_id, coded.steps, first AS first_screen, last AS last_screen FROM coded JOIN (
                    SELECT trajectory_id, arg_min(image_sha256, step) AS first, arg_max(image_sha256, step) AS last
                    {wanted} GROUP BY trajectory_id) USING (trajectory_id)
                UNION ALL SELECT trajectory_id, steps, first_screen, last_screen FROM signed) known
            USING (trajectory_id) ORDER BY trajectory_id"""
        )
        .to_arrow_table()
        .cast(TABLES["signatures"])
    )


def _kept(ws: Workspace, before: Cumulative, table: str, since: int) -> pa.Table:
    own = [shard for shard in before.shards(table) if shard.iteration >= since]
    return pa.concat_tables([empty(table), *(partitions.read_file(ws, table, ws.resolve(one.path)) for one in own)])


class _Looked:
    """Looks at first and last screens, only where their bytes differ, and each once."""

    def __init__(
        self,
        ws: Workspace,
        iteration: int,
        read: Sequence[tuple[str, str]],
        before: Cumulative,
        since: int,
        signatures: Sequence[pa.Table],
    ) -> None:
        self._ws, self._before, self._since = ws, before, since
        stages = [stage for table, stage in read if table == "images"]
        self._own = [path for stage in stages for path in partitions.files(ws, "images", iteration, stage)]
        self._ends = {
            row["trajectory_id"]: (row["first_screen"], row["last_screen"])
            for table in signatures
            for row in table.select(["trajectory_id", "first_screen", "last_screen"]).to_pylist()
        }
        self._new: dict[str, int] = {}

    def alike(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        ends = [(self._ends[left], self._ends[right]) for left, right in pairs]
        wanted = {
            sha for ours, others in ends for two in zip(ours, others, strict=True) if two[0] != two[1] for sha in two
        }
        known = self._hashes(wanted - {None})

        def like(left: str | None, right: str | None) -> bool:
            if left is None or right is None:  # a text was all there was to see
                return False
            return left == right or (left in known and right in known and hashes.alike(known[left], known[right]))

        return [all(like(*two) for two in zip(ours, others, strict=True)) for ours, others in ends]

    def _hashes(self, wanted: set[str]) -> dict[str, int]:
        if not wanted:
            return {}
        kept = _kept(self._ws, self._before, "screen_hashes", self._since)
        kept = kept.filter(pc.is_in(kept["sha256"], value_set=pa.array(wanted, pa.string())))
        known = dict(zip(kept["sha256"].to_pylist(), kept["dhash"].to_pylist(), strict=True))
        earlier = [
            self._ws.resolve(shard.path) for shard in self._before.shards("images") if shard.iteration >= self._since
        ]
        for sha, encoded in screens.load(self._ws, [*self._own, *earlier], wanted - known.keys()).items():
            try:
                self._new[sha] = hashes.dhash(encoded)
            except OSError:  # no picture: it is like none
                continue
        return known | self._new

    def rows(self) -> list[dict]:
        return [{"sha256": sha, "dhash": value} for sha, value in self._new.items()]
